"""Read chunks that bring text alone: without it, a token that another server streams takes 113 % more instructions.

The parsers of `reader` would come to the same. A chunk that differs from one before in its text alone is not
even parsed.
"""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from modelyard.domain.completion import Delta
from modelyard.domain.frozen_fast import maker
from modelyard.parts.upstream.answers import reasons
from modelyard.parts.upstream.answers.values import BYTES_PER_TOKEN, reasoning_of

_delta = maker(Delta)
_REASONING_NAMES = ("reasoning_content", "reasoning")
_MORE = (
    *reasons.NAMES,
    "logprobs",
    "token_ids",
    "provider_specific_fields",
    "prompt_token_ids",
    "usage",
    "message",
    "text",
)
"""Members of a choice next to its text."""
_NESTED = frozenset({dict, list})
_CONTENT = re.compile(rb'"content": ?(?="([^"\\\x00-\x1f]+)")')
_REASONED = re.compile(rb'"reasoning(?:_content)?": ?(?="([^"\\\x00-\x1f]+)")')
_STRING = re.compile(rb'"([^"\\\x00-\x1f]+)"')


class TextReader(Protocol):
    """The reader of one choice. `size` is the bytes of its text, for which so many tokens are `estimated`, at most
    `room`.
    """

    index: int
    size: int
    estimated: int

    @property
    def room(self) -> int: ...

    def waits(self, is_reasoning: bool) -> bool:
        """Return whether the next text, or reasoning, may not be passed on as it comes."""

    def said(self, size: int, is_reasoning: bool) -> None:
        """Note so many bytes of text or of reasoning."""

    def take_text(self, content: str, reasoning: str) -> Delta | None:
        """Return the delta of a chunk that has only one of these; None if it is to be read in the general way."""


class ChunkTexts:
    """Reads the chunks of an answer that bring text or reasoning of one choice, and nothing else.

    `around` is what stood around the last one: the bytes before and after its text.
    """

    def __init__(self, choices: Sequence[TextReader], wants_details: bool) -> None:
        self._choices, self._wants_details = choices, wants_details
        self._around: tuple[bytes, bytes, TextReader, bool] | None = None

    def take(self, chunk: Any, event: bytes) -> Delta | None:
        """Return the delta of such a chunk, which was parsed from `event`; None for any other."""
        delta = self._text_only(chunk)
        if delta is not None:
            self._remember(event, delta)
        return delta

    def take_unparsed(self, events: Sequence[bytes], start: int) -> list[Delta]:
        """Return the deltas of the events from `start` on that differ from the last text or reasoning in that alone.

        All that stands around it was parsed and checked then, byte by byte. The first other event ends them.
        """
        if self._around is None:
            return []
        before, after, choice, is_reasoning = self._around
        if choice.waits(is_reasoning):
            return []
        place, index, deltas = len(before), choice.index, []
        size, counted, room = choice.size, choice.estimated, choice.room
        for at in range(start, len(events)):
            event = events[at]
            if not (event.startswith(before) and event.endswith(after)):
                break
            found = _STRING.fullmatch(event, place, len(event) - len(after))
            if found is None:
                break
            try:
                text = found[1].decode()
            except UnicodeDecodeError:
                break
            size += len(found[1])
            tokens = -(-size // BYTES_PER_TOKEN) - counted  # as `_ChoiceReader.count` does
            if not 0 <= tokens <= room - counted:
                tokens = max(min(tokens, room - counted), 0)
            counted += tokens
            deltas.append(_delta("", tokens, index, reasoning=text) if is_reasoning else _delta(text, tokens, index))
        choice.said(size - choice.size, is_reasoning)
        choice.size, choice.estimated = size, counted
        return deltas

    def _remember(self, event: bytes, delta: Delta) -> None:
        """Note what stands around the text or the reasoning of an event, where that is certain: its only, unescaped."""
        pattern, names = (_REASONED, _REASONING_NAMES) if delta.reasoning else (_CONTENT, ("content",))
        found = pattern.search(event)
        if found is None or b"\\" in event or found[1].decode() != (delta.reasoning or delta.text):
            return
        if sum([event.count(f'"{name}"'.encode()) for name in names]) != 1:
            return
        place = event[: found.end()], event[found.end(1) + 1 :]
        self._around = (*place, self._choices[delta.index], bool(delta.reasoning))

    def _text_only(self, chunk: Any) -> Delta | None:
        try:
            (choice,) = chunk["choices"]
            delta, index = choice["delta"], choice.get("index")
            content, reasoning = delta.get("content"), reasoning_of(delta)
            if type(content) is not str and content is not None:
                return None
            if bool(content) is bool(reasoning) or type(index) is not int or index < 0 or self._wants_details:
                return None
            if any(choice.get(name) is not None for name in _MORE) or (reasoning and delta.get("refusal") is not None):
                return None
            if any(delta.get(name) is not None for name in reasons.NAMES):
                return None
            if (
                _NESTED.intersection(map(type, delta.values()))
                or sum(type(one) in _NESTED for one in chunk.values()) > 1
            ):
                return None
            (content or reasoning).encode()  # half of a character waits for the other one
            return self._choices[index].take_text(content or "", reasoning)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return None
