"""An answer of another server in the text-completion format, whole or in chunks, read as deltas.

It is read as an answer in the chat-completion format, except that a choice has its text and its log-probabilities at
other places. The log-probabilities of a prompt are those of vLLM, by token id.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, TokenLogprob
from modelyard.formats.chat.answer_reader import AnswerReader
from modelyard.formats.fields import each, mapping, natural, number, optional, refused, required, text


class PromptAnswerReader(AnswerReader):
    def __init__(self, request: CompletionRequest, whole: bool) -> None:
        super().__init__(request)
        self._part = "message" if whole else "delta"
        self._scored: dict[int, tuple[TokenLogprob, ...]] = {}

    def take(self, chunk: Any, event: bytes = b"") -> list[Delta]:
        data = mapping(chunk)
        choices = optional(lambda given: each(mapping, given), data, "choices", ())
        for choice in choices:
            if scored := optional(_prompt_logprobs, choice, "prompt_logprobs", ()):
                self._scored[optional(natural, choice, "index", 0)] = scored
        deltas = super().take({**data, "choices": [self._as_of_chat(choice) for choice in choices]})
        return [self._with_scores(delta) for delta in deltas]

    def end(self) -> Delta:
        return self._with_scores(super().end())

    def _with_scores(self, delta: Delta) -> Delta:
        scored = self._scored.pop(delta.index, ())
        return attrs.evolve(delta, prompt_logprobs=scored) if scored else delta

    def _as_of_chat(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        logprobs = optional(lambda given: {"content": _entries(mapping(given))}, choice, "logprobs", None)
        return {**choice, self._part: {"content": choice.get("text")}, "logprobs": logprobs}


def _entries(logprobs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tokens = required(lambda given: each(text, given), logprobs, "tokens")
    scores = required(lambda given: each(number, given), logprobs, "token_logprobs")
    tops = optional(
        lambda given: each(lambda top: mapping(top or {}), given), logprobs, "top_logprobs", ({},) * len(tokens)
    )
    if not len(tokens) == len(scores) == len(tops):
        raise refused("must have as many entries in each list", "value_error")
    return [
        {"token": token, "logprob": score, "top_logprobs": [_other(*other) for other in top.items()]}
        for token, score, top in zip(tokens, scores, tops, strict=True)
    ]


def _other(token: str, score: Any) -> Mapping[str, Any]:
    return {"token": token, "logprob": score}


def _prompt_logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    """Read the tokens of a prompt after the first one, which has none. The first of each place is the prompt's own."""
    return each(_place, [place for place in each(lambda given: given, value) if place is not None])


def _place(value: Any) -> TokenLogprob:
    entries = [_scored(id_, entry) for id_, entry in mapping(value).items()]
    if not entries:
        raise refused("must have a token", "value_error")
    own, known = entries[0], [entry for entry in entries if entry.rank is not None]
    return attrs.evolve(own, top=tuple(sorted(known, key=lambda entry: entry.rank or 0)))


def _scored(id_: str, value: Any) -> TokenLogprob:
    entry = mapping(value)
    if not id_.isdecimal():
        raise refused("must have token ids as names", "value_error")
    logprob = min(0.0, required(number, entry, "logprob"))
    shown = optional(text, entry, "decoded_token", "")
    return TokenLogprob(shown, logprob, None, (), int(id_), optional(natural, entry, "rank", None))
