"""Exceptions of cattrs, as located problems."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError

from modelyard.errors import InvalidInput, Problem, nearest

UNKNOWN = "extra_forbidden"
"""The type of the problem that a member is not known."""

FAULTS = (InvalidInput, ValueError, BaseValidationError, ForbiddenExtraKeysError)


class Unknown(str):
    """What is said of unknown members. `shown` says which one may be meant: found late, since it takes long."""

    shown: Callable[[Any], str]


def problems_in(error: BaseException, value: Any, loc: tuple[str | int, ...] = ()) -> Iterator[Problem]:
    """Yield the leaves of cattrs's tree of exceptions as problems located below `loc`; `value` was structured there."""
    if isinstance(error, BaseValidationError):
        for inner, name in _ordered(error, value):
            if name is None:
                yield from problems_in(inner, value, loc)
            elif name in value:
                yield from problems_in(inner, value[name], (*loc, name))
            else:
                yield Problem((*loc, name), "is required", "missing")
    elif isinstance(error, InvalidInput):
        for problem in error.problems:
            yield Problem((*loc, *problem.loc), problem.msg, problem.type)
    elif isinstance(error, ForbiddenExtraKeysError):
        called, ignored = getattr(error.cl, "CALLED", None), getattr(error.cl, "IGNORED", None)
        idle = ignored if isinstance(ignored, dict) else ()
        says, alone = ("is not known", "; leave it out") if called is None else (f"is not a parameter of {called}", "")
        said = Unknown(says + alone)
        said.shown = partial(_meant, says, alone, error.cl, idle)
        for name in (name for name in value if name in error.extra_fields):
            yield Problem((*loc, name), said, UNKNOWN)
    elif isinstance(error, ValueError):
        yield Problem(loc, str(error))
    else:
        raise error


def _ordered(group: BaseValidationError, value: Any) -> list[tuple[BaseException, str | None]]:
    """Pair the exceptions of an instance with their fields. Unknown members come first, as they may be misspelt ones,
    then missing ones, wrong types in the order in which they were sent, and broken constraints."""
    sent = {name: at for at, name in enumerate(value)}
    notes = [[getattr(one, "name", None) for one in getattr(inner, "__notes__", ())] for inner in group.exceptions]
    found = [(inner, next(filter(None, names), None)) for inner, names in zip(group.exceptions, notes, strict=True)]

    def order(one: tuple[BaseException, str | None]) -> tuple[bool, bool, int]:
        unknown = isinstance(one[0], ForbiddenExtraKeysError)
        return not unknown, isinstance(one[0], ValueError), sent.get(one[1], -1)

    return sorted(found, key=order)


def _meant(says: str, alone: str, cls: Any, idle: Any, name: str) -> str:
    return says + (nearest(name, [one.name for one in attrs.fields(cls)]) or nearest(name, idle, 0.85) or alone)
