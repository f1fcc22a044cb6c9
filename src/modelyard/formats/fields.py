"""Plain JSON data, read strictly: nothing is coerced, and what does not fit is named at its place.

A parser takes a value and returns it, or raises `InvalidInput` whose location begins at that value; `field` and `each`
put their own step in front. So data that fit pay nothing for knowing where they might not.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from modelyard.errors import InvalidInput, Problem

T = TypeVar("T")
D = TypeVar("D")
Parser = Callable[[Any], T]


def refused(msg: str, type_: str) -> InvalidInput:
    """What a parser raises about the value itself."""
    return InvalidInput([Problem((), msg, type_)])


def below(wrong: InvalidInput, *steps: str | int) -> InvalidInput:
    """The same problems, seen from further outside."""
    return InvalidInput([Problem((*steps, *problem.loc), problem.msg, problem.type) for problem in wrong.problems])


def required(parse: Parser[T], owner: Mapping[str, Any], name: str) -> T:
    """A member that must be there; null is as good as absent."""
    if owner.get(name) is None:
        raise InvalidInput.at(name, msg="is required", type="missing")
    return field(parse, owner, name)


def optional(parse: Parser[T], owner: Mapping[str, Any], name: str, default: D) -> T | D:
    """A member that may be absent or null."""
    return default if owner.get(name) is None else field(parse, owner, name)


def field(parse: Parser[T], owner: Mapping[str, Any], name: str) -> T:
    """A member that is there."""
    try:
        return parse(owner[name])
    except InvalidInput as wrong:
        raise below(wrong, name) from None


def each(parse: Parser[T], values: Any) -> tuple[T, ...]:
    """Every item of a list."""
    if type(values) not in (list, tuple):
        raise refused("must be a list", "list_type")
    return tuple(numbered(parse, values))


def numbered(parse: Parser[T], values: Iterable[Any]) -> list[T]:
    """Every value, with its number in what is raised about it."""
    done: list[T] = []
    try:
        for value in values:
            done.append(parse(value))
    except InvalidInput as wrong:
        raise below(wrong, len(done)) from None
    return done


def mapping(value: Any) -> Mapping[str, Any]:
    """An object, with whatever members."""
    if not isinstance(value, Mapping):
        raise refused("must be an object", "dict_type")
    return value


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise refused("must be a string", "string_type")
    return value


def number(value: Any) -> float:
    """A finite number."""
    if type(value) not in (int, float):
        raise refused("must be a number", "float_type")
    if not math.isfinite(value):
        raise refused("must be a finite number", "finite_number")
    return float(value)


def whole(value: Any) -> int:
    """A whole number."""
    if type(value) is not int:
        raise refused("must be a whole number", "int_type")
    return value


def natural(value: Any) -> int:
    """A whole number, 0 or more."""
    if whole(value) < 0:
        raise refused("must be 0 or more", "greater_than_equal")
    return int(value)
