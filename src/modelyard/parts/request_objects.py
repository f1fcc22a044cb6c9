"""A request in the chat-completion format, written for another server."""

from collections.abc import Collection, Mapping
from typing import Any

from modelyard.domain.completion import (
    SAMPLING_PARAMETERS,
    TEMPLATE,
    CompletionRequest,
    Message,
    ResponseType,
    Role,
    Sampling,
    ToolChoice,
)
from modelyard.formats.chat.messages import message_object
from modelyard.formats.chat.tools import (
    response_format_object,
    tool_choice_json,
    tool_object,
)

_ALL_TOKENS = -1
"""What servers that know `top_k` read as "every token"."""


def request_object(
    request: CompletionRequest,
    model: str,
    max_tokens: int | None,
    parameters: Collection[str],
    with_reasoning: bool = False,
) -> dict[str, Any]:
    """Return the JSON of a request for the model that the server calls `model`.

    The sampling `parameters` that the server knows are always sent, so that no default of its own takes their place.
    Messages of the role `developer` are sent as `system`, which every chat template knows. The reasoning of earlier
    turns is sent `with_reasoning` only, under both names that servers have for it.
    """
    body = {
        **{name: value for name, value in request.extras.items() if name != TEMPLATE or name in parameters},
        "model": model,
        "messages": [_message(message, with_reasoning) for message in request.messages],
        "stream": request.streamed,
        **_sampling(request.sampling, parameters),
        **_details(request),
        **_structure(request),
    }
    if request.streamed:
        body["stream_options"] = {"include_usage": True}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return body


def _message(message: Message, with_reasoning: bool) -> Mapping[str, Any]:
    written = message_object(message)
    if message.reasoning:
        reasoning = written.pop("reasoning_content")
        written |= {"reasoning_content": reasoning, "reasoning": reasoning} if with_reasoning else {}
    return written | {"role": Role.SYSTEM.value} if message.role is Role.DEVELOPER else written


def _sampling(sampling: Sampling, parameters: Collection[str]) -> dict[str, Any]:
    values = {name: getattr(sampling, name) for name in SAMPLING_PARAMETERS if name in parameters}
    if "top_k" in values:
        values["top_k"] = sampling.top_k or _ALL_TOKENS
    if "logit_bias" in values:
        values["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _details(request: CompletionRequest) -> dict[str, Any]:
    """Return what is sent only where it is not the default."""
    values = {
        "n": request.n if request.n > 1 else None,
        "stop": list(request.stop),
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
        "return_token_ids": request.return_token_ids,
        "user": request.user,
    }
    return {name: value for name, value in values.items() if value}


def _structure(request: CompletionRequest) -> dict[str, Any]:
    values: dict[str, Any] = {}
    form = request.response_format
    if form.type is ResponseType.CHOICE:
        values["structured_outputs"] = {"choice": list(form.choices)}
    elif form.type is ResponseType.REGEX:
        values["structured_outputs"] = {"regex": form.pattern}
    elif form.type is not ResponseType.TEXT:
        values["response_format"] = response_format_object(form)
    if request.tools:
        values["tools"] = [tool_object(tool) for tool in request.tools]
        if request.tool_choice != ToolChoice():
            values["tool_choice"] = tool_choice_json(request.tool_choice)
        if not request.parallel_tool_calls:
            values["parallel_tool_calls"] = False
    return values
