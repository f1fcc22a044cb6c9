"""Which recording answers a request, and what differs from the nearest where none does."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from modelyard.domain.completion import CompletionRequest
from modelyard.errors import InvalidInput
from modelyard.formats.converter import unstructure
from modelyard.testing.cassette.request_key import FIELDS, RequestKey, prompt_part, request_of

_MOST_SHOWN = 6
_WIDTH = 60
_COMPARED = 4000


class Match:
    """What of requests is compared: everything, all but the fields to `ignore`, or what `match` makes of a request.

    Raises `InvalidInput` for a field that no request has, and for both at once.
    """

    def __init__(self, match: Callable[[CompletionRequest], object] | None, ignore: Collection[str]) -> None:
        unknown = sorted(set(ignore) - FIELDS)
        if unknown:
            raise InvalidInput.at("ignore", msg=f"{unknown[0]!r} is none of {', '.join(sorted(FIELDS))}")
        if match is not None and ignore:
            raise InvalidInput.at("ignore", msg="cannot be given beside match, which says all that is compared")
        self._match, self._ignored = match, frozenset(ignore)

    def compared(self, asked: RequestKey) -> Any:
        """JSON data: requests that agree in it are the same."""
        if self._match is None:
            return {name: value for name, value in asked.items() if name not in self._ignored}
        return unstructure(self._match(request_of(asked)))

    def key(self, asked: RequestKey) -> str:
        """One text for everything that is compared. Raises `InvalidInput` for a match that is no JSON data."""
        try:
            return json.dumps(self.compared(asked), sort_keys=True)
        except TypeError as error:
            raise InvalidInput.at(
                "match", msg=f"must return texts, numbers, lists, dicts or messages: {error}"
            ) from None

    def prompt_key(self, asked: RequestKey) -> str:
        """The same for what tells how long the prompt is."""
        return self.key(prompt_part(asked))

    def nearest(self, recorded: Sequence[RequestKey], asked: RequestKey) -> tuple[int, list[str]]:
        """The place of the recorded request that comes nearest, and what differs from it, a sentence each."""
        wanted, text = self.compared(asked), self.key(asked)
        return min(
            ((at, list(differences(self.compared(one), wanted))) for at, one in enumerate(recorded)),
            key=lambda found: (len(found[1]), -_likeness(self.key(recorded[found[0]]), text)),
        )


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one[-_COMPARED:], other[-_COMPARED:]).quick_ratio()


def differences(recorded: Any, asked: Any, *loc: str | int) -> Iterator[str]:
    """Every place where two JSON values differ."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in [*recorded, *(name for name in asked if name not in recorded)]:
            yield from _member(recorded, asked, name, loc)
    elif isinstance(recorded, list) and isinstance(asked, list):
        yield from differences(dict(enumerate(recorded)), dict(enumerate(asked)), *loc)
    elif recorded != asked:
        yield f"{_where(loc)}recorded {_shown(recorded, asked)}, asked {_shown(asked, recorded)}"


def _member(recorded: dict[Any, Any], asked: dict[Any, Any], name: Any, loc: tuple[str | int, ...]) -> Iterator[str]:
    if name not in asked:
        yield f"{_where((*loc, name))}recorded {_shown(recorded[name])}, not asked"
    elif name not in recorded:
        yield f"{_where((*loc, name))}not recorded, asked {_shown(asked[name])}"
    else:
        yield from differences(recorded[name], asked[name], *loc, name)


def _where(loc: tuple[str | int, ...]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""


def _shown(value: Any, beside: Any = None) -> str:
    """A value in short; of a long text the part where it begins to differ from the one beside it."""
    text = value if isinstance(value, str) else json.dumps(value)
    start = 0
    if isinstance(value, str) and isinstance(beside, str):
        start = max(0, _agree(value, beside) - _WIDTH // 2)
    cut = f"{'...' if start else ''}{text[start : start + _WIDTH]}{'...' if len(text) > start + _WIDTH else ''}"
    return repr(cut) if isinstance(value, str) else cut


def _agree(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def in_words(differing: Sequence[str]) -> str:
    """The differences as one sentence, the first few of many."""
    more = f"; and {len(differing) - _MOST_SHOWN} more" if len(differing) > _MOST_SHOWN else ""
    return "; ".join(differing[:_MOST_SHOWN]) + more
