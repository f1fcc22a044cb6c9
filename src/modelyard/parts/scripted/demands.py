"""The demands of a request on its answer, and whether a script's answer meets them: a server would not send another."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress

from modelyard.backends.json_schema.schemas import Document
from modelyard.backends.json_schema.validation import fits
from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    ResponseType,
    ToolMode,
)
from modelyard.errors import InvalidInput, NoAnswerPrepared
from modelyard.parts.scripted.parts import Item

CUT = {FinishReason.LENGTH, FinishReason.CONTENT_FILTER}
"""How an answer ends that may be any part of what was demanded."""


def checked(answer: Iterable[Item], request: CompletionRequest) -> Iterable[Item]:
    """Return the answer. Raises `NoAnswerPrepared` if it is whole and does not meet the demands."""
    if request.response_format.type is ResponseType.TEXT and request.tool_choice.mode is ToolMode.AUTO:
        return answer
    return _checked(answer, request)


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
        text = "".join(delta.text for delta in deltas)
        _refuse(_unmet(text, [delta.tool_call.name or "" for delta in deltas if delta.tool_call], request), text)
    yield from held
    if broken is not None:
        raise broken


def _refuse(why: str | None, text: str) -> None:
    if why is not None:
        shown = f"{text[:200]!r}" if text else "no text"
        raise NoAnswerPrepared.at(
            "messages",
            msg=f"the script's answer is {shown}, but {why}; for a model that does not do as it is asked "
            "use ScriptedBackend(..., unchecked=True)",
        )


def _unmet(text: str, names: list[str], request: CompletionRequest) -> str | None:
    """Return the demand that is not met. An answer of tool calls alone need not be in the format of the text."""
    called = [name for name in names if name]
    choice = request.tool_choice
    if choice.mode is ToolMode.REQUIRED and (not called or choice.name not in (None, *called)):
        return f"the request insists on a call of {choice.name or 'a tool'}"
    if choice.mode is ToolMode.NONE and called:
        return f"the request wants no tool called, and this calls {called[0]}"
    return None if called else _unformatted(text, request)


def _unformatted(text: str, request: CompletionRequest) -> str | None:
    wanted = request.response_format
    if wanted.type is ResponseType.CHOICE and text not in wanted.choices:
        return f"the request wants one of {', '.join(map(repr, wanted.choices))}"
    if wanted.type not in (ResponseType.JSON_OBJECT, ResponseType.JSON_SCHEMA):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return "the request wants JSON"
    if wanted.type is ResponseType.JSON_OBJECT:
        return None if isinstance(value, dict) else "the request wants a JSON object"
    with suppress(InvalidInput):  # a schema that cannot be decided here
        if not fits(Document(wanted.schema, ()), value, wanted.schema, ()):
            return f"the request wants JSON that is valid under its schema {wanted.name!r}"
    return None
