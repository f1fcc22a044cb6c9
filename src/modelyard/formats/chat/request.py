"""A request in the chat-completion format, as a client of a server sends it."""

from collections.abc import Collection, Mapping
from typing import Any

from modelyard.domain.completion import (
    SAMPLING_PARAMETERS,
    CompletionRequest,
    Message,
    Part,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    ToolChoice,
    ToolMode,
)
from modelyard.formats.chat.messages import plain_message, plain_tool

_ALL_TOKENS = -1
"""What servers that know `top_k` read as "every token"."""


def chat_body(
    request: CompletionRequest, model: str, max_tokens: int | None, parameters: Collection[str]
) -> dict[str, Any]:
    """The JSON of a request for the model that the server calls `model`.

    The sampling `parameters` that the server knows are always said, so that no default of its own takes their place.
    What a conversation calls `developer` is told as `system`, which every chat template knows.
    """
    body = {
        **request.extras,
        "model": model,
        "messages": [_message(message) for message in request.messages],
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


def _sampling(sampling: Sampling, parameters: Collection[str]) -> dict[str, Any]:
    said = {name: getattr(sampling, name) for name in SAMPLING_PARAMETERS if name in parameters}
    if "top_k" in said:
        said["top_k"] = sampling.top_k or _ALL_TOKENS
    if "logit_bias" in said:
        said["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return {name: value for name, value in said.items() if value is not None and value != {}}


def _details(request: CompletionRequest) -> dict[str, Any]:
    """What is said only where it is asked for."""
    said = {
        "n": request.n if request.n > 1 else None,
        "stop": list(request.stop),
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
        "return_token_ids": request.return_token_ids,
        "user": request.user,
    }
    return {name: value for name, value in said.items() if value}


def _structure(request: CompletionRequest) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if request.response_format.type is not ResponseType.TEXT:
        said["response_format"] = _response_format(request.response_format)
    if request.tools:
        said["tools"] = [plain_tool(tool) for tool in request.tools]
        if request.tool_choice != ToolChoice():
            said["tool_choice"] = _tool_choice(request.tool_choice)
        if not request.parallel_tool_calls:
            said["parallel_tool_calls"] = False
    return said


def _response_format(wanted: ResponseFormat) -> Mapping[str, Any]:
    if wanted.type is not ResponseType.JSON_SCHEMA:
        return {"type": wanted.type.value}
    schema = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
    return {"type": wanted.type.value, "json_schema": schema}


def _tool_choice(choice: ToolChoice) -> str | Mapping[str, Any]:
    if choice.mode is ToolMode.REQUIRED and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode.value


def _message(message: Message) -> Mapping[str, Any]:
    said = plain_message(message)
    if message.role is Role.DEVELOPER:
        said["role"] = Role.SYSTEM.value
    if isinstance(message.content, tuple):
        said["content"] = [_part(part) for part in message.content]
    return said


def _part(part: Part) -> Mapping[str, Any]:
    """A part's data lie below its own type's name, whether the domain's value has that name or not."""
    if part.type == "text":
        return {"type": part.type, "text": part.text}
    return {"type": part.type, **(part.data if part.type in part.data else {part.type: part.data})}
