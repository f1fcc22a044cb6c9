"""Narrowing a query of calls to what an index can find: times, outcomes, and whether there is feedback.

The condition of the query is checked on each call nevertheless.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from modelyard.domain.evaluation.filters import (
    ORDERS,
    Expression,
    Literal,
    Operation,
    all_of,
    any_of,
    equal,
    equals_one_of,
    no,
)
from modelyard.parts.traces.call_filter import CallFilter
from modelyard.parts.traces.http.documents import DocumentField

_STATUS = "summary.weave.status"
_OUTCOMES = ("running", "success", "error")
_COMPARING = {*ORDERS.values(), equal, equals_one_of, all_of, any_of, no}
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def narrowed(meant: CallFilter, where: Expression) -> CallFilter:
    for part in _parts(where):
        fields = [one for one in _within(part) if isinstance(one, DocumentField)]
        paths = {one.path for one in fields}
        if fields and all(one.needs_feedback for one in fields):
            meant = meant if _holds(part, {}) else attrs.evolve(meant, with_feedback=True)
        elif paths == {_STATUS}:
            among = meant.outcomes or _OUTCOMES
            fits = tuple(one for one in among if _holds(part, {"summary": {"weave": {"status": one}}}))
            meant = attrs.evolve(meant, outcomes=fits) if fits else meant
        elif paths == {"started_at"}:
            meant = _within_times(meant, part)
    return meant


def _holds(part: Expression, document: Any) -> bool:
    return part.of(document) is True


def _parts(where: Expression) -> Iterator[Expression]:
    if isinstance(where, Operation) and where.function is all_of:
        for one in where.operands:
            yield from _parts(one)
    else:
        yield where


def _within(part: Expression) -> Iterator[Expression]:
    yield part
    for one in part.operands if isinstance(part, Operation) else ():
        yield from _within(one)


def _within_times(meant: CallFilter, part: Expression) -> CallFilter:
    """Return the filter with the times between which the condition may hold.

    The value of a condition is the same for all times before the earliest that it compares with, and for all after the
    latest.
    """
    inside = [*_within(part)]
    times = [_time(one.value) for one in inside if isinstance(one, Literal)]
    known = [one for one in times if one is not None]
    if len(known) < len(times) or any(isinstance(one, Operation) and one.function not in _COMPARING for one in inside):
        return meant
    since, until = meant.since, meant.until
    if known and not _holds(part, {"started_at": _FIRST.isoformat()}):
        since = max(meant.since or _FIRST, min(known) - _MARGIN)
    if known and not _holds(part, {"started_at": _LAST.isoformat()}):
        until = min(meant.until or _LAST, max(known) + _MARGIN)
    return attrs.evolve(meant, since=since, until=until)


_MARGIN = timedelta(milliseconds=1)
"""More than the rounding error of seconds in a float."""


def _time(seconds: Any) -> datetime | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC) if 0 <= seconds < 10**11 else None
