"""JSON of other servers, read leniently: only the members that are used are checked, up to the first fault.

A parser takes a value and returns it, or raises `InvalidInput` whose location begins at that value; `field` and `each`
prepend their own step. For JSON that must fit a class as a whole there is `modelyard.formats.converter`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from modelyard.errors import InvalidInput, Problem

T = TypeVar("T")
D = TypeVar("D")
Parser = Callable[[Any], T]


def refused(msg: str, type_: str) -> InvalidInput:
    """Return the exception of a parser for the value itself."""
    return InvalidInput([Problem((), msg, type_)])


def required(parse: Parser[T], owner: Mapping[str, Any], name: str) -> T:
    """Parse a member that must be there; null is as good as absent."""
    if owner.get(name) is None:
        raise InvalidInput.at(name, msg="is required", type="missing")
    return field(parse, owner, name)


def optional(parse: Parser[T], owner: Mapping[str, Any], name: str, default: D) -> T | D:
    """Parse a member that may be absent or null."""
    return default if owner.get(name) is None else field(parse, owner, name)


def field(parse: Parser[T], owner: Mapping[str, Any], name: str) -> T:
    """Parse a member that is there."""
    try:
        return parse(owner[name])
    except InvalidInput as wrong:
        raise wrong.below(name) from None


def each(parse: Parser[T], values: Any) -> tuple[T, ...]:
    """Parse every item of a list."""
    if type(values) not in (list, tuple):
        raise refused("must be a list", "list_type")
    return tuple(numbered(parse, values))


def numbered(parse: Parser[T], values: Iterable[Any]) -> list[T]:
    """Parse every value; what is raised is located at its number."""
    done: list[T] = []
    try:
        for value in values:
            done.append(parse(value))
    except InvalidInput as wrong:
        raise wrong.below(len(done)) from None
    return done


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object, with any members."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise refused("must be an object", "dict_type")
    return value


def text(value: Any) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise refused("must be a string", "string_type")
    return value


def number(value: Any) -> float:
    """Return a finite number."""
    if type(value) not in (int, float):
        raise refused("must be a number", "float_type")
    if not math.isfinite(value):
        raise refused("must be a finite number", "finite_number")
    return float(value)


def whole(value: Any) -> int:
    """Return a whole number."""
    if type(value) is not int:
        raise refused("must be a whole number", "int_type")
    return value


def natural(value: Any) -> int:
    """Return a whole number, 0 or more."""
    if whole(value) < 0:
        raise refused("must be 0 or more", "greater_than_equal")
    return int(value)
