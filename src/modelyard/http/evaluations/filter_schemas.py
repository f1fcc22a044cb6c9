"""Filter expressions as clients write them: `{"$gt": [{"$getField": "scores.judge"}, {"$literal": 0.5}]}`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelyard.domain.evaluation.filters import (
    AllOf,
    AnyOf,
    Compare,
    Comparison,
    Contains,
    Convert,
    Expression,
    Field,
    In,
    Literal,
    Not,
    Target,
)
from modelyard.errors import Problem
from modelyard.formats.converter import Wrong, below, either

MAX_PARTS = 1000
MAX_FIELD = 1000


def parse_query(query: Mapping[str, Any]) -> Expression:
    """The condition of `{"$expr": ...}`.

    Raises `Wrong` for what is no expression or has more than `MAX_PARTS` parts, and `CallerError` for a field that
    results do not have.
    """
    if list(query) != ["$expr"]:
        raise Wrong(Problem((), "must be an object with the one member $expr"))
    return _Reader().within("$expr", query["$expr"], _CONDITIONS)


class _Reader:
    """Reads one expression, and counts its parts."""

    def __init__(self) -> None:
        self._parts = 0

    def within(self, step: str | int, value: Any, known: "Mapping[str, _Part]") -> Expression:
        """The part at a step below; its problems are told there."""
        try:
            return self._part(value, known)
        except Wrong as wrong:
            raise Wrong(*below((step,), wrong.problems)) from None

    def _part(self, value: Any, known: "Mapping[str, _Part]") -> Expression:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Wrong(Problem((), f"must have at most {MAX_PARTS} parts in all", "too_long"))
        name = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
        if name not in known:
            raise Wrong(Problem((), f"must be an object with one of {either(list(known))}"))
        assert name is not None
        try:
            return known[name](self, value[name])
        except Wrong as wrong:
            raise Wrong(*below((name,), wrong.problems)) from None

    def operand(self, step: str | int, value: Any) -> Expression:
        """An operand, or a condition in its place."""
        return self.within(step, value, _OPERANDS)

    def operands(self, value: Any, count: int | None = None) -> tuple[Expression, ...]:
        """A list of operands, of so many where a number is given."""
        return tuple(self.operand(at, item) for at, item in enumerate(_list(value, count)))


_Part = Callable[[_Reader, Any], Expression]


def _list(value: Any, count: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise Wrong(Problem((), "must be a list" if count is None else f"must be a list of {count}", "list_type"))
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_FIELD:
        raise Wrong(Problem((), f"must be a string of at most {MAX_FIELD} characters", "string_type"))
    return value


def _members(value: Any, *names: str) -> list[Any]:
    if not isinstance(value, dict) or any(name not in value for name in names):
        raise Wrong(Problem((), f"must be an object with {' and '.join(names)}", "dict_type"))
    return [value[name] for name in names]


def _convert(reader: _Reader, value: Any) -> Expression:
    operand, to = _members(value, "input", "to")
    if to not in list(Target):
        raise Wrong(Problem(("to",), f"must be {either([repr(target.value) for target in Target])}", "literal_error"))
    return Convert(reader.operand("input", operand), Target(to))


def _contains(reader: _Reader, value: Any) -> Expression:
    whole, part = _members(value, "input", "substr")
    insensitive = value.get("case_insensitive")
    if insensitive not in (None, True, False):
        raise Wrong(Problem(("case_insensitive",), "must be true or false", "bool_type"))
    return Contains(reader.operand("input", whole), reader.operand("substr", part), insensitive is True)


def _in(reader: _Reader, value: Any) -> Expression:
    operand, among = _list(value, 2)
    try:
        several = reader.operands(among)
    except Wrong as wrong:
        raise Wrong(*below((1,), wrong.problems)) from None
    return In(reader.operand(0, operand), several)


def _not(reader: _Reader, value: Any) -> Expression:
    return Not(*reader.operands(value, 1))


def _compare(comparison: Comparison) -> _Part:
    return lambda reader, value: Compare(comparison, *reader.operands(value, 2))


_CONDITIONS: Mapping[str, _Part] = {
    "$and": lambda reader, value: AllOf(reader.operands(value)),
    "$or": lambda reader, value: AnyOf(reader.operands(value)),
    "$not": _not,
    **{comparison.value: _compare(comparison) for comparison in Comparison},
    "$in": _in,
    "$contains": _contains,
}
_OPERANDS: Mapping[str, _Part] = {
    "$getField": lambda _, value: Field(_text(value)),
    "$literal": lambda _, value: Literal(value),
    "$convert": _convert,
    **_CONDITIONS,
}
