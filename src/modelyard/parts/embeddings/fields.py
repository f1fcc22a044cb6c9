"""JSON of other programs, read leniently: only the members that are used are checked, up to the first fault. A parser
takes a value and returns it, or raises `InvalidInput` located at that value; `each` prepends its own step.
For JSON that must fit a class as a whole there is `modelyard.formats.converter`."""

from collections.abc import Callable
from typing import Any, TypeVar

from modelyard.errors import InvalidInput, Problem

T = TypeVar("T")


def refused(msg: str, type_: str) -> InvalidInput:
    return InvalidInput([Problem((), msg, type_)])


def each(parse: Callable[[Any], T], values: Any) -> tuple[T, ...]:
    if type(values) not in (list, tuple):
        raise refused("must be a list", "list_type")
    done: list[T] = []
    try:
        for value in values:
            done.append(parse(value))
    except InvalidInput as wrong:
        raise wrong.below(len(done)) from None
    return tuple(done)
