"""An answer of another server in the text-completion format, whole or in chunks, read as deltas.

It is read as an answer in the chat-completion format, except that a prompt has log-probabilities as vLLM gives them, by
token id.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, TokenLogprob
from modelyard.parts.upstream.answers.reader import AnswerReader
from modelyard.parts.upstream.answers.values import index_of, logprob_of, numbered_of, object_of, objects_of, string_of


class PromptAnswerReader(AnswerReader):
    def __init__(self, request: CompletionRequest, note: Callable[[str], None] = lambda what: None) -> None:
        super().__init__(request, note)
        self._scored: dict[int, tuple[TokenLogprob, ...]] = {}

    def take(self, chunk: Any, event: bytes = b"") -> list[Delta]:
        for choice in objects_of(object_of(chunk).get("choices")):
            if scored := _prompt_logprobs(choice.get("prompt_logprobs")):
                self._scored[index_of(choice.get("index")) or 0] = scored
        return [self._with_scores(delta) for delta in super().take(chunk)]

    def end(self, finished: bool) -> list[Delta]:
        return [self._with_scores(delta) for delta in super().end(finished)]

    def _with_scores(self, delta: Delta) -> Delta:
        scored = self._scored.pop(delta.index, ())
        return attrs.evolve(delta, prompt_logprobs=scored) if scored else delta


def _prompt_logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    """Read the tokens of a prompt after the first one, which has none. The first of each place is the prompt's own."""
    return tuple([place for place in map(_place, objects_of(value)) if place is not None])


def _place(value: Mapping[str, Any]) -> TokenLogprob | None:
    entries = [_scored(id_, object_of(entry)) for id_, entry in numbered_of(value).items()]
    if not entries:
        return None
    own, known = entries[0], [entry for entry in entries if entry.rank is not None]
    return attrs.evolve(own, top=tuple(sorted(known, key=lambda entry: entry.rank or 0)))


def _scored(id_: int, entry: Mapping[str, Any]) -> TokenLogprob:
    shown = string_of(entry.get("decoded_token"))
    return TokenLogprob(shown, logprob_of(entry.get("logprob")), None, (), id_, index_of(entry.get("rank")))
