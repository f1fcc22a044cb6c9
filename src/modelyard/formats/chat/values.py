"""Read a request of Python values: each stands for the JSON that a client would send."""

from collections.abc import Callable, Mapping, Sequence
from json import JSONEncoder
from math import isfinite
from typing import Any

from modelyard.domain.completion import (
    CompletionRequest,
    ContentPart,
    Message,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolChoice,
)
from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import is_unicode
from modelyard.formats.chat.messages import message_object, part_object, tool_call_object
from modelyard.formats.chat.request import read_request
from modelyard.formats.chat.tools import response_format_object, tool_choice_json, tool_object
from modelyard.formats.json import INT64, MAX_DEPTH, loads


def read_values(body: Mapping[str, Any], details: bool) -> CompletionRequest:
    """Read a request of Python values, as if a client had sent them. Raises `InvalidInput`."""
    return read_request(json_data(body), details=details).request


def json_data(body: Mapping[str, Any]) -> dict[str, object]:
    """Return the JSON data that a client would send for these parameters. Raises `InvalidInput`."""
    return {name: _as_sent(name, value) for name, value in body.items()}


def _as_sent(name: str, value: Any) -> object:
    """Return the JSON data that a client would send for a parameter."""
    if _is_data(value, MAX_DEPTH - 1):
        return value
    try:
        raw = _ENCODER.encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput.at(name, msg=f"cannot be written as JSON: {error}", type="json_invalid") from None
    return loads(raw, at=(name,), max_depth=MAX_DEPTH - 1)


def _is_data(value: Any, depth: int) -> bool:
    """Return whether a value is what JSON could have been read as: then there is no need to write and read it."""
    kind = type(value)
    if kind is str:
        return is_unicode(value)
    if kind is dict:
        return depth > 0 and all(
            type(name) is str and is_unicode(name) and _is_data(value[name], depth - 1) for name in value
        )
    if kind is list:
        return depth > 0 and all(_is_data(item, depth - 1) for item in value)
    if kind is int:
        return value in INT64
    return value is None or kind is bool or (kind is float and isfinite(value))


def _json_value(value: object) -> Any:
    """Return the JSON of a value that the encoder does not know."""
    if type(value) in _WRITERS:
        return _WRITERS[type(value)](value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_WRITERS: Mapping[type, Callable[[Any], Any]] = {
    Message: message_object,
    ContentPart: part_object,
    ToolCall: tool_call_object,
    Tool: tool_object,
    ToolChoice: tool_choice_json,
    ResponseFormat: response_format_object,
}
_ENCODER = JSONEncoder(default=_json_value)
