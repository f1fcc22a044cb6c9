"""What servers and gateways put around an answer, or around each chunk of it: `{"code": 0, "data": {"choices": ...}}`.

Envelopes are not named: what is looked for may stand in any member, also as JSON text.
"""

import json
from collections.abc import Mapping, Set
from typing import Any

from modelyard.parts.upstream.answers.values import objects_of

_DEEPEST = 3
"""How many objects may stand around an answer."""
_JSON = json.JSONDecoder(strict=False)


def enclosed(owner: Mapping[str, Any], names: Set[str], deepest: int = _DEEPEST) -> list[Mapping[str, Any]]:
    """Return the objects among the members of another one, or in lists of it, that have a member of these names, or
    enclose one that has it.

    >>> enclosed({"code": 0, "data": {"choices": []}}, {"choices"})
    [{'choices': []}]
    """
    inner = [one for value in owner.values() for one in _objects(value)]
    return [one for one in inner if not names.isdisjoint(one) or (deepest > 1 and enclosed(one, names, deepest - 1))]


def _objects(value: Any) -> list[Mapping[str, Any]]:
    given = _parsed(value) if isinstance(value, str) else value
    return [] if isinstance(given, list) and given and not isinstance(given[0], Mapping) else objects_of(given)


def _parsed(text: str) -> Any:
    if not text.startswith(("{", "[{")):
        return None
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
