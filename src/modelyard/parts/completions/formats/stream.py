"""A streamed text completion: the shape of its chunks, and their JSON."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Delta, Usage
from modelyard.formats.chat.response import AnsweredUsage
from modelyard.formats.chat.stream import DONE, event
from modelyard.parts.completions.formats.request import ParsedPrompts
from modelyard.parts.completions.formats.response import (
    LogprobsWriter,
    PromptLogprob,
    TextLogprobs,
    echoed,
    joined,
    prompt_logprobs_list,
    usage_object,
)

# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class TextChunkChoice:
    """A piece of one continuation. The first has what is shown of the prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length", "content_filter"] | None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: tuple[Mapping[str, PromptLogprob] | None, ...] | None = None


@attrs.frozen
class TextCompletionChunk:
    """One event of a streamed completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChunkChoice, ...]
    usage: AnsweredUsage | None = None


# ---- written -----------------------------------------------------------------------------------------------------


class TextChunks:
    """The events of one streamed completion, of several prompts one after the other.

    `begin` tells that the answer to the next prompt begins; `text` is the prompt, if it is to be shown. With
    `with_usage` each chunk carries a null `usage` until the last, which has the sum.
    """

    def __init__(self, id: str, created: int, model: str, parsed: ParsedPrompts) -> None:
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._parsed, self._tail = parsed, {"usage": None} if parsed.with_usage else {}
        self._usages: list[Usage] = []
        self._logprobs: dict[int, LogprobsWriter] = {}
        self._first, self._text = -parsed.requests[0].n, ""

    def begin(self, text: str) -> None:
        self._first += self._parsed.requests[0].n
        self._text = text

    def of_all(self, deltas: Iterable[Delta]) -> bytes:
        return b"".join([self._of(delta) for delta in deltas])

    def end(self, usage: Usage) -> bytes:
        """End the answer to a prompt; after the last prompt, with the usage if it was requested."""
        self._usages.append(usage)
        if len(self._usages) < len(self._parsed.requests):
            return b""
        if not self._parsed.with_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage_object(self._usages)}) + DONE

    def _of(self, delta: Delta) -> bytes:
        parsed, index = self._parsed, self._first + delta.index
        opening = index not in self._logprobs
        if not (delta.text or delta.tokens or delta.finish_reason or delta.prompt_token_ids):
            return b""
        writer = self._logprobs.setdefault(index, LogprobsWriter(parsed.as_ids))
        before = echoed(self._text, delta.prompt_token_ids, delta.prompt_logprobs) if parsed.echo and opening else None
        reason = None if delta.finish_reason is None else str(delta.finish_reason)
        choice: dict[str, Any] = {
            "index": index,
            "text": delta.text if before is None else before.text + delta.text,
            "logprobs": None,
            "finish_reason": reason,
        }
        if parsed.with_logprobs:
            prompt = {} if before is None else writer.prompt(before, delta.prompt_logprobs)
            choice["logprobs"] = joined(prompt, writer.entries(delta.logprobs))
        if parsed.with_ids:
            choice["token_ids"] = list(delta.token_ids)
            if opening:
                choice["prompt_token_ids"] = list(delta.prompt_token_ids)
        if opening and parsed.with_prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs_list(delta.prompt_logprobs)
        return event({**self._head, "choices": [choice], **self._tail})
