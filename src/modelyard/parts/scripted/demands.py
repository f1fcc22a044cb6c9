"""The demands of a request on its answer, and whether a script's answer meets them: a server would not send another."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Never

from modelyard import safe_regex
from modelyard.backends.json_schema.schemas import MAX_STEPS, Document, Loc
from modelyard.backends.json_schema.validation import fits
from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    ResponseFormat,
    ResponseType,
    ToolMode,
)
from modelyard.errors import BackendError, InvalidInput, NoAnswerPrepared
from modelyard.parts.scripted.parts import Item, unusable
from modelyard.parts.scripted.text_formats import StrictDocument
from modelyard.platform.chat.delta_checks import validate_delta

CUT = {FinishReason.LENGTH, FinishReason.CONTENT_FILTER}
"""How an answer ends that may be any part of what was demanded."""

STEPS_PER_CHARACTER = 100
"""Steps of work that checking an answer may take for each of its characters, besides `MAX_STEPS`."""

_SCHEMA: Loc = ("response_format", "json_schema", "schema")


def writable(answer: Iterable[Item], request: CompletionRequest) -> Iterator[Item]:
    """Yield the answer. Raises `NoAnswerPrepared` at what no server could write, such as text that is not Unicode."""
    for item in answer:
        if isinstance(item, Delta):
            try:
                validate_delta(item, request.n)
            except BackendError as wrong:
                raise unusable(f"this answer of the script cannot be given: {wrong}") from None
        yield item


def checked(answer: Iterable[Item], request: CompletionRequest) -> Iterable[Item]:
    """Return the answer. Raises `NoAnswerPrepared` if it is whole and does not meet the demands or calls what is not
    offered, and `InvalidInput` for a schema or a pattern that is not decided here, at its place."""
    answer = _offered(answer, request)
    free = request.response_format.type is ResponseType.TEXT and request.tool_choice.mode is ToolMode.AUTO
    of_any_length = not (request.sampling.min_tokens or request.sampling.ignore_eos)
    if free and of_any_length and not any(tool.strict for tool in request.tools):
        return answer
    return _checked(answer, request)


def _offered(answer: Iterable[Item], request: CompletionRequest) -> Iterator[Item]:
    """Yield the answer, up to the call of a tool that the request does not offer. A name may come in pieces."""
    offered, names = [tool.name for tool in request.tools], dict[int, str]()
    for item in answer:
        if isinstance(item, Delta):
            made = item.tool_call
            if made and made.name:
                names[made.index] = names.get(made.index, "") + made.name
            whole = item.finish_reason is not None and item.finish_reason not in CUT
            for name in names.values():
                if name not in offered and (whole or not any(tool.startswith(name) for tool in offered)):
                    raise _not_offered(name, offered)
        yield item


def _not_offered(name: str, offered: list[str]) -> InvalidInput:
    tools = f"the tools {', '.join(map(repr, offered))}" if offered else "no tools"
    return _refusal(f"a call of {name!r}", f"the request offers {tools}")


def _checked(answer: Iterable[Item], request: CompletionRequest) -> Iterator[Item]:
    """Hold the answer back until it is known. An answer that breaks off is passed on as far as it came."""
    held: list[Item] = []
    broken: Exception | None = None
    try:
        for item in answer:
            held.append(item)  # those before an exception stay
    except Exception as error:  # noqa: BLE001 - what the script raises is its answer, and is raised in its place
        broken = error
    deltas = [item for item in held if isinstance(item, Delta)]
    if broken is None and not any(delta.finish_reason in CUT for delta in deltas):
        text, calls = "".join(delta.text for delta in deltas), _calls(deltas)
        if why := _unmet(text, calls, request) or _too_short(deltas, request):
            raise _refusal(_shown(text, calls), why)
    yield from held
    if broken is not None:
        raise broken


def _calls(deltas: Iterable[Delta]) -> list[tuple[str, str]]:
    """Return the name and the arguments of each call."""
    names, arguments = dict[int, str](), dict[int, str]()
    for call in (delta.tool_call for delta in deltas if delta.tool_call):
        names[call.index] = names.get(call.index, "") + (call.name or "")
        arguments[call.index] = arguments.get(call.index, "") + call.arguments
    return [(names[index], arguments[index]) for index in names]


def _shown(text: str, calls: list[tuple[str, str]]) -> str:
    said = [f"{text[:200]!r}"] * bool(text) + [f"a call of {name} with {given[:200]!r}" for name, given in calls]
    return ", ".join(said) or "empty"


def _refusal(shown: str, why: str) -> InvalidInput:
    return NoAnswerPrepared.at(
        "messages",
        msg=f"the script's answer is {shown}, but {why}; for a model that does not do as it is asked "
        "use ScriptedBackend(..., unchecked=True)",
    )


def _unmet(text: str, calls: list[tuple[str, str]], request: CompletionRequest) -> str | None:
    """Return the demand that is not met. An answer of tool calls alone need not be in the format of the text."""
    called = [name for name, _ in calls]
    choice = request.tool_choice
    if choice.mode is ToolMode.REQUIRED and (not called or choice.name not in (None, *called)):
        return f"the request insists on a call of {choice.name or 'a tool'}"
    if choice.mode is ToolMode.NONE and called:
        return f"the request wants no tool called, and this calls {called[0]}"
    return _wrong_arguments(calls, request) if called else _unformatted(text, request.response_format)


def _too_short(deltas: list[Delta], request: CompletionRequest) -> str | None:
    """Return the demand on its length that an answer does not meet which ended by itself."""
    sampling = request.sampling
    if sum(delta.tokens for delta in deltas) < sampling.min_tokens:
        return f"the request wants at least {sampling.min_tokens} tokens"
    if sampling.ignore_eos and not (request.stop or sampling.stop_token_ids):
        return "the request ignores the end of a turn, so that its answers end with finish='length' only"
    return None


def _wrong_arguments(calls: list[tuple[str, str]], request: CompletionRequest) -> str | None:
    """Return the demand of a strict tool that its arguments do not meet."""
    strict = {tool.name: (at, tool.parameters) for at, tool in enumerate(request.tools) if tool.strict}
    for name, arguments in calls:
        if name in strict:
            at, parameters = strict[name]
            schema = {"type": "object", **parameters}
            wrong = _invalid(arguments, schema, ("tools", at, "function", "parameters"))
            if wrong is not None:
                return f"the request wants arguments of {name!r}, which is strict, that are {wrong}"
    return None


def _unformatted(text: str, wanted: ResponseFormat) -> str | None:
    if wanted.type is ResponseType.CHOICE and text not in wanted.choices:
        return f"the request wants one of {', '.join(map(repr, wanted.choices))}"
    if wanted.type is ResponseType.REGEX and not _matches(wanted.pattern, text):
        return f"the request wants a text that matches {wanted.pattern!r}"
    if wanted.type is ResponseType.JSON_OBJECT:
        return None if isinstance(_parsed(text), dict) else "the request wants a JSON object"
    if wanted.type is ResponseType.JSON_SCHEMA:
        wrong = _invalid(text, wanted.schema, _SCHEMA)
        return None if wrong is None else f"the request wants {wrong} {wanted.name!r}"
    return None


def _matches(pattern: str, text: str) -> bool:
    try:
        node = safe_regex.parse(f"^(?:{pattern})$")
    except safe_regex.PatternError as unknown:
        msg = f"{unknown}, which is not decided here; use a simpler pattern, or ScriptedBackend(..., unchecked=True)"
        raise InvalidInput.at("structured_outputs", "regex", msg=msg) from None
    return safe_regex.matches(node, text, Document({}, ("structured_outputs", "regex"), _steps(text)).spend)


def _steps(text: str) -> int:
    return MAX_STEPS + STEPS_PER_CHARACTER * len(text)


def _invalid(text: str, schema: Mapping[str, Any], loc: Loc) -> str | None:
    """Return what is wanted if a text is not JSON that is valid under a schema."""
    value = _parsed(text)
    if value is _NOT_JSON:
        return "JSON"
    try:
        return None if fits(StrictDocument(schema, loc, _steps(text)), value, schema, loc) else _VALID
    except RecursionError:
        raise InvalidInput.at(*loc, msg="nests this answer too deep to be checked") from None


_NOT_JSON = object()
_VALID = "JSON that is valid under its schema"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _no_json(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")
