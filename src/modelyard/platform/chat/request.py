"""A request in an application's own words: the parameters of the chat-completion format as keywords.

Python is the format's caller like any other: what HTTP refuses is refused here, in the same words at the same place. A
string stands for one message of the user, and values such as `Message` and `Tool` for their JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from modelyard.domain import models
from modelyard.domain.completion import CompletionRequest, Message, ResponseFormat, Tool, ToolChoice
from modelyard.errors import InvalidInput
from modelyard.formats.chat import values
from modelyard.formats.chat.plain_fast import plain_messages, plain_request

Messages = str | Sequence[Message | Mapping[str, Any]]


class SamplingOptions(TypedDict, total=False):
    """How tokens are sampled, whatever is continued. None means the default."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    seed: int | None
    min_tokens: int | None
    ignore_eos: bool | None
    stop_token_ids: Sequence[int] | None


class GenerationOptions(SamplingOptions, total=False):
    """The parameters of a completion, besides model and messages. None means the default."""

    n: int | None
    max_tokens: int | None
    max_completion_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: bool | None
    top_logprobs: int | None
    tools: Sequence[Tool | Mapping[str, Any]] | None
    tool_choice: ToolChoice | str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: ResponseFormat | Mapping[str, Any] | None
    structured_outputs: Mapping[str, Any] | None
    return_token_ids: bool | None
    user: str | None
    metadata: Mapping[str, str] | None
    store: bool | None
    modalities: Sequence[Literal["text"]] | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_effort: str | None
    verbosity: str | None
    service_tier: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    prediction: Mapping[str, Any] | None


class CompletionOptions(GenerationOptions, total=False):
    """The keywords of a completion. None means the default, as leaving it out does."""

    model: "str | models.Model | models.Checkpoint"
    messages: Messages


class ChatOptions(CompletionOptions, total=False):
    """The keywords of `chat.complete`: those of a completion, and the entity and project that it is recorded for."""

    entity: str | None
    project: str | None


_OF_HTTP: Mapping[str, str] = {
    "stream": "call stream or astream",
    "stream_options": "call stream or astream",
    "return_tokens_as_token_ids": "log-probabilities have the ids of their tokens",
}
"""Parameters of the format that are methods here, or say how an answer is written."""


def build_request(options: CompletionOptions, streamed: bool, details: bool = False) -> CompletionRequest:
    """Read the request that these keywords make. Raises `InvalidInput` naming everything that does not fit.

    `details` says that log-probabilities are shown unless they are declined.
    """
    given = options.get("messages")
    if given is not None and type(given) is not list:
        options = {**options, "messages": _listed(given)}
    of_http = len(options) > 2 and not _OF_HTTP.keys().isdisjoint(options)
    plain = None if of_http else plain_request(options, streamed)
    return plain or _read(options, streamed, details)


def _read(options: CompletionOptions, streamed: bool, details: bool) -> CompletionRequest:
    for name, instead in _OF_HTTP.items():
        if name in options:
            raise InvalidInput.at(name, msg=f"is not a parameter here: {instead}")
    return values.read_values({**options, "stream": streamed}, details)


def build_messages(messages: Messages) -> tuple[Message, ...]:
    """Read messages as `build_request` does."""
    listed = _listed(messages)
    return plain_messages(listed) or _read({"model": "-", "messages": listed}, streamed=False, details=False).messages


def _listed(messages: Any) -> Any:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return list(messages) if isinstance(messages, tuple) else messages
