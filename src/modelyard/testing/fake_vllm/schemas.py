"""Completions as vLLM writes them, where that differs from `modelyard.formats.chat`.

Its chunks leave out what is unset, so there is no `usage` before the last; the finish reason comes with the last text
and not after it; a named tool that was called ends with "stop"; ids of the prompt are next to the choices; non-ASCII
text is not escaped.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import (
    Choice,
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    Usage,
)
from modelyard.domain.logprobs import TokenLogprob
from modelyard.formats.chat.messages import tool_call_object
from modelyard.formats.chat.response import logprobs_object
from modelyard.formats.chat.stream import tool_call_piece

Json = dict[str, Any]


def dump(value: object) -> str:
    """One compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@attrs.frozen
class AnswerWriter:
    """Writes the answer to one request. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    request: CompletionRequest
    with_logprobs: bool
    with_ids: bool

    # ---- whole

    def completion(self, completion: Completion) -> Json:
        """Return the answer to a request that does not stream."""
        ids = completion.choices[0].prompt_token_ids
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(choice) for choice in completion.choices],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {**_usage(completion.usage), "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": list(ids) if self.with_ids else None,
            "kv_transfer_params": None,
        }

    def _choice(self, choice: Choice) -> Json:
        message = {
            "role": "assistant",
            "content": choice.message.content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [tool_call_object(call) for call in choice.message.tool_calls],
            "reasoning": None,
        }
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs or ()),
            "finish_reason": self._reason(choice.finish_reason),
            "stop_reason": None,
            "token_ids": list(choice.token_ids) if self.with_ids else None,
        }

    # ---- streamed

    def opening(self, first: Delta) -> Iterator[Json]:
        """Yield a chunk with the role for each choice, when the first token is there."""
        ids = list(first.prompt_token_ids) if self.with_ids else None
        for index in range(self.request.n):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield {**self._chunk([choice]), "prompt_token_ids": ids}

    def chunk(self, delta: Delta) -> Json:
        """Return the chunk of a delta."""
        choice: Json = {
            "index": delta.index,
            "delta": _delta_object(delta),
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": None,
        }
        if delta.finish_reason is not None:
            choice |= {"finish_reason": self._reason(delta.finish_reason), "stop_reason": None}
        choice["token_ids"] = list(delta.token_ids) if self.with_ids else None
        return self._chunk([choice])

    def usage(self, usage: Usage) -> Json:
        """Return the last chunk, where usage was requested."""
        return {**self._chunk([]), "usage": _usage(usage)}

    def _chunk(self, choices: list[Json]) -> Json:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return {**head, "choices": choices}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Mapping[str, Any] | None:
        return logprobs_object(entries) if self.with_logprobs else None

    def _reason(self, reason: FinishReason) -> str:
        named = self.request.tool_choice.name is not None
        return "stop" if named and reason is FinishReason.TOOL_CALLS else str(reason)


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _delta_object(delta: Delta) -> Json:
    return {"content": delta.text} if delta.tool_call is None else {"tool_calls": [tool_call_piece(delta.tool_call)]}


# ---- errors and models ---------------------------------------------------------------------------------------------

_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


def error_body(status: int, message: str, *, type: str | None = None, param: str | None = None, old: bool) -> Json:
    """Return an error as releases since 0.10.2 wrap it, or bare as those before did (`old`)."""
    kind = type or _TYPES.get(status, "InternalServerError")
    error = {"message": message, "type": kind, "param": param, "code": status}
    return {"object": "error", **error} if old else {"error": error}


def model_card(id: str, created: int, *, root: str, parent: str | None, max_model_len: int | None) -> Json:
    """Return an entry of the list of models; `parent` is the base of an adapter, whose `root` is its folder."""
    return {
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [],
    }
