"""What a backend may say: anything else is nonsense, refused before it reaches a caller, the ledger or the store."""

import math

from modelyard.domain.completion import Delta, FinishReason, TokenLogprob, ToolCallDelta, Usage
from modelyard.errors import BackendError

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "images")


def vet(delta: Delta, choices: int) -> None:
    """Raise `BackendError` unless this is a delta of one of so many choices, with values of their own types."""
    if type(delta) is not Delta:
        raise BackendError(f"the backend gave a {type(delta).__name__} in the place of a Delta")
    _vet_text(delta.text, "text")
    _vet_count(delta.tokens, "tokens")
    if type(delta.index) is not int or not 0 <= delta.index < choices:
        raise BackendError(f"the backend gave choice {delta.index!r}, asked for {choices}")
    if delta.finish_reason is not None and type(delta.finish_reason) is not FinishReason:
        raise BackendError(f"the backend gave the finish reason {delta.finish_reason!r}")
    if delta.logprobs:
        _vet_logprobs(delta)
    if delta.token_ids and len(delta.token_ids) != delta.tokens:
        raise BackendError(f"the backend gave {len(delta.token_ids)} token ids for {delta.tokens} tokens")
    if delta.tool_call is not None:
        _vet_call(delta.tool_call)
    if delta.usage is not None:
        _vet_usage(delta.usage)


def _vet_text(text: object, name: str) -> None:
    if type(text) is not str:
        raise BackendError(f"the backend gave a {type(text).__name__} as {name}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BackendError(f"the backend gave {name} that is no Unicode text") from None


def _vet_count(count: object, name: str) -> None:
    if type(count) is not int or count < 0:
        raise BackendError(f"the backend gave {count!r} as its number of {name}")


def _vet_logprobs(delta: Delta) -> None:
    if len(delta.logprobs) != delta.tokens:
        raise BackendError(f"the backend gave {len(delta.logprobs)} logprobs for {delta.tokens} tokens")
    for entry in delta.logprobs:
        _vet_logprob(entry)
        for other in entry.top:
            _vet_logprob(other)


def _vet_logprob(entry: TokenLogprob) -> None:
    if type(entry) is not TokenLogprob or not isinstance(entry.logprob, int | float):
        raise BackendError(f"the backend gave a {type(entry).__name__} in the place of a TokenLogprob")
    if not math.isfinite(entry.logprob):
        raise BackendError(f"the backend gave the logprob {entry.logprob!r}")
    _vet_text(entry.token, "a token")


def _vet_call(call: ToolCallDelta) -> None:
    if type(call) is not ToolCallDelta:
        raise BackendError(f"the backend gave a {type(call).__name__} in the place of a ToolCallDelta")
    _vet_count(call.index, "a tool call")
    _vet_text(call.arguments, "arguments")
    for part, name in ((call.id, "a tool call's id"), (call.name, "a tool's name")):
        if part is not None:
            _vet_text(part, name)


def _vet_usage(usage: Usage) -> None:
    if type(usage) is not Usage:
        raise BackendError(f"the backend gave a {type(usage).__name__} in the place of a Usage")
    for name in _COUNTS:
        _vet_count(getattr(usage, name), name)
    if usage.cached_tokens > usage.prompt_tokens:
        raise BackendError("the backend gave more cached tokens than the prompt has")
