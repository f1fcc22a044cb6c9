"""Exceptions of cattrs, as located problems."""

from collections.abc import Iterator
from typing import Any

import attrs
from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError

from modelyard.errors import InvalidInput, Problem, nearest

UNKNOWN = "extra_forbidden"
"""The type of the problem that a member is not known."""

FAULTS = (InvalidInput, ValueError, BaseValidationError, ForbiddenExtraKeysError)


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
        known = [field.name for field in attrs.fields(error.cl)]
        says, alone = ("is not known", "; leave it out") if called is None else (f"is not a parameter of {called}", "")
        for name in (name for name in value if name in error.extra_fields):
            yield Problem((*loc, name), says + (nearest(name, known) or nearest(name, idle, 0.85) or alone), UNKNOWN)
    elif isinstance(error, ValueError):
        yield Problem(loc, str(error))
    else:
        raise error


def _ordered(group: BaseValidationError, value: Any) -> list[tuple[BaseException, str | None]]:
    """Pair the exceptions of an instance with their fields. Unknown members come first, as they may be misspelt ones,
    then missing ones, wrong types in the order in which they were sent, and broken constraints."""
    sent = {name: at for at, name in enumerate(value)}
    found = [(inner, _field_of(inner)) for inner in group.exceptions]

    def order(one: tuple[BaseException, str | None]) -> tuple[bool, bool, int]:
        unknown = isinstance(one[0], ForbiddenExtraKeysError)
        return not unknown, isinstance(one[0], ValueError), sent.get(one[1], -1)

    return sorted(found, key=order)


def _field_of(error: BaseException) -> str | None:
    notes = (note for note in getattr(error, "__notes__", ()) if isinstance(note, AttributeValidationNote))
    return next((note.name for note in notes), None)
