"""What a process knows of the conversations of episodes, so that a call which continues one costs what it adds.

All of it can be computed again. Whatever turn is followed is looked up in the store: only digests are taken from here.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Message
from modelyard.lazy import hashlib
from modelyard.parts.episodes.history import HistoryDigests

MOST_SIZE = 2**25
"""About how many bytes are kept in a process, of all episodes."""

BRANCHES = 4
"""How many conversations of an episode are kept: its newest."""


@attrs.frozen(eq=False)
class KnownTokens:
    """Token ids, with their digest so far."""

    ids: tuple[int, ...]
    hashed: Any

    @classmethod
    def of(cls, ids: tuple[int, ...], known: "Sequence[KnownTokens]" = ()) -> "KnownTokens":
        """Digest token ids; what begins ids that are `known` is not digested again."""
        begun = max((one for one in known if one.begins(ids)), key=_length, default=None)
        return cls(ids, _hashed(ids)) if begun is None else cls(ids, begun._with(ids[len(begun.ids) :]))

    def begins(self, ids: tuple[int, ...]) -> bool:
        """Return whether token ids begin with these."""
        return ids[: len(self.ids)] == self.ids

    def and_(self, ids: tuple[int, ...]) -> "KnownTokens":
        """Return these, and others after them."""
        return KnownTokens(self.ids + ids, self._with(ids))

    def _with(self, more: tuple[int, ...]) -> Any:
        hashed = self.hashed.copy()
        hashed.update(array("q", more).tobytes())
        return hashed

    def digest(self) -> str:
        """Return the digest of all."""
        return self.hashed.hexdigest()  # type: ignore[no-any-return]


def tokens_digest(ids: tuple[int, ...]) -> str:
    """Return the digest of token ids."""
    return _hashed(ids).hexdigest()  # type: ignore[no-any-return]


def _hashed(ids: tuple[int, ...]) -> Any:
    return hashlib.sha256(array("q", ids).tobytes())


def _length(tokens: KnownTokens) -> int:
    return len(tokens.ids)


@attrs.frozen(eq=False)
class KnownConversation:
    """A conversation up to an answer: the `turn` that has it, its digests, and its tokens."""

    turn: str
    digests: HistoryDigests
    tokens: KnownTokens

    size: int

    @classmethod
    def of(cls, turn: str, digests: HistoryDigests, tokens: KnownTokens) -> "KnownConversation":
        """Return a conversation, and about how many bytes it takes."""
        texts = 0 if tokens.ids else sum(len(message.text) for message in digests.messages)
        return cls(turn, digests, tokens, _OF_TOKEN * len(tokens.ids) + texts + _OF_MESSAGE * len(digests.messages))


_OF_TOKEN, _OF_MESSAGE = 44, 600
"""About what a token takes with its text, and a message with its digests and without its text."""


class KnownConversations:
    """The conversations that a process knows, by episode."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[KnownConversation, ...]] = OrderedDict()
        self._size, self._mutex = 0, threading.Lock()

    def of(self, episode_id: str) -> tuple[KnownConversation, ...]:
        """Return those of an episode, newest first."""
        return self._kept.get(episode_id, ())

    def keep(self, episode_id: str, one: KnownConversation, continued: str) -> None:
        """Keep a conversation, in the place of the one that it continues; those are forgotten that were kept first."""
        if not all(map(is_text, one.digests.messages)):
            return
        with self._mutex:
            known = self._kept.pop(episode_id, ())
            kept = (one, *(other for other in known if other.turn not in (continued, one.turn)))[:BRANCHES]
            self._kept[episode_id] = kept
            self._size += _size(kept) - _size(known)
            while self._size > MOST_SIZE:
                self._size -= _size(self._kept.popitem(last=False)[1])


def _size(kept: tuple[KnownConversation, ...]) -> int:
    return sum([one.size for one in kept])


def is_text(message: Message) -> bool:
    """Return whether equal messages have equal digests: numbers in other parts may be equal and written otherwise."""
    return type(message.content) is not tuple or all(part.type == "text" for part in message.content)
