"""Completions as vLLM writes them, if that differs from `modelyard.formats.chat`.

Its chunks leave out unset members, so there is no `usage` before the last; the finish reason comes with the last text
and not after it; a named tool that was called ends with "stop"; ids of the prompt are next to the choices; non-ASCII
text is not escaped. A token that is part of a character has no text and no bytes until the character is complete. The
alternatives of a token begin with the sampled one, whether or not it is among the likeliest.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import (
    Choice,
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    TokenLogprob,
    Usage,
    token_bytes,
)
from modelyard.formats.chat.messages import tool_call_object
from modelyard.formats.chat.response import logprobs_object
from modelyard.formats.chat.stream import tool_call_piece

Json = dict[str, Any]

ABORT = "abort"
"""The finish reason of a server that shuts down."""


def dump(value: object) -> str:
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
    fingerprint: str = ""
    _pending: dict[int, bytes] = attrs.field(factory=dict)

    # ---- whole

    def completion(self, completion: Completion) -> Json:
        ids = completion.choices[0].prompt_token_ids
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(choice) for choice in completion.choices],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {
                **usage_object(completion.usage),
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_ids": list(ids) if self.with_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def aborted(self) -> Json:
        """Return the answer of a server that shuts down before it has sent anything."""
        message = Message(Role.ASSISTANT, "")
        choices = [Choice(index, message, FinishReason.STOP) for index in range(self.request.n)]
        body = self.completion(Completion(self.id, self.created, self.model, tuple(choices), Usage()))
        body["choices"] = [{**choice, "finish_reason": ABORT} for choice in body["choices"]]
        return body

    def _choice(self, choice: Choice) -> Json:
        calls = [tool_call_object(call) for call in choice.message.tool_calls]
        message = {
            "role": "assistant",
            "content": choice.message.content or "",
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            **({"tool_calls": calls} if calls else {}),
            "reasoning": choice.message.reasoning or None,
        }
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.index, choice.logprobs or ()),
            "finish_reason": self._reason(choice.finish_reason),
            "stop_reason": choice.stop_string,
            "token_ids": list(choice.token_ids) if self.with_ids else None,
            "routed_experts": None,
        }

    # ---- streamed

    def opening(self, first: Delta) -> Iterator[Json]:
        ids = list(first.prompt_token_ids) if self.with_ids else None
        for index in range(self.request.n):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield {**self._chunk([choice]), "prompt_token_ids": ids, "prompt_text": None}

    def chunks(self, delta: Delta, with_usage: bool) -> Iterator[Json]:
        """Yield the chunk of a delta; none if it would show nothing."""
        shown = _delta_object(delta)
        if not shown and delta.finish_reason is None and not (self.with_logprobs or self.with_ids):
            return
        choice: Json = {
            "index": delta.index,
            "delta": shown,
            "logprobs": self._logprobs(delta.index, delta.logprobs),
            "finish_reason": None,
        }
        ended = delta.finish_reason is not None
        if delta.finish_reason is not None:
            choice |= {"finish_reason": self._reason(delta.finish_reason), "stop_reason": delta.stop_string}
        choice["token_ids"] = list(delta.token_ids) if self.with_ids else None
        yield self._chunk([choice]) | ({"system_fingerprint": self.fingerprint} if ended and not with_usage else {})

    def abortions(self) -> Iterator[Json]:
        """Yield the chunks of a server that shuts down, one for each choice."""
        for index in range(self.request.n):
            choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": ABORT, "stop_reason": None}
            yield self._chunk([{**choice, "token_ids": None}])

    def usage(self, usage: Usage) -> Json:
        return {**self._chunk([]), "usage": usage_object(usage), "system_fingerprint": self.fingerprint}

    def _chunk(self, choices: list[Json]) -> Json:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return {**head, "choices": choices}

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> Mapping[str, Any] | None:
        if not self.with_logprobs or not (entries or not self.request.streamed):
            return None
        return logprobs_object([self._entry(index, entry) for entry in entries])

    def _entry(self, index: int, entry: TokenLogprob) -> TokenLogprob:
        """Return a token with vLLM's alternatives, its text and bytes are the characters that it completes."""
        before = self._pending.get(index, b"")
        others = [other for other in entry.top if token_bytes(other) != token_bytes(entry)]
        ordered = [entry, *others][: len(entry.top)]
        shown = [_with_text(other, before) for other in ordered]
        found = _with_text(entry, before)
        self._pending[index] = b"" if found.token else (before + token_bytes(entry))[-4:]
        return attrs.evolve(found, top=tuple(shown))

    def _reason(self, reason: FinishReason) -> str:
        named = self.request.tool_choice.name is not None
        return "stop" if named and reason is FinishReason.TOOL_CALLS else str(reason)


def usage_object(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _delta_object(delta: Delta) -> Json:
    if delta.tool_call is None:
        reasoning = {"reasoning": delta.reasoning} if delta.reasoning else {}
        return {**reasoning, **({"content": delta.text} if delta.text else {})}
    piece = {"tool_calls": [tool_call_piece(delta.tool_call)]}
    return {"content": None, **piece} if delta.tool_call.id else piece


def _with_text(entry: TokenLogprob, before: bytes) -> TokenLogprob:
    """Return a token without its alternatives; what is part of a character counts together with the bytes before."""
    own = token_bytes(entry)
    for raw in (own, before + own):
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            continue
        return attrs.evolve(entry, token=text or entry.token, bytes=tuple(raw), top=())
    return attrs.evolve(entry, token="", bytes=(), top=())


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


def masked(message: str) -> str:
    below = r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.-]+)+"
    return re.sub(rf"{below}|(?:/[\w-]+)+/[\w-]+\.\w+", "<path>", message)


def model_card(id: str, created: int, *, root: str, parent: str | None, max_model_len: int | None) -> Json:
    """Return an entry of the list of models; `parent` is the base of an adapter, and `root` its folder."""
    return {
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [_permission(id, created)],
    }


def _permission(id: str, created: int) -> Json:
    """Return the permissions of a model: an object that the format has, and that nothing uses."""
    digest = hashlib.sha256(id.encode()).hexdigest()[:16]
    head = {"id": f"modelperm-{digest}", "object": "model_permission", "created": created}
    allowed = {"sampling": True, "logprobs": True, "search_indices": False, "view": True, "fine_tuning": False}
    may = {"allow_create_engine": False, **{f"allow_{what}": may for what, may in allowed.items()}}
    return {**head, **may, "organization": "*", "group": None, "is_blocking": False}
