"""Sampled tokens as deltas: text as soon as its characters are whole, log-probabilities and ids as asked for."""

import codecs
from collections.abc import Iterator
from collections.abc import Sequence as Many

from modelyard.backends.local.sequence import Sampled, Sequence, State
from modelyard.domain.completion import CompletionRequest, Delta, TokenLogprob


class Speaker:
    """Tells one choice of a request, from what its sequence has sampled so far."""

    def __init__(self, index: int, sequence: Sequence, request: CompletionRequest, token_bytes: Many[bytes]) -> None:
        self.sequence, self.told = sequence, 0
        self._index, self._request, self._bytes = index, request, token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether all has been told."""
        return self._ended

    def tell(self) -> Iterator[Delta]:
        """What has come since it was asked last: token by token where somebody reads along. Raises what the sequence
        failed with."""
        sequence = self.sequence
        if sequence.failure is not None:
            raise sequence.failure
        streamed, sampled = self._request.streamed, sequence.sampled
        if not streamed and sequence.state is not State.ENDED:
            return
        while not self._ended and self.told < len(sampled):
            yield self._next(self.told + 1 if streamed else len(sampled))
        if not self._ended and sequence.state is State.ENDED:
            yield self._next(len(sampled))

    def _next(self, upto: int) -> Delta:
        """Whether it is the last is seen now: others may have stepped since the one before was told."""
        first, fresh = self.told == 0, self.sequence.sampled[self.told : upto]
        self.told = upto
        self._ended = self.sequence.state is State.ENDED and upto == len(self.sequence.sampled)
        return self._delta(fresh, first)

    def _delta(self, fresh: Many[Sampled], first: bool) -> Delta:
        request = self._request
        raw = b"".join(self._bytes[sampled.token] for sampled in fresh)
        return Delta(
            text=self._decoder.decode(raw, final=self._ended),
            tokens=len(fresh),
            index=self._index,
            logprobs=tuple(map(self._logprob, fresh)) if request.logprobs else (),
            token_ids=tuple(sampled.token for sampled in fresh) if request.return_token_ids else (),
            prompt_token_ids=tuple(self.sequence.prompt) if request.return_token_ids and first else (),
            finish_reason=self.sequence.reason if self._ended else None,
        )

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        top = tuple(self._entry(token, logprob) for token, logprob in sampled.top)
        return self._entry(sampled.token, sampled.logprob, top)

    def _entry(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        raw = self._bytes[token]
        return TokenLogprob(raw.decode(errors="replace"), logprob, tuple(raw), top, token)
