"""Conditions on one trial of an evaluation: fields, literals and operators, evaluated as pure values.

What cannot be compared, such as a text with a number or a field that is not there, is neither greater, smaller nor
equal: a condition on it does not hold.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.prediction import Score, ScoreView
from modelyard.domain.evaluation.references import ObjectRef
from modelyard.errors import CallerError

PREFIXES = ("scores.", "inputs.", "output.")


class Expression(Protocol):
    """Something that has a value for a trial; a condition's is True or False."""

    def of(self, trial: ScoredPrediction) -> Any:
        """Its value: JSON data, None where there is none."""
        ...


# ---- operands ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Literal:
    """A value that is the same for every trial."""

    value: Any

    def of(self, trial: ScoredPrediction) -> Any:
        """Its value."""
        return self.value


@attrs.frozen
class Field:
    """A value of the trial: `scores.<scorer>`, `inputs.<name>` or `output.<name>`, and further names after dots.

    A name that itself holds dots is found too. A scorer is named by its object's name, or as `<name>:<version>`.
    Raises `CallerError` for another field.
    """

    path: str

    def __attrs_post_init__(self) -> None:
        if not self.path.startswith(PREFIXES) or self.path in PREFIXES:
            raise CallerError(f"a field of results is one of {', '.join(PREFIXES)} followed by a name")

    @property
    def is_score(self) -> bool:
        """Whether it is the value of a scorer."""
        return self.path.startswith("scores.")

    def of(self, trial: ScoredPrediction) -> Any:
        """Return the value of the field, or None."""
        part, _, rest = self.path.partition(".")
        prediction, scores = trial
        if part == "inputs":
            return _found(prediction.inputs, rest)
        if part == "output":
            return _found(prediction.output.get("value"), rest)
        return _found(_by_key(scores), rest)


def fields_in(value: object) -> Iterator[Field]:
    """Yield the fields that an expression reads."""
    if isinstance(value, Field):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from fields_in(one)
    elif attrs.has(type(value)):
        yield from fields_in(attrs.astuple(value, recurse=False))  # type: ignore[arg-type]


def _by_key(scores: Sequence[Score | ScoreView]) -> Mapping[str, Any]:
    """Return the values of scores under each name of their scorer; of several that share one the last counts."""
    valued = [score for score in scores if "value" in score.value]
    return {key: score.value["value"] for score in valued for key in scorer_keys(score.scorer)}


@lru_cache(maxsize=256)
def scorer_keys(scorer: str) -> tuple[str, str]:
    """Return the short name of a scorer and the one with its version; the string itself where it is not a reference."""
    ref = ObjectRef.parse(scorer)
    return (scorer, scorer) if ref is None else (ref.name, f"{ref.name}:{ref.version or 'latest'}")


def _found(value: Any, path: str) -> Any:
    """Return the value at a path of names joined by dots, trying the longest name first."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = {str(at): item for at, item in enumerate(value)}
    if not isinstance(value, Mapping):
        return None
    if path in value:
        return value[path]
    name = path
    while "." in name:
        name = name.rpartition(".")[0]
        if name in value:
            found = _found(value[name], path[len(name) + 1 :])
            if found is not None:
                return found
    return None


class Target(StrEnum):
    """What a value can be converted to. `exists` asks whether there is one."""

    DOUBLE = "double"
    STRING = "string"
    INT = "int"
    BOOL = "bool"
    EXISTS = "exists"


@attrs.frozen
class Convert:
    """A value as one of another type; None where it cannot be."""

    operand: Expression
    to: Target

    def of(self, trial: ScoredPrediction) -> Any:
        """Return the converted value."""
        value = self.operand.of(trial)
        if self.to is Target.EXISTS:
            return value is not None
        return None if value is None else _CONVERT[self.to](value)


def _double(value: Any) -> float | None:
    if not isinstance(value, bool | int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _int(value: Any) -> int | None:
    if isinstance(value, int):
        return int(value)
    number = _double(value)
    return None if number is None else math.trunc(number)


def _bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return bool(value) if isinstance(value, bool | int | float) else None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


_CONVERT = {Target.DOUBLE: _double, Target.INT: _int, Target.BOOL: _bool, Target.STRING: _string}


# ---- conditions --------------------------------------------------------------------------------------------------


class Comparator(StrEnum):
    """How two values are compared."""

    EQ = "$eq"
    GT = "$gt"
    GTE = "$gte"
    LT = "$lt"
    LTE = "$lte"


@attrs.frozen
class Compare:
    """Whether the left value is equal to, greater or smaller than the right one. A bool counts as 0 or 1."""

    comparison: Comparator
    left: Expression
    right: Expression

    def of(self, trial: ScoredPrediction) -> bool:
        """Return whether it holds."""
        left, right = self.left.of(trial), self.right.of(trial)
        if self.comparison is Comparator.EQ:
            return _equal(left, right)
        if _is_number(left) is not _is_number(right) or not isinstance(left, str | int | float):
            return False
        if not isinstance(right, str | int | float):
            return False
        return _ORDERS[self.comparison](left, right)


def _equal(left: Any, right: Any) -> bool:
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    return canonical_json(left) == canonical_json(right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


_ORDERS: Mapping[Comparator, Callable[[Any, Any], bool]] = {
    Comparator.GT: operator.gt,
    Comparator.GTE: operator.ge,
    Comparator.LT: operator.lt,
    Comparator.LTE: operator.le,
}


@attrs.frozen
class In:
    """Whether the value equals one of several."""

    operand: Expression
    among: tuple[Expression, ...]

    def of(self, trial: ScoredPrediction) -> bool:
        """Return whether it holds."""
        value = self.operand.of(trial)
        return any(_equal(value, one.of(trial)) for one in self.among)


@attrs.frozen
class ContainsText:
    """Whether a text holds another."""

    operand: Expression
    part: Expression
    case_insensitive: bool = False

    def of(self, trial: ScoredPrediction) -> bool:
        """Return whether it holds; False for a value that is not a string."""
        whole, part = self.operand.of(trial), self.part.of(trial)
        if not isinstance(whole, str) or not isinstance(part, str):
            return False
        return part.casefold() in whole.casefold() if self.case_insensitive else part in whole


@attrs.frozen
class AllOf:
    """Whether every condition holds; so it does without any."""

    conditions: tuple[Expression, ...]

    def of(self, trial: ScoredPrediction) -> bool:
        """Return whether it holds."""
        return all(truth(condition.of(trial)) for condition in self.conditions)


@attrs.frozen
class AnyOf:
    """Whether some condition holds."""

    conditions: tuple[Expression, ...]

    def of(self, trial: ScoredPrediction) -> bool:
        """Return whether it holds."""
        return any(truth(condition.of(trial)) for condition in self.conditions)


@attrs.frozen
class Not:
    """Whether the condition does not hold."""

    condition: Expression

    def of(self, trial: ScoredPrediction) -> bool:
        """Return whether it holds."""
        return not truth(self.condition.of(trial))


def truth(value: Any) -> bool:
    """Return whether a value counts as a condition that holds: only True does."""
    return value is True
