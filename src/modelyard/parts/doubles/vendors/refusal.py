"""A vendor's refusal, and the reading of bodies that may hold anything."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.json import loads


@attrs.frozen
class Refusal:
    """What a vendor says of a request. `param` and `code` are members of some vendors' errors."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


def parsed(raw: bytes | None) -> Any:
    """Return the JSON of a body; None if there is none, or such as the platform refuses: too deep, or a value twice."""
    try:
        return loads(raw, max_structure=len(raw)) if raw else None
    except InvalidInput:
        return None


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return a list of objects; an empty object stands for each item that is none, and an empty list for no list."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def member(value: object, *path: str) -> Any:
    """Return a member of nested objects; None if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def texts(value: object) -> Iterator[str]:
    """Yield every string in JSON data, without the names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)
