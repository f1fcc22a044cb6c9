"""Matching of requests to recordings, and the differences from the nearest recording if none matches."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from modelyard.domain.completion import CompletionRequest
from modelyard.errors import InvalidInput
from modelyard.formats.converter import unstructure
from modelyard.parts.doubles.cassette.request_key import FIELDS, RequestKey, prompt_part, request_of

_MOST_SHOWN = 6
_WIDTH = 60
_COMPARED = 4000


class Match:
    """The compared part of requests: everything, all but the fields to `ignore`, or what `match` returns. Raises
    `InvalidInput` for a field that no request has, and if both are given."""

    def __init__(self, match: Callable[[CompletionRequest], object] | None, ignore: Collection[str]) -> None:
        unknown = sorted(set(ignore) - FIELDS)
        if unknown:
            raise InvalidInput.at("ignore", msg=f"{unknown[0]!r} is none of {', '.join(sorted(FIELDS))}")
        if match is not None and ignore:
            raise InvalidInput.at("ignore", msg="cannot be combined with match, which returns all that is compared")
        self._match, self._ignored = match, frozenset(ignore)

    def compared(self, requested: RequestKey) -> Any:
        if self._match is None:
            return {name: value for name, value in requested.items() if name not in self._ignored}
        return unstructure(self._match(request_of(requested)))

    def key(self, requested: RequestKey) -> str:
        try:
            return json.dumps(self.compared(requested), sort_keys=True)
        except TypeError as error:
            raise InvalidInput.at(
                "match", msg=f"must return strings, numbers, lists, dicts or messages: {error}"
            ) from None

    def prompt_key(self, requested: RequestKey) -> str:
        return self.key(prompt_part(requested))

    def nearest(self, recorded: Sequence[RequestKey], requested: RequestKey) -> tuple[int, list[str]]:
        wanted, text = self.compared(requested), self.key(requested)
        return min(
            ((at, list(differences(self.compared(one), wanted))) for at, one in enumerate(recorded)),
            key=lambda found: (len(found[1]), -_likeness(self.key(recorded[found[0]]), text)),
        )


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one[-_COMPARED:], other[-_COMPARED:]).quick_ratio()


def differences(recorded: Any, requested: Any, *loc: str | int) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(requested, dict):
        for name in [*recorded, *(name for name in requested if name not in recorded)]:
            yield from _member(recorded, requested, name, loc)
    elif isinstance(recorded, list) and isinstance(requested, list):
        yield from differences(dict(enumerate(recorded)), dict(enumerate(requested)), *loc)
    elif recorded != requested:
        yield f"{_where(loc)}recorded {_shown(recorded, requested)}, requested {_shown(requested, recorded)}"


def _member(
    recorded: dict[Any, Any], requested: dict[Any, Any], name: Any, loc: tuple[str | int, ...]
) -> Iterator[str]:
    if name not in requested:
        yield f"{_where((*loc, name))}recorded {_shown(recorded[name])}, not requested"
    elif name not in recorded:
        yield f"{_where((*loc, name))}not recorded, requested {_shown(requested[name])}"
    else:
        yield from differences(recorded[name], requested[name], *loc, name)


def _where(loc: tuple[str | int, ...]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""


def _shown(value: Any, other: Any = None) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    start = 0
    if isinstance(value, str) and isinstance(other, str):
        start = max(0, _common_length(value, other) - _WIDTH // 2)
    cut = f"{'...' if start else ''}{text[start : start + _WIDTH]}{'...' if len(text) > start + _WIDTH else ''}"
    return repr(cut) if isinstance(value, str) else cut


def _common_length(one: str, other: str) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def in_words(differing: Sequence[str]) -> str:
    more = f"; and {len(differing) - _MOST_SHOWN} more" if len(differing) > _MOST_SHOWN else ""
    return "; ".join(differing[:_MOST_SHOWN]) + more
