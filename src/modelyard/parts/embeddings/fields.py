"""JSON of other servers, read leniently: only the members that are used are checked, up to the first fault. A parser
takes a value and returns it, or raises `InvalidInput` located at that value; `field` and `each` prepend their own step.
For JSON that must fit a class as a whole there is `modelyard.formats.converter`."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from modelyard.errors import InvalidInput, Problem

T = TypeVar("T")
D = TypeVar("D")
Parser = Callable[[Any], T]


def refused(msg: str, type_: str) -> InvalidInput:
    return InvalidInput([Problem((), msg, type_)])


def required(parse: Parser[T], owner: Mapping[str, Any], name: str) -> T:
    if owner.get(name) is None:
        raise InvalidInput.at(name, msg="is required", type="missing")
    return field(parse, owner, name)


def optional(parse: Parser[T], owner: Mapping[str, Any], name: str, default: D) -> T | D:
    return default if owner.get(name) is None else field(parse, owner, name)


def field(parse: Parser[T], owner: Mapping[str, Any], name: str) -> T:
    try:
        return parse(owner[name])
    except InvalidInput as wrong:
        raise wrong.below(name) from None


def each(parse: Parser[T], values: Any) -> tuple[T, ...]:
    if type(values) not in (list, tuple):
        raise refused("must be a list", "list_type")
    return tuple(numbered(parse, values))


def numbered(parse: Parser[T], values: Iterable[Any]) -> list[T]:
    done: list[T] = []
    try:
        for value in values:
            done.append(parse(value))
    except InvalidInput as wrong:
        raise wrong.below(len(done)) from None
    return done


def mapping(value: Any) -> Mapping[str, Any]:
    if type(value) is not dict and not isinstance(value, Mapping):
        raise refused("must be an object", "dict_type")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise refused("must be a string", "string_type")
    return value


def number(value: Any) -> float:
    if type(value) not in (int, float):
        raise refused("must be a number", "float_type")
    if not math.isfinite(value):
        raise refused("must be a finite number", "finite_number")
    return float(value)


def whole(value: Any) -> int:
    if type(value) is not int:
        raise refused("must be a whole number", "int_type")
    return value


def natural(value: Any) -> int:
    if whole(value) < 0:
        raise refused("must be 0 or more", "greater_than_equal")
    return int(value)
