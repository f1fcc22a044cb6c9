"""A whole text completion: its shape, and its JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, Completion, TokenLogprob, Usage, token_bytes
from modelyard.formats.chat.response import AnsweredUsage
from modelyard.formats.json import dumps
from modelyard.parts.completions.formats.request import ParsedPrompts, Prompt

# ---- the shape ------------------------------------------------------------------------------------------------------


@attrs.frozen
class TextLogprobs:
    """One entry for each token: its text, its log-probability, the likeliest tokens, and where its text begins.

    The first token of a prompt that is shown has no log-probability.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[Mapping[str, float] | None, ...]
    text_offset: tuple[int, ...]


@attrs.frozen
class PromptLogprob:
    """A token that could stand at a place of a prompt. `rank` counts from 1, as far as it is known."""

    logprob: float
    rank: int | None
    decoded_token: str


@attrs.frozen
class TextChoice:
    """One continuation of a prompt. The choices of the first prompt come first."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length", "content_filter"]
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: tuple[Mapping[str, PromptLogprob] | None, ...] | None = None


@attrs.frozen
class TextCompletion:
    """A finished completion of one or several prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: AnsweredUsage


# ---- written -----------------------------------------------------------------------------------------------------


@attrs.frozen
class EchoedPrompt:
    """A prompt as it is shown before its continuation: its text and, with log-probabilities, its tokens."""

    text: str = ""
    first: TokenLogprob | None = None


NOT_ECHOED = EchoedPrompt()


def echoed(text: str, choice_ids: Sequence[int], scored: Sequence[TokenLogprob]) -> EchoedPrompt:
    """Return a prompt to be shown; its first token has the text that the others leave."""
    raw = text.encode()
    raw = raw[: max(0, len(raw) - sum(len(token_bytes(entry)) for entry in scored))]
    id_ = choice_ids[0] if choice_ids else None
    return EchoedPrompt(text, TokenLogprob(raw.decode(errors="replace"), 0.0, tuple(raw), id=id_))


def completion_json(completions: Sequence[Completion], parsed: ParsedPrompts, texts: Sequence[str]) -> bytes:
    """Write the completions of all prompts as one answer; `texts` are the prompts that are to be shown."""
    choices: list[dict[str, Any]] = []
    for at, completion in enumerate(completions):
        for choice in completion.choices:
            before = NOT_ECHOED
            if parsed.echo:
                before = echoed(texts[at], choice.prompt_token_ids, choice.prompt_logprobs)
            choices.append({"index": len(choices), **_choice(choice, parsed, before)})
    first = completions[0]
    return dumps(
        {
            "id": first.id,
            "object": "text_completion",
            "created": first.created,
            "model": first.model,
            "choices": choices,
            "usage": usage_object([completion.usage for completion in completions]),
        }
    )


def _choice(choice: Choice, parsed: ParsedPrompts, before: EchoedPrompt) -> dict[str, Any]:
    written: dict[str, Any] = {
        "text": before.text + choice.message.text,
        "logprobs": None,
        "finish_reason": str(choice.finish_reason),
    }
    if parsed.with_logprobs:
        writer = LogprobsWriter(parsed.as_ids)
        prompt = writer.prompt(before, choice.prompt_logprobs) if before.first is not None else {}
        written["logprobs"] = joined(prompt, writer.entries(choice.logprobs or ()))
    if parsed.with_ids:
        written["token_ids"] = list(choice.token_ids)
        written["prompt_token_ids"] = list(choice.prompt_token_ids)
    if parsed.with_prompt_logprobs:
        written["prompt_logprobs"] = prompt_logprobs_list(choice.prompt_logprobs)
    return written


class LogprobsWriter:
    """Writes log-probabilities piece by piece, and counts where the text of each token begins."""

    def __init__(self, as_ids: bool) -> None:
        self._as_ids, self._offset = as_ids, 0

    def prompt(self, before: EchoedPrompt, scored: Sequence[TokenLogprob]) -> dict[str, Any]:
        assert before.first is not None
        first = self.entries([before.first])
        return joined(first | {"token_logprobs": [None], "top_logprobs": [None]}, self.entries(scored))

    def entries(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry.token)
        return {
            "tokens": [self._name(entry) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _name(self, entry: TokenLogprob) -> str:
        return entry.token if not self._as_ids or entry.id is None else f"token_id:{entry.id}"

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Return the likeliest tokens, and the sampled one; of tokens with one name the likeliest."""
        found: dict[str, float] = {}
        for other in entry.top:
            found.setdefault(self._name(other), other.logprob)
        found.setdefault(self._name(entry), entry.logprob)
        return found


def joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [*one.get(name, ()), *values] for name, values in other.items()}


def prompt_logprobs_list(scored: Sequence[TokenLogprob]) -> list[Mapping[str, Any] | None]:
    return [None, *map(_ranked, scored)]


def _ranked(entry: TokenLogprob) -> Mapping[str, Any]:
    found = {str(other.id): _written(other, rank) for rank, other in enumerate(entry.top, 1)}
    return {str(entry.id): _written(entry, entry.rank), **found}


def _written(entry: TokenLogprob, rank: int | None) -> Mapping[str, Any]:
    return {"logprob": entry.logprob, "rank": rank, "decoded_token": entry.token}


def usage_object(usages: Sequence[Usage]) -> dict[str, Any]:
    prompt, completion = sum(one.prompt_tokens for one in usages), sum(one.completion_tokens for one in usages)
    cached = sum(one.cached_tokens for one in usages)
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **details,
    }


def prompt_text(prompt: Prompt, raw: Sequence[bytes]) -> str:
    return prompt if isinstance(prompt, str) else b"".join(raw).decode(errors="replace")
