"""Conditions on one trial of an evaluation: fields, literals and operators, evaluated as pure values. Values that
cannot be compared, such as a string with a number, or a missing field, are neither greater, smaller nor equal: a
condition on them does not hold."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import Score, ScoreView
from modelyard.errors import CallerError

PREFIXES = ("scores.", "inputs.", "output.")


class Expression(ABC):
    """A value of a trial. Operators make conditions of it, which `&`, `|` and `~` join.

    (field("scores.right") == True) & ~field("output.answer").contains("sorry")
    """

    @abstractmethod
    def of(self, trial: ScoredPrediction) -> Any:
        """Return its value for a trial: JSON data, or None; that of a condition is True or False."""

    @property
    def fields(self) -> Iterator["Field"]:
        return iter(())

    def __eq__(self, other: object) -> "Operation":  # type: ignore[override]
        return operation(equal, self, other)

    def __ne__(self, other: object) -> "Operation":  # type: ignore[override]
        return ~(self == other)

    def __lt__(self, other: object) -> "Operation":
        return operation(ORDERS["$lt"], self, other)

    def __le__(self, other: object) -> "Operation":
        return operation(ORDERS["$lte"], self, other)

    def __gt__(self, other: object) -> "Operation":
        return operation(ORDERS["$gt"], self, other)

    def __ge__(self, other: object) -> "Operation":
        return operation(ORDERS["$gte"], self, other)

    def __and__(self, other: "Expression") -> "Operation":
        return operation(all_of, self, other)

    def __or__(self, other: "Expression") -> "Operation":
        return operation(any_of, self, other)

    def __invert__(self) -> "Operation":
        return operation(no, self)

    def is_in(self, values: Sequence[Any]) -> "Operation":
        """Return the condition that it equals one of these values."""
        return operation(equals_one_of, self, *values)

    def contains(self, part: str, *, ignore_case: bool = False) -> "Operation":
        """Return the condition that it is a string that contains another."""
        return operation(partial(contains_text, ignore_case=ignore_case), self, part)

    def __bool__(self) -> bool:
        raise TypeError("a condition has no value without a trial; join conditions with &, | and ~, in parentheses")

    def __hash__(self) -> int:
        return object.__hash__(self)


@attrs.frozen(eq=False)
class Literal(Expression):
    value: Any

    def of(self, trial: ScoredPrediction) -> Any:
        return self.value


@attrs.frozen(eq=False)
class Field(Expression):
    """A value of the trial: `scores.<scorer>`, `inputs.<name>` or `output.<name>`, and further names after dots. A name
    that itself holds dots is found too. A scorer is named by its object's name, or as `<name>:<version>`. Raises
    `CallerError` for another field."""

    path: str

    def __attrs_post_init__(self) -> None:
        if not self.path.startswith(PREFIXES) or self.path in PREFIXES:
            first, _, name = self.path.partition(".")
            near = get_close_matches(f"{first}.", PREFIXES, n=1) if name else []
            hint = f"; did you mean {near[0]}{name}?" if near else ""
            raise CallerError(f"a field of results is one of {', '.join(PREFIXES)} followed by a name{hint}")

    @property
    def fields(self) -> Iterator["Field"]:
        yield self

    @property
    def is_score(self) -> bool:
        """Whether it is the value of a scorer."""
        return self.path.startswith("scores.")

    def of(self, trial: ScoredPrediction) -> Any:
        """Return the value of the field, or None."""
        part, _, rest = self.path.partition(".")
        prediction, scores = trial
        if part == "inputs":
            return value_at(prediction.inputs, rest)
        if part == "output":
            return value_at(prediction.output.get("value"), rest)
        return value_at(_by_key(scores), rest)


def field(path: str) -> Expression:
    """Return the value of a trial to filter by: `scores.<scorer>`, `inputs.<name>` or `output.<name>`.

        platform.evaluations.results([run], where=field("scores.right") == True)

    Further names, after dots, lead into objects. A scorer is named by its name, or as `<name>:<version>`. Raises
    `CallerError` for another field.
    """
    return Field(path)


@attrs.frozen(eq=False)
class Operation(Expression):
    """A function of other values of the trial."""

    function: Callable[..., Any]
    operands: tuple[Expression, ...]

    def of(self, trial: ScoredPrediction) -> Any:
        return self.function(*[one.of(trial) for one in self.operands])

    @property
    def fields(self) -> Iterator[Field]:
        for one in self.operands:
            yield from one.fields


def operation(function: Callable[..., Any], *operands: object) -> Operation:
    return Operation(function, tuple(one if isinstance(one, Expression) else Literal(one) for one in operands))


# ---- looking values up -------------------------------------------------------------------------------------------


def _by_key(scores: Sequence[Score | ScoreView]) -> Mapping[str, Any]:
    valued = [score for score in scores if "value" in score.value]
    return {key: score.value["value"] for score in valued for key in scorer_keys(score.scorer)}


@lru_cache(maxsize=256)
def scorer_keys(scorer: str) -> tuple[str, str]:
    ref = ObjectRef.parse(scorer)
    return (scorer, scorer) if ref is None else (ref.name, f"{ref.name}:{ref.version or 'latest'}")


def value_at(value: Any, path: str) -> Any:
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
            found = value_at(value[name], path[len(name) + 1 :])
            if found is not None:
                return found
    return None


# ---- converting --------------------------------------------------------------------------------------------------


class Target(StrEnum):
    """The type that a value is converted to. `exists` asks whether there is a value."""

    DOUBLE = "double"
    STRING = "string"
    INT = "int"
    BOOL = "bool"
    EXISTS = "exists"


def convert(to: Target, value: Any) -> Any:
    if to is Target.EXISTS:
        return value is not None
    return None if value is None else _CONVERT[to](value)


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def equal(left: Any, right: Any) -> bool:
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    return canonical_json(left) == canonical_json(right)


def _ordered(order: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    if _is_number(left) is not _is_number(right) or not isinstance(left, str | int | float):
        return False
    return isinstance(right, str | int | float) and order(left, right)


ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    f"${name}": partial(_ordered, getattr(operator, python))
    for name, python in (("gt", "gt"), ("gte", "ge"), ("lt", "lt"), ("lte", "le"))
}
"""A bool counts as 0 or 1."""


def equals_one_of(value: Any, *among: Any) -> bool:
    return any(equal(value, one) for one in among)


def contains_text(whole: Any, part: Any, *, ignore_case: bool = False) -> bool:
    if not isinstance(whole, str) or not isinstance(part, str):
        return False
    return part.casefold() in whole.casefold() if ignore_case else part in whole


def all_of(*conditions: Any) -> bool:
    return all(map(truth, conditions))


def any_of(*conditions: Any) -> bool:
    return any(map(truth, conditions))


def no(condition: Any) -> bool:
    return not truth(condition)


def truth(value: Any) -> bool:
    return value is True
