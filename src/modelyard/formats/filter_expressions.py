"""Filter expressions as clients write them: `{"$gt": [{"$getField": "scores.judge"}, {"$literal": 0.5}]}`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from modelyard.domain.evaluation.filters import (
    ORDERS,
    Expression,
    Field,
    Literal,
    Operation,
    Target,
    all_of,
    any_of,
    contains_text,
    convert,
    equal,
    equals_one_of,
    no,
)
from modelyard.errors import InvalidInput, located_at
from modelyard.formats.converter import either

MAX_PARTS = 1000
MAX_FIELD = 1000


def parse_query(query: Mapping[str, Any], field: Callable[[str], Expression] = Field) -> Expression:
    """Parse the condition of `{"$expr": ...}`; `field` makes its fields. Raises `InvalidInput` for what is not an
    expression or has more than `MAX_PARTS` parts, and `CallerError` for an unknown field."""
    if list(query) != ["$expr"]:
        raise InvalidInput.at(msg="must be an object with the one member $expr")
    return _Reader(field).within("$expr", query["$expr"], _CONDITIONS)


class _Reader:
    def __init__(self, field: Callable[[str], Expression]) -> None:
        self._parts, self.field = 0, field

    def within(self, step: str | int, value: Any, known: "Mapping[str, _Part]") -> Expression:
        with located_at(step):
            return self._part(value, known)

    def _part(self, value: Any, known: "Mapping[str, _Part]") -> Expression:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidInput.at(msg=f"must have at most {MAX_PARTS} parts in all", type="too_long")
        name = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
        if name not in known:
            raise InvalidInput.at(msg=f"must be an object with one of {either(list(known))}")
        assert name is not None
        with located_at(name):
            return known[name](self, value[name])

    def operand(self, step: str | int, value: Any) -> Expression:
        return self.within(step, value, _OPERANDS)

    def operands(self, value: Any, count: int | None = None) -> tuple[Expression, ...]:
        return tuple(self.operand(at, item) for at, item in enumerate(_list(value, count)))


_Part = Callable[[_Reader, Any], Expression]


def _list(value: Any, count: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise InvalidInput.at(msg="must be a list" if count is None else f"must be a list of {count}", type="list_type")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_FIELD:
        raise InvalidInput.at(msg=f"must be a string of at most {MAX_FIELD} characters", type="string_type")
    return value


def _members(value: Any, *names: str) -> list[Any]:
    if not isinstance(value, dict) or any(name not in value for name in names):
        raise InvalidInput.at(msg=f"must be an object with {' and '.join(names)}", type="dict_type")
    return [value[name] for name in names]


def _convert(reader: _Reader, value: Any) -> Expression:
    operand, to = _members(value, "input", "to")
    if to not in list(Target):
        raise InvalidInput.at(
            "to", msg=f"must be {either([repr(target.value) for target in Target])}", type="literal_error"
        )
    return Operation(partial(convert, Target(to)), (reader.operand("input", operand),))


def _contains(reader: _Reader, value: Any) -> Expression:
    whole, part = _members(value, "input", "substr")
    insensitive = value.get("case_insensitive")
    if insensitive not in (None, True, False):
        raise InvalidInput.at("case_insensitive", msg="must be true or false", type="bool_type")
    operands = (reader.operand("input", whole), reader.operand("substr", part))
    return Operation(partial(contains_text, ignore_case=insensitive is True), operands)


def _in(reader: _Reader, value: Any) -> Expression:
    operand, among = _list(value, 2)
    with located_at(1):
        several = reader.operands(among)
    return Operation(equals_one_of, (reader.operand(0, operand), *several))


def _of(function: Callable[..., bool], count: int | None = None) -> _Part:
    return lambda reader, value: Operation(function, reader.operands(value, count))


_CONDITIONS: Mapping[str, _Part] = {
    "$and": _of(all_of),
    "$or": _of(any_of),
    "$not": _of(no, 1),
    "$eq": _of(equal, 2),
    **{name: _of(order, 2) for name, order in ORDERS.items()},
    "$in": _in,
    "$contains": _contains,
}
_OPERANDS: Mapping[str, _Part] = {
    "$getField": lambda reader, value: reader.field(_text(value)),
    "$literal": lambda _, value: Literal(value),
    "$convert": _convert,
    **_CONDITIONS,
}
