"""What is given of a new rollout, checked: its guard, its stages, its limits, and how it is mirrored."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

import attrs

from modelyard.domain.promotion import NotWorse
from modelyard.errors import InvalidInput, located_at
from modelyard.parts.rollouts.records import LIMITS, MAX_METRIC
from modelyard.parts.times import age_of

MOST_STAGES = 20
MOST_ANSWERS = 100_000
LONGEST_SHADOW = timedelta(days=90)

SHADOW: Mapping[str, Any] = {"answers": 100, "share": 0.1, "purse": "1", "lasts": None, "scorer": None}
"""How requests are mirrored unless something else is said."""

_number = int | float


@attrs.frozen
class AtMost:
    """A limit of what is rolled out: the most of "errors" (the share of requests that fail), of "p95" (the seconds in
    which 95 % of the answers come), or of "cost" (the mean of an answer in USD)."""

    name: str
    most: float


Limits = Mapping[str, float] | Sequence[AtMost]
Shadow = Mapping[str, Any] | str


def _is_number(value: object) -> bool:
    return isinstance(value, _number) and not isinstance(value, bool)


def checked_guard(rule: NotWorse) -> str:
    """Return the metric of a guard. Raises `InvalidInput`."""
    if not isinstance(rule, NotWorse) or not isinstance(rule.evaluation, str) or rule.metric is not None:
        raise InvalidInput.at("guard", msg='must be NotWorse("<metric>", margin=...), of a metric that users score')
    check_metric(rule.evaluation, "guard")
    if not _is_number(rule.margin) or not 0 < rule.margin < 1:
        raise InvalidInput.at("guard", "margin", msg="must be more than 0 and less than 1: how much worse it may be")
    if not _is_number(rule.confidence) or not 0.5 <= rule.confidence < 1:
        raise InvalidInput.at("guard", "confidence", msg="must be 0.5 or more, and less than 1")
    return rule.evaluation


def check_metric(metric: object, at: str = "metric") -> None:
    """Refuse what is not the name of a metric. Raises `InvalidInput`."""
    if (
        not isinstance(metric, str)
        or not 0 < len(metric) <= MAX_METRIC
        or not metric.isascii()
        or not metric.isprintable()
    ):
        raise InvalidInput.at(at, msg=f"must be the name of a metric, of 1 to {MAX_METRIC} printable ASCII characters")


def checked_canary(canary: object) -> tuple[float, ...]:
    """Return the shares of the stages. Raises `InvalidInput`."""
    fits = isinstance(canary, Sequence) and not isinstance(canary, str) and all(map(_is_number, canary))
    shares = tuple(map(float, canary)) if fits and isinstance(canary, Sequence) else ()
    rising = all(one < other for one, other in pairwise(shares))
    if not 2 <= len(shares) <= MOST_STAGES or not rising or shares[0] <= 0 or shares[-1] != 1:
        msg = (
            f"must be 2 to {MOST_STAGES} shares of the users that rise, from more than 0 to 1, such as [0.05, 0.25, 1]"
        )
        raise InvalidInput.at("canary", msg=msg)
    return shares


def checked_limits(also: object) -> Mapping[str, float]:
    """Return limits by their names. Raises `InvalidInput`."""
    if isinstance(also, Sequence) and not isinstance(also, str) and all(isinstance(one, AtMost) for one in also):
        given = {one.name: one.most for one in also}
        if len(given) < len(also):
            raise InvalidInput.at("also", msg="has two limits of one name")
        also = given
    if not isinstance(also, Mapping) or not {*also} <= {*LIMITS}:
        msg = f'must be such as {{"errors": 0.05}} or [AtMost("errors", 0.05)], of {", ".join(LIMITS)}'
        raise InvalidInput.at("also", msg=msg)
    for name, limit in also.items():
        if not _is_number(limit) or not 0 < limit < (1 if name == "errors" else float("inf")):
            what = "less than 1, a share" if name == "errors" else "finite"
            raise InvalidInput.at("also", name, msg=f"must be more than 0 and {what}")
    return {name: float(limit) for name, limit in also.items()}


def checked_shadow(given: object) -> Mapping[str, Any]:
    """Return how requests are mirrored; "lasts" in seconds. Raises `InvalidInput`."""
    given = {"lasts": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or not {*given} <= {*SHADOW}:
        msg = 'must be such as "1h" or {"answers": 100, "share": 0.1, "purse": "1", "lasts": "1h"}, or nothing'
        raise InvalidInput.at("shadow", msg=msg)
    lasts = given.get("lasts")
    shadow = {**SHADOW, **({} if lasts is None else {"answers": 1}), **given}
    with located_at("shadow"):
        check_whole(shadow["answers"], "answers", 1, MOST_ANSWERS)
    if not _is_number(shadow["share"]) or not 0 < shadow["share"] <= 1:
        raise InvalidInput.at("shadow", "share", msg="must be more than 0 and at most 1")
    try:
        purse = Decimal(shadow["purse"])
    except (InvalidOperation, TypeError, ValueError):
        purse = Decimal(-1)
    if not purse.is_finite() or not 0 <= purse < 10**9:
        raise InvalidInput.at("shadow", "purse", msg="must be an amount in USD, 0 or more")
    scorer = {} if shadow["scorer"] is None else {"scorer": shadow["scorer"]}
    kept = {"answers": shadow["answers"], "share": float(shadow["share"]), "purse": f"{purse:f}"}
    return kept | ({} if lasts is None else {"lasts": _checked_lasts(lasts)}) | scorer


def _checked_lasts(text: object) -> float:
    try:
        found = age_of(text) if isinstance(text, str) else None
    except OverflowError:
        found = None
    if found is None or not timedelta(0) < found <= LONGEST_SHADOW:
        msg = f"must be a time such as 30m, 1h or 2d, of at most {LONGEST_SHADOW.days} days"
        raise InvalidInput.at("shadow", "lasts", msg=msg)
    return found.total_seconds()


def check_whole(value: object, name: str, least: int, most: int) -> None:
    """Refuse what is no whole number within bounds. Raises `InvalidInput`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput.at(name, msg=f"must be a whole number, {least} to {most}")
