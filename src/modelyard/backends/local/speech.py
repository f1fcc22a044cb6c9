"""Sampled tokens as deltas: text as soon as its characters are whole, log-probabilities and ids as asked for."""

import codecs
import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Any

from modelyard.backends.local.sequence import Sampled, Sequence, State
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, TokenLogprob, ToolCall, ToolCallDelta
from modelyard.formats.tool_calls import ToolReader

UNTOLD = 64
"""Tokens at most that were sampled and not told, where nobody reads along: who goes away pays for what was told."""


class Speaker:
    """Tells one choice of a request, from what its sequence has sampled so far: token by token where somebody reads
    along, or where a stop string may end it.
    """

    def __init__(
        self,
        index: int,
        sequence: Sequence,
        request: CompletionRequest,
        token_bytes: Many[bytes],
        tools: ToolReader | None = None,
    ) -> None:
        self.sequence, self.told = sequence, 0
        self._index, self._request, self._bytes, self._tools = index, request, token_bytes, tools
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended, self._calls = False, 0
        self._at_once = 1 if request.streamed or request.stop else UNTOLD

    @property
    def due(self) -> int:
        """How many tokens there must be for the next to be told, if it goes on."""
        return self.told + self._at_once

    @property
    def ended(self) -> bool:
        """Whether all has been told."""
        return self._ended

    def tell(self) -> Iterator[Delta]:
        """What has come since it was asked last.

        Raises what the sequence failed with, behind its tokens. Meanwhile another thread may step: so whether it is
        over is looked at first, and then its tokens, which are complete if it was.
        """
        sequence = self.sequence
        over = sequence.state is State.ENDED
        while self.due <= len(sequence.sampled) or (over and self.told < len(sequence.sampled)):
            yield from self._next(min(self.due, len(sequence.sampled)))
        if over and not self._ended:
            self._ended = True
            if sequence.failure is not None:
                raise sequence.failure

    def _next(self, upto: int) -> Iterator[Delta]:
        first, fresh = self.told == 0, self.sequence.sampled[self.told : upto]
        self.told = upto
        self._ended = fresh[-1].reason is not None
        text = self._decoder.decode(b"".join(self._bytes[one.token] for one in fresh), final=self._ended)
        said, *calls = self._pieces(text)
        yield self._said(said, fresh, first, last=not calls)
        for place, call in enumerate(calls, 1):
            yield Delta(index=self._index, tool_call=call, finish_reason=self._reason(place == len(calls)))

    def _reason(self, last: bool) -> FinishReason | None:
        """Why the answer ended, with the last delta of it."""
        if not (self._ended and last):
            return None
        called = self._calls and self.sequence.reason is FinishReason.STOP
        return FinishReason.TOOL_CALLS if called else self.sequence.reason

    def _pieces(self, text: str) -> list[Any]:
        """Content, and behind it the tool calls that are complete now."""
        if self._tools is None:
            return [text]
        found = list(self._tools.take(text, self._ended))
        calls = [one for one in found if isinstance(one, ToolCall)]
        numbered = enumerate(calls, self._calls)
        self._calls += len(calls)
        content = "".join(one for one in found if isinstance(one, str))
        return [
            content,
            *(ToolCallDelta(number, _short(call.id), call.name, call.arguments) for number, call in numbered),
        ]

    def _said(self, text: str, fresh: Many[Sampled], first: bool, last: bool) -> Delta:
        request = self._request
        return Delta(
            text=text,
            tokens=len(fresh),
            index=self._index,
            logprobs=tuple(map(self._logprob, fresh)) if request.logprobs else (),
            token_ids=tuple(sampled.token for sampled in fresh) if request.return_token_ids else (),
            prompt_token_ids=tuple(self.sequence.prompt) if request.return_token_ids and first else (),
            finish_reason=self._reason(last),
        )

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        top = tuple(self._entry(token, logprob) for token, logprob in sampled.top)
        return self._entry(sampled.token, sampled.logprob, top)

    def _entry(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        raw = self._bytes[token]
        return TokenLogprob(raw.decode(errors="replace"), logprob, tuple(raw), top, token)


def _short(id: str) -> str:
    """Nine letters and digits, which is all that templates of Mistral take for the id of a call."""
    return hashlib.sha256(id.encode()).hexdigest()[:9]
