"""Check the deltas of a backend: their types, their counts, and that what they hold can be written."""

import math

from modelyard.domain.completion import Delta, FinishReason, TokenLogprob, ToolCallDelta, Usage
from modelyard.errors import BackendError

_NUMBERS = (int, float)
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "images", "reasoning_tokens")


def validate_delta(delta: Delta, choices: int) -> None:
    """Raise `BackendError` unless this is a delta of one of so many choices, with values of the right types."""
    if type(delta) is not Delta:
        raise BackendError(f"the backend gave a {type(delta).__name__} instead of a Delta")
    if type(delta.text) is not str or not delta.text.isascii():
        _check_text(delta.text, "text")
    if delta.reasoning:
        _check_text(delta.reasoning, "reasoning")
    if type(delta.tokens) is not int or delta.tokens < 0:
        _check_count(delta.tokens, "tokens")
    if type(delta.index) is not int or not 0 <= delta.index < choices:
        raise BackendError(f"the backend gave choice {delta.index!r} of {choices}")
    if delta.finish_reason is not None and type(delta.finish_reason) is not FinishReason:
        raise BackendError(f"the backend gave the finish reason {delta.finish_reason!r}")
    _check_details(delta)


def _check_details(delta: Delta) -> None:
    """Check what few deltas have."""
    if delta.logprobs or delta.prompt_logprobs:
        _check_logprobs(delta)
    if delta.token_ids and len(delta.token_ids) != delta.tokens:
        raise BackendError(f"the backend gave {len(delta.token_ids)} token ids for {delta.tokens} tokens")
    if delta.tool_call is not None:
        _check_call(delta.tool_call)
    if delta.usage is not None:
        _check_usage(delta.usage)
    if delta.stop_string is not None:
        _check_text(delta.stop_string, "a stop string")


def _check_text(text: object, name: str) -> None:
    if type(text) is not str:
        raise BackendError(f"the backend gave a {type(text).__name__} as {name}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BackendError(f"the backend gave {name} that is not Unicode") from None


def _check_count(count: object, name: str) -> None:
    if type(count) is not int or count < 0:
        raise BackendError(f"the backend gave {count!r} as its number of {name}")


def _check_logprobs(delta: Delta) -> None:
    if delta.logprobs and len(delta.logprobs) != delta.tokens:
        raise BackendError(f"the backend gave {len(delta.logprobs)} logprobs for {delta.tokens} tokens")
    for entry in (*delta.logprobs, *delta.prompt_logprobs):
        _check_logprob(entry)
        for other in entry.top:
            _check_logprob(other)


def _check_logprob(entry: TokenLogprob) -> None:
    if type(entry) is not TokenLogprob or not isinstance(entry.logprob, _NUMBERS):
        raise BackendError(f"the backend gave a {type(entry).__name__} instead of a TokenLogprob")
    if not math.isfinite(entry.logprob):
        raise BackendError(f"the backend gave the logprob {entry.logprob!r}")
    if type(entry.token) is not str or not entry.token.isascii():
        _check_text(entry.token, "a token")


def _check_call(call: ToolCallDelta) -> None:
    if type(call) is not ToolCallDelta:
        raise BackendError(f"the backend gave a {type(call).__name__} instead of a ToolCallDelta")
    _check_count(call.index, "a tool call")
    _check_text(call.arguments, "arguments")
    for part, name in ((call.id, "a tool call's id"), (call.name, "a tool's name")):
        if part is not None:
            _check_text(part, name)


def _check_usage(usage: Usage) -> None:
    if type(usage) is not Usage:
        raise BackendError(f"the backend gave a {type(usage).__name__} instead of a Usage")
    for name in _COUNTS:
        _check_count(getattr(usage, name), name)
    if usage.cached_tokens > usage.prompt_tokens:
        raise BackendError("the backend gave more cached tokens than the prompt has")
    if usage.reasoning_tokens > usage.completion_tokens:
        raise BackendError("the backend gave more tokens of reasoning than the answer has")
