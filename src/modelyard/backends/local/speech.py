"""Sampled tokens as deltas: text as soon as its characters are whole, log-probabilities and ids as asked for."""

import codecs
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

    def tell(self) -> Delta | None:
        """What has come since it was asked last. Raises what the sequence failed with."""
        sequence, ended = self.sequence, self.sequence.state is State.ENDED
        if sequence.failure is not None:
            raise sequence.failure
        fresh = sequence.sampled[self.told :]
        if not fresh and not ended:
            return None
        first, self.told, self._ended = self.told == 0, self.told + len(fresh), ended
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
