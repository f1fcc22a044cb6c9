"""Completions of prompts, read and written by a vLLM double as vLLM does it.

Its answers have the members of `parts.completions.formats`, and more: unset members are null, but no chunk of a stream
has `usage` before the last. Log-probabilities of a prompt come in no stream.
"""

import json
from collections.abc import Iterator, Sequence

import attrs

from modelyard.domain.completion import Choice, Completion, CompletionRequest, Delta, FinishReason, Message, Role, Usage
from modelyard.parts.completions.formats.request import PARAMETERS, ParsedPrompts, read_body
from modelyard.parts.completions.formats.response import completion_json
from modelyard.parts.completions.formats.stream import TextChunks
from modelyard.parts.upstream.fake_vllm.schemas import ABORT, Json, usage_object
from modelyard.parts.upstream.fake_vllm.shape import Refused

_UNSET = ("stop_reason", "token_ids", "prompt_token_ids")


def read_prompt(body: Json, model: str) -> ParsedPrompts:
    """Read a request for a model of the backend; unknown members are passed over. Raises `Refused`, `InvalidInput`."""
    if body.get("prompt") in (None, ""):
        raise _refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if body.get("stream") and body.get("prompt_logprobs"):
        raise _refused("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    if body.get("stream_options") and not body.get("stream"):
        raise _refused("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.get("max_tokens") == 0 and not body.get("echo"):
        raise Refused("max_tokens must be at least 1, got 0.")
    known = {name: value for name, value in body.items() if name in PARAMETERS and value != {}}
    return read_body({**known, "model": model})


def _refused(words: str, param: str) -> Refused:
    return Refused(f"{words} (parameter={param})", param)


class PromptWriter:
    """Writes the answer to one request. `created` is in Unix seconds; `texts` are the prompts that are shown."""

    def __init__(
        self, id: str, created: int, model: str, parsed: ParsedPrompts, texts: Sequence[str], fingerprint: str
    ) -> None:
        self._head: Json = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._parsed, self._texts, self._fingerprint = parsed, texts, fingerprint
        self._left = iter(texts)
        self._chunks = TextChunks(id, created, model, attrs.evolve(parsed, with_prompt_logprobs=False))

    @property
    def request(self) -> CompletionRequest:
        return self._parsed.requests[0]

    # ---- whole

    def completion(self, *completions: Completion) -> Json:
        written = json.loads(completion_json(completions, self._parsed, self._texts))["choices"]
        choices = [choice for completion in completions for choice in completion.choices]
        unset = dict.fromkeys((*_UNSET, "prompt_logprobs", "routed_experts"))
        return {
            **self._head,
            "choices": [
                {**unset, **shown, "stop_reason": choice.stop_string}
                for shown, choice in zip(written, choices, strict=True)
            ],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {**usage_object(summed(completions)), "prompt_tokens_details": None},
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def aborted(self) -> Json:
        message = Message(Role.ASSISTANT, "")
        choices = tuple(Choice(index, message, FinishReason.STOP) for index in range(self.request.n))
        body = self.completion(*(Completion("", 0, "", choices, Usage()) for _ in self._parsed.requests))
        body["choices"] = [{**choice, "finish_reason": ABORT} for choice in body["choices"]]
        return body

    # ---- streamed

    def opening(self, first: Delta) -> Iterator[Json]:
        """Begin with the next prompt, which has no separate chunk."""
        self._chunks.begin(next(self._left, ""))
        return iter(())

    def chunks(self, delta: Delta, with_usage: bool) -> Iterator[Json]:
        raw = self._chunks.of_all([delta])
        if not raw:
            return
        (shown,) = json.loads(raw.removeprefix(b"data: "))["choices"]
        yield {
            **self._head,
            "choices": [{**dict.fromkeys(_UNSET), **shown, "stop_reason": delta.stop_string}],
            **({"system_fingerprint": self._fingerprint} if delta.finish_reason and not with_usage else {}),
        }

    def abortions(self) -> Iterator[Json]:
        for index in range(self.request.n * len(self._parsed.requests)):
            choice = {"index": index, "text": "", "logprobs": None, "finish_reason": ABORT}
            yield {**self._head, "choices": [{**choice, **dict.fromkeys(_UNSET)}]}

    def usage(self, usage: Usage) -> Json:
        return {**self._head, "choices": [], "usage": usage_object(usage), "system_fingerprint": self._fingerprint}


def summed(completions: Sequence[Completion]) -> Usage:
    used = [completion.usage for completion in completions]
    return Usage(sum(one.prompt_tokens for one in used), sum(one.completion_tokens for one in used))
