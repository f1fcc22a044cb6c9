"""What OpenAI refuses of chat completions and responses."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from modelyard.parts.doubles.vendors.images import TYPES, is_base64
from modelyard.parts.doubles.vendors.refusal import Refusal, member, objects, texts
from modelyard.parts.doubles.vendors.strict_schemas import why_not_an_object, why_not_strict

NAME = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST_ID, LONGEST_NAME, MOST_TOOLS = 40, 64, 128
DATA = re.compile(r"data:([^;,]*)([^,]*),(.*)", re.DOTALL | re.IGNORECASE)

Body = Mapping[str, Any]


def of_chat(body: Body) -> Iterator[Refusal]:
    """Yield what is refused of the body of a chat completion."""
    yield from _empty(body, "messages", "tools")
    if len(tools := objects(body.get("tools"))) > MOST_TOOLS:
        wanted = (
            f"Expected an array with maximum length {MOST_TOOLS}, but got an array with length {len(tools)} instead."
        )
        yield Refusal(f"Invalid 'tools': array too long. {wanted}", "tools", "array_above_max_length")
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        words = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        yield Refusal(words, "max_tokens", "invalid_parameter_combination")
    yield from _only_with(body, "tools", "tool_choice", "parallel_tool_calls", are="'tools' are specified")
    yield from _only_with(body, "logprobs", "top_logprobs", are="'logprobs' is enabled")
    if body.get("stream_options") is not None and body.get("stream") is not True:
        yield Refusal("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    if body.get("metadata") and not body.get("store"):
        yield Refusal("The 'metadata' parameter is only allowed when 'store' is enabled.", "metadata")
    functions = [member(tool, "function") for tool in tools]
    yield from _tools(functions, ".function")
    yield from _chosen(body.get("tool_choice"), [member(function, "name") for function in functions])
    yield from _unpaired(objects(body.get("messages")))
    for at, message in enumerate(objects(body.get("messages"))):
        for number, part in enumerate(objects(message.get("content"))):
            place = f"messages[{at}].content[{number}].image_url.url"
            yield from _image(member(part, "image_url", "url"), f"Invalid image URL: '{place}'.", place)
    if member(body, "response_format", "type") == "json_object" and not _has_json(body.get("messages")):
        words = "must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        yield Refusal(f"'messages' {words}", "messages")
    yield from _form(member(body, "response_format", "json_schema"), "response_format", None)


def of_responses(body: Body) -> Iterator[Refusal]:
    """Yield what is refused of the body of a response."""
    yield from _empty(body, "input")
    if not body.get("tools") and _insists(body.get("tool_choice")):
        yield Refusal("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    yield from _tools([tool if tool.get("type") == "function" else None for tool in objects(body.get("tools"))], "")
    continued = _goes_on(body)
    if not continued:
        yield from _unpaired_items(objects(body.get("input")))
    for at, item in enumerate(objects(body.get("input"))):
        for name in ("content", "output"):
            for number, part in enumerate(objects(item.get(name))):
                place = f"input[{at}].{name}[{number}].image_url"
                yield from _image(part.get("image_url"), f"Invalid '{place}'.", place)
    asked = [body.get("input"), body.get("instructions")]
    if member(body, "text", "format", "type") == "json_object" and not continued and not _has_json(asked):
        words = "must contain the word 'json' in some form to use 'text.format' of type 'json_object'."
        yield Refusal(f"Response input messages {words}", "input")
    if member(body, "text", "format", "type") == "json_schema":
        yield from _form(member(body, "text", "format"), "text.format.schema", "invalid_json_schema")


def _goes_on(body: Body) -> bool:
    """Return whether the vendor reads more than the body: what it has stored, which is unknown here."""
    stored = any(body.get(name) for name in ("previous_response_id", "conversation", "prompt"))
    return stored or any(item.get("type") == "item_reference" for item in objects(body.get("input")))


def _empty(body: Body, *names: str) -> Iterator[Refusal]:
    for name in names:
        if body.get(name) == []:
            wanted = "Expected an array with minimum length 1, but got an empty array instead."
            yield Refusal(f"Invalid '{name}': empty array. {wanted}", name, "empty_array")


def _only_with(body: Body, other: str, *names: str, are: str) -> Iterator[Refusal]:
    for name in names:
        if body.get(name) is not None and not body.get(other):
            yield Refusal(f"Invalid value for '{name}': '{name}' is only allowed when {are}.", name)


def _insists(choice: object) -> bool:
    return choice == "required" or isinstance(choice, dict)


def _chosen(choice: object, offered: list[Any]) -> Iterator[Refusal]:
    named = member(choice, "function", "name")
    if named is not None and named not in offered:
        yield Refusal(f"Invalid value for 'tool_choice': Tool '{named}' not found in 'tools' parameter.", "tool_choice")


def _tools(functions: list[Any], inside: str) -> Iterator[Refusal]:
    for at, function in enumerate(functions):
        place = f"tools[{at}]{inside}"
        if isinstance(function, dict):
            yield from _named(function.get("name"), f"{place}.name")
            parameters = function.get("parameters")
            wrong = why_not_strict(parameters) if function.get("strict") is True else why_not_an_object(parameters)
            if wrong:
                words = f"Invalid schema for function '{function.get('name')}': {wrong}"
                yield Refusal(words, f"{place}.parameters", "invalid_function_parameters")


def _named(name: object, place: str) -> Iterator[Refusal]:
    if not isinstance(name, str):
        return
    if not NAME.fullmatch(name):
        wanted = "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        yield Refusal(f"Invalid '{place}': string does not match pattern. {wanted}", place, "invalid_value")
    yield from _too_long(name, place, LONGEST_NAME)


def _too_long(text: object, place: str, most: int) -> Iterator[Refusal]:
    if isinstance(text, str) and len(text) > most:
        wanted = f"Expected a string with maximum length {most}, but got a string with length {len(text)} instead."
        yield Refusal(f"Invalid '{place}': string too long. {wanted}", place, "string_above_max_length")


def _image(url: object, words: str, place: str) -> Iterator[Refusal]:
    if isinstance(url, str) and (wrong := _why_no_image(url)):
        wanted = "Expected a base64-encoded data URL with an image MIME type (e.g. 'data:image/png;base64,aGVsbG8=')"
        yield Refusal(f"{words} {wanted}, but got {wrong}.", place, "invalid_value")


def _why_no_image(url: str) -> str:
    """Return what is wrong with the address of an image, or with the image in it; "" if nothing is."""
    if url.lower().startswith(("http://", "https://")):
        return ""
    data = DATA.fullmatch(url)
    if data is None:
        return "a value without the 'data:' prefix" if not url.lower().startswith("data:") else "a value without data"
    if not data[2].lower().endswith(";base64"):
        return "a value without the ';base64' separator"
    if data[1].lower() not in TYPES:
        return f"unsupported MIME type '{data[1]}'"
    if not data[3]:
        return "empty base64-encoded bytes"
    return "" if is_base64(data[3]) else "an invalid base64-encoded value"


def _form(form: object, param: str, code: str | None) -> Iterator[Refusal]:
    if isinstance(form, dict):
        yield from _named(form.get("name"), f"{param.removesuffix('.schema')}.name")
        wrong = why_not_strict(form.get("schema")) if form.get("strict") is True else ""
        if wrong:
            yield Refusal(f"Invalid schema for response_format '{form.get('name')}': {wrong}", param, code)


def _has_json(asked: object) -> bool:
    return any("json" in text.lower() for text in texts(asked))


# ---- calls and their answers ---------------------------------------------------------------------------------------


def _unpaired(messages: list[Mapping[str, Any]]) -> Iterator[Refusal]:
    pending: dict[str, None] = {}
    for at, message in enumerate([*messages, {}]):
        place = f"messages.[{at}].role"
        if message.get("role") == "tool":
            id_ = message.get("tool_call_id")
            if id_ in list(pending):
                del pending[id_]
            elif isinstance(id_, str):
                words = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                yield Refusal(f"Invalid parameter: {words}", place)
            continue
        if pending:
            yield Refusal(_unanswered(pending), place if at < len(messages) else f"messages.[{at - 1}].role")
        yield from _empty_calls(message, at)
        called = [call.get("id") for call in objects(message.get("tool_calls"))]
        for number, id_ in enumerate(called):
            yield from _too_long(id_, f"messages[{at}].tool_calls[{number}].id", LONGEST_ID)
        pending = dict.fromkeys(id_ for id_ in called if isinstance(id_, str))


def _empty_calls(message: Mapping[str, Any], at: int) -> Iterator[Refusal]:
    if message.get("tool_calls") == []:
        place = f"messages[{at}].tool_calls"
        wanted = "Expected an array with minimum length 1, but got an empty array instead."
        yield Refusal(f"Invalid '{place}': empty array. {wanted}", place, "empty_array")


def _unanswered(pending: Mapping[Any, None]) -> str:
    ids = ", ".join(pending)
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {ids}"
    )


def _unpaired_items(items: list[Mapping[str, Any]]) -> Iterator[Refusal]:
    calls, answers = (_ids(items, type_) for type_ in ("function_call", "function_call_output"))
    for id_ in (id_ for id_ in answers if id_ not in calls):
        yield Refusal(f"No tool call found for function call output with call_id {id_}.", "input")
    for id_ in (id_ for id_ in calls if id_ not in answers):
        yield Refusal(f"No tool output found for function call {id_}.", "input")


def _ids(items: list[Mapping[str, Any]], type_: str) -> dict[str, None]:
    """Return the ids of calls in the order of the items; what is no text is the platform's to refuse."""
    ids = (item.get("call_id") for item in items if item.get("type") == type_)
    return dict.fromkeys(id_ for id_ in ids if isinstance(id_, str))
