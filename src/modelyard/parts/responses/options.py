"""A request for a response in an application's own words: the parameters of the format as keywords."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from modelyard.errors import InvalidInput
from modelyard.formats.chat.values import json_data
from modelyard.parts.responses.formats.request import ParsedResponse, read_response_request

InputItems = str | Sequence[Mapping[str, Any]]


class ResponseOptions(TypedDict, total=False):
    """The keywords of `responses.create`. None means the default, as leaving it out does."""

    model: str
    input: InputItems
    instructions: str | None
    previous_response_id: str | None
    store: bool | None
    background: bool | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    include: Sequence[str] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    max_tool_calls: int | None
    text: Mapping[str, Any] | None
    reasoning: Mapping[str, Any] | None
    truncation: Literal["auto", "disabled"] | None
    metadata: Mapping[str, str] | None
    user: str | None
    safety_identifier: str | None
    service_tier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    entity: str | None
    project: str | None


def read_options(options: ResponseOptions, streamed: bool) -> ParsedResponse:
    """Read the request that these keywords make. Raises `InvalidInput` naming everything that does not fit."""
    for name in ("stream", "stream_options"):
        if name in options:
            raise InvalidInput.at(name, msg="is not a parameter here: call stream or astream")
    if streamed and options.get("background"):
        raise InvalidInput.at("background", msg="cannot be streamed here: call create, and then follow")
    body = {name: value for name, value in options.items() if name not in ("entity", "project")}
    return read_response_request({**json_data(body), "stream": streamed})
