"""The answers that a script may give, and the deltas that they become.

An answer made with `say` is a list of parts in the order in which they happen: reasoning, texts, tokens, tool calls,
pauses and exceptions. Every other kind of answer (a string, a message, a finished choice, a structured value, an
exception) is short for such a list, or consists of deltas already.
"""

import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from enum import Enum
from typing import Any, ClassVar, Protocol

import attrs

from modelyard.backends import echo
from modelyard.backends.deltas import one_by_one
from modelyard.domain.completion import (
    Choice,
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    ToolCallDelta,
    ToolMode,
    Usage,
)
from modelyard.domain.record import EMPTY
from modelyard.errors import ModelyardError
from modelyard.lazy import asyncio
from modelyard.parts.scripted.parts import Called, Item, Part, Parts, Pause, Reasoning, Token, stream_parts, unusable


class PydanticModel(Protocol):
    """An instance of a pydantic model."""

    def model_dump(self, *, mode: str, by_alias: bool) -> Any:
        """Return the fields; with the mode "json", as JSON values."""
        ...


class DataclassInstance(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Structured = Mapping[str, Any] | attrs.AttrsInstance | DataclassInstance | PydanticModel
"""A value that is streamed as JSON: as content, or as the arguments of the tool that must be called."""

Plain = str | Message | Choice | Completion | Called | Reasoning | Parts | Structured | Exception | Iterable[Delta]

Answer = Plain | Callable[[CompletionRequest], Any]
"""What a script may hold: content; a message with tool calls; a finished choice (of a completion the first); a `call`;
a `say`; a structured value; an exception, which is raised; deltas; a function of the request that returns one of them.
"""


def pause(seconds: float) -> Pause:
    """Create a part of `say` that waits for so many seconds on the script's clock."""
    return Pause(seconds)


def call(name: str, /, **arguments: Any) -> Called:
    """Create a call of the tool `name`, as an answer or as a part of `say`.

    >>> call("look_up", order=17).arguments
    '{"order": 17}'
    """
    return Called(name, json_text(arguments))


def reasoning(text: str) -> Reasoning:
    """Create a part of `say` that is reasoning: a piece of the stream that is no content.

    >>> say(reasoning("Two and two."), "4").parts[0].text
    'Two and two.'
    """
    return Reasoning(text)


def token(text: str, logprob: float, others: Mapping[str, float] = EMPTY) -> Token:
    """Create a part of `say` that is one token of this log-probability, with `others` as its alternatives."""
    return Token(text, logprob, others)


def say(*parts: Part, finish: FinishReason | str | None = None, usage: Usage | None = None) -> Parts:
    """Compose an answer from parts; each string is one piece of the stream, and an exception breaks the stream off.

    `finish` is the finish reason, if it does not follow from the parts; `usage` is what the backend reports.

    >>> say("Let me see.", pause(0.5), call("look_up", order=17)).parts[0]
    'Let me see.'
    """
    return Parts(parts, None if finish is None else FinishReason(finish), usage)


def items(answer: Answer, request: CompletionRequest) -> Iterable[Item]:
    """Return the deltas of an answer, and the pauses between them.

    Raises the exceptions that the answer contains, and `NoAnswerPrepared` for an object that is not an answer.
    """
    if isinstance(answer, str):
        return one_by_one(echo.answer_of(answer, request))
    if isinstance(answer, Message):
        return echo.stream_message(answer, request)
    if isinstance(answer, Completion):
        return _finished(answer.choices[0], request)
    if isinstance(answer, Choice):
        return _finished(answer, request)
    if isinstance(answer, Parts):
        return stream_parts(answer, request)
    if isinstance(answer, Called | Reasoning | Token | Pause | Exception):
        return stream_parts(Parts((answer,)), request)
    return _other_items(answer, request)


def _other_items(answer: Any, request: CompletionRequest) -> Iterable[Item]:
    if _is_function(answer):
        return items(_returned(answer, request), request)
    if _is_structured(answer):
        return _structured(answer, request)
    if isinstance(answer, Iterable) and not isinstance(answer, type | bytes):
        return _deltas(answer)
    raise unusable(f"a script cannot answer with {answer!r}; give a string, say(...), call(...) or an exception")


_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What a function raises by mistake; a network or a server fails otherwise."""


def _returned(function: Callable[[CompletionRequest], Any], request: CompletionRequest) -> Any:
    """Return what a function returns; one that is asynchronous runs to its end, on an event loop of its own."""
    with _without_bugs():
        returned = function(request)
        return _waited(returned) if inspect.isawaitable(returned) else returned


async def afunction_result(answer: Answer, request: CompletionRequest) -> Any:
    """Return what a function returns, and any other answer unchanged, on an event loop."""
    given: Any = answer
    while _is_function(given):
        with _without_bugs():
            given = given(request)
            if inspect.isawaitable(given):
                given = await given
    return given


def _waited(awaited: Awaitable[Any]) -> Any:
    """Wait for what is awaitable: in this thread, or in another one if an event loop runs here."""

    async def result() -> Any:
        return await awaited

    context = copy_context()
    if asyncio._get_running_loop() is None:
        return context.run(asyncio.run, result())
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - it is rarely needed, and slow to load

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(context.run, asyncio.run, result()).result()


@contextmanager
def _without_bugs() -> Iterator[None]:
    try:
        yield
    except _BUGS as error:
        if isinstance(error, ModelyardError):
            raise
        raise unusable(f"the script's function failed: {type(error).__name__}: {error}") from error


def _is_function(answer: Any) -> bool:
    return callable(answer) and not isinstance(answer, type)


def _is_structured(answer: Any) -> bool:
    kind = type(answer)
    known = attrs.has(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_dump")
    return isinstance(answer, Mapping) or (known and kind not in (Delta, type))


def _deltas(answer: Iterable[Any]) -> Iterator[Item]:
    for item in answer:
        if isinstance(item, str):
            raise unusable('a script cannot stream a list of strings; to stream them one by one use say("a", "b")')
        if not isinstance(item, Delta | Pause):
            raise unusable(f"a script cannot stream {item!r}; give a list of Delta, or say(...)")
        yield item


def _finished(choice: Choice, request: CompletionRequest) -> Iterable[Delta]:
    """Return a choice with tokens as one delta; stream the message of a choice without tokens, word by word."""
    message, tokens = choice.message, len(choice.logprobs or choice.token_ids)
    if not tokens:
        return echo.stream_message(message, request, choice.finish_reason)
    calls = [ToolCallDelta(at, call.id, call.name, call.arguments) for at, call in enumerate(message.tool_calls)]
    whole = Delta(
        message.text,
        tokens,
        logprobs=choice.logprobs or () if request.logprobs else (),
        token_ids=choice.token_ids if request.return_token_ids else (),
        prompt_token_ids=choice.prompt_token_ids if request.return_token_ids else (),
        reasoning=message.reasoning or "",
    )
    return [whole, *(Delta(tool_call=call) for call in calls), Delta(finish_reason=choice.finish_reason)]


# ---- usage -------------------------------------------------------------------------------------------------------


def usage_of(answer: Answer) -> Usage | None:
    """Return the usage that an answer reports, as far as that is known before the answer is given."""
    if isinstance(answer, Parts):
        return answer.usage
    if isinstance(answer, list | tuple):
        return next((item.usage for item in reversed(answer) if isinstance(item, Delta) and item.usage), None)
    return None


def may_report(answer: Answer) -> bool:
    """Return whether the usage is known only from the answer: of a function, and of deltas still to be made."""
    return _is_function(answer) or isinstance(answer, Iterator)


def with_usage(answer: Iterable[Item], request: CompletionRequest) -> Iterator[Item]:
    """Report the tokens so far with each delta, unless the answer has reported usage itself."""
    prompt, produced, content, reported = echo.count_prompt(request.messages), 0, False, False
    for item in answer:
        if isinstance(item, Delta):
            produced, content = produced + item.tokens, content or bool(item.text or item.reasoning or item.tool_call)
            reported = reported or item.usage is not None
            if not reported and (item.tokens or (item.finish_reason and not content)):
                item = attrs.evolve(item, usage=Usage(prompt, produced))
        yield item


# ---- structured values -------------------------------------------------------------------------------------------


def _structured(value: Structured, request: CompletionRequest) -> Iterable[Item]:
    """Stream as arguments if a certain tool must be called, else as content."""
    tool = _forced_tool(request)
    part: Part = json_text(value) if tool is None else Called(tool, json_text(value))
    return stream_parts(Parts((part,)), request)


def _forced_tool(request: CompletionRequest) -> str | None:
    if request.tool_choice.mode is not ToolMode.REQUIRED or not request.tools:
        return None
    return request.tool_choice.name or request.tools[0].name


def json_text(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise unusable(f"this answer of a script cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if dataclasses.is_dataclass(type(value)):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is not a JSON value")
