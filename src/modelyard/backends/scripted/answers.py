"""What a script may answer with, and the deltas that it becomes.

An answer that is `say`-d is a list of parts in the order in which they happen: texts, tokens, tool calls, pauses and
faults. Every other kind of answer (a text, a message, a finished choice, a structured value, an exception) is short for
one of those lists, or holds its deltas already.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from modelyard.backends import fixed_text as words
from modelyard.domain.completion import (
    Choice,
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    ToolCall,
    ToolCallDelta,
    ToolMode,
    Usage,
)
from modelyard.domain.logprobs import TokenLogprob
from modelyard.domain.record import EMPTY
from modelyard.errors import BackendError


@attrs.frozen
class Pause:
    """Nothing is said for so many seconds of the script's clock."""

    seconds: float


@attrs.frozen
class Called:
    """A call of a tool; `arguments` is JSON text. Its id is made when it is said."""

    name: str
    arguments: str


@attrs.frozen
class Token:
    """A text that is one token, with its log-probability and those of the tokens that might have come instead."""

    text: str
    logprob: float
    others: Mapping[str, float] = EMPTY


Part = str | Called | Token | Pause | Exception


@attrs.frozen
class Said:
    """Parts in the order in which they happen, why the answer ends, and the usage that is reported."""

    parts: tuple[Part, ...]
    finish: FinishReason | None = None
    usage: Usage | None = None


Structured = Mapping[str, Any] | attrs.AttrsInstance
"""A value that is said as JSON: content, or the arguments of the tool that must be called."""

Plain = str | Message | Choice | Completion | Called | Said | Structured | Exception | Iterable[Delta]

Answer = Plain | Callable[[CompletionRequest], Any]
"""What a script may hold: content; a message with tool calls; a finished choice (of a completion the first); a `call`;
a `say`; a structured value; an exception, which is raised; deltas; a function of the request that returns one of them.
"""

Item = Delta | Pause


def pause(seconds: float) -> Pause:
    """A part of `say`: wait for so many seconds of the script's clock."""
    return Pause(seconds)


def call(name: str, /, **arguments: Any) -> Called:
    """A call of the tool `name`, as an answer or as a part of `say`.

    >>> call("look_up", order=17).arguments
    '{"order": 17}'
    """
    return Called(name, json_text(arguments))


def token(text: str, logprob: float, others: Mapping[str, float] = EMPTY) -> Token:
    """A part of `say` that is one token of this log-probability, with `others` as the alternatives to it."""
    return Token(text, logprob, others)


def say(*parts: Part, finish: FinishReason | str | None = None, usage: Usage | None = None) -> Said:
    """An answer part by part; each text is one piece of the stream. An exception breaks the stream off where it stands.

    `finish` says why the answer ends, where that is not told by its parts; `usage` is what the backend reports.

    >>> say("Let me see.", pause(0.5), call("look_up", order=17)).parts[0]
    'Let me see.'
    """
    return Said(parts, None if finish is None else FinishReason(finish), usage)


def items(answer: Answer, request: CompletionRequest) -> Iterable[Item]:
    """The deltas of an answer, and the pauses between them. Raises what the answer says, and `BackendError` for what is
    no answer."""
    if isinstance(answer, str):
        return words.stream_text(answer, request)
    if isinstance(answer, Message):
        return words.say_message(answer, request)
    if isinstance(answer, Completion):
        return _finished(answer.choices[0], request)
    if isinstance(answer, Choice):
        return _finished(answer, request)
    if isinstance(answer, Said):
        return _spoken(answer, request)
    if isinstance(answer, Called | Token | Pause | Exception):
        return _spoken(Said((answer,)), request)
    return _other_items(answer, request)


def _other_items(answer: Any, request: CompletionRequest) -> Iterable[Item]:
    if callable(answer) and not isinstance(answer, type):
        return items(answer(request), request)
    if isinstance(answer, Mapping) or (attrs.has(type(answer)) and not isinstance(answer, Delta)):
        return _structured(answer, request)
    if isinstance(answer, Iterable) and not isinstance(answer, type | bytes):
        return answer
    raise BackendError(f"a script cannot answer with {answer!r}; give a text, say(...), call(...) or an exception")


def _finished(choice: Choice, request: CompletionRequest) -> Iterable[Delta]:
    """A choice with tokens of its own is given whole; one without is said in words."""
    message, tokens = choice.message, len(choice.logprobs or choice.token_ids)
    if not tokens:
        return words.say_message(message, request, choice.finish_reason)
    calls = [ToolCallDelta(at, call.id, call.name, call.arguments) for at, call in enumerate(message.tool_calls)]
    spoken = Delta(
        message.text,
        tokens,
        logprobs=choice.logprobs or () if request.logprobs else (),
        token_ids=choice.token_ids if request.return_token_ids else (),
        prompt_token_ids=choice.prompt_token_ids if request.return_token_ids else (),
    )
    return [spoken, *(Delta(tool_call=call) for call in calls), Delta(finish_reason=choice.finish_reason)]


# ---- structured values -------------------------------------------------------------------------------------------


def _structured(value: Structured, request: CompletionRequest) -> Iterable[Item]:
    """As arguments where a certain tool must be called, else as content."""
    tool = _forced_tool(request)
    said: Part = json_text(value) if tool is None else Called(tool, json_text(value))
    return _spoken(Said((said,)), request)


def _forced_tool(request: CompletionRequest) -> str | None:
    if request.tool_choice.mode is not ToolMode.REQUIRED or not request.tools:
        return None
    return request.tool_choice.name or request.tools[0].name


def json_text(value: object) -> str:
    """The JSON of a structured value. Raises `BackendError` for one that has none."""
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise BackendError(f"a script cannot say this as JSON: {error}") from None


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is no JSON value")


# ---- part by part ------------------------------------------------------------------------------------------------


@attrs.frozen
class _Piece:
    """One delta to come: its tokens, and what they are if they are no certain text."""

    tokens: Sequence[str]
    call: ToolCallDelta | None = None
    token: Token | None = None

    def first(self, count: float) -> "_Piece":
        """The piece with no more than so many tokens."""
        return self if len(self.tokens) <= count else attrs.evolve(self, tokens=self.tokens[: int(count)])

    def delta(self, request: CompletionRequest) -> Delta:
        """The piece as the request wants it."""
        return Delta(
            "" if self.call else "".join(self.tokens),
            len(self.tokens),
            tool_call=self.call,
            logprobs=_logprobs(self.token, request) if self.token else words.logprobs(self.tokens, request),
            token_ids=words.token_ids(self.tokens, request),
        )


def _spoken(said: Said, request: CompletionRequest) -> Iterator[Item]:
    """The parts one after the other, up to the request's token limit, then an empty delta with the finish reason."""
    left = math.inf if request.max_tokens is None else request.max_tokens
    ending = said.finish or _ending(said)
    opening = words.prompt_ids(request.messages) if request.return_token_ids else ()
    for part in _in_turn(said, request):
        if isinstance(part, Exception):
            raise part
        if isinstance(part, Pause):
            yield part
            continue
        if left > 0:
            yield attrs.evolve(part.first(left).delta(request), prompt_token_ids=opening)
            opening = ()
        left -= len(part.tokens)
        if left < 0:
            ending = FinishReason.LENGTH
            break
    yield Delta(prompt_token_ids=opening, finish_reason=ending, usage=said.usage)


def _ending(said: Said) -> FinishReason:
    calls = any(isinstance(part, Called) for part in said.parts)
    return FinishReason.TOOL_CALLS if calls else FinishReason.STOP


def _in_turn(said: Said, request: CompletionRequest) -> Iterator[_Piece | Pause | Exception]:
    calls = 0
    for part in said.parts:
        if isinstance(part, str):
            yield _Piece(words.split_tokens(part))
        elif isinstance(part, Token):
            yield _Piece([part.text], token=part)
        elif isinstance(part, Called):
            made = ToolCall(_call_id(request, calls, part.name), part.name, part.arguments)
            yield from (_Piece([piece.arguments], piece) for piece in words.call_pieces(calls, made))
            calls += 1
        elif isinstance(part, Pause | Exception):
            yield part
        else:
            raise BackendError(f"a script cannot say {part!r}; give texts, call(...), token(...), pause(...)")


def _call_id(request: CompletionRequest, at: int, name: str) -> str:
    """The same at the same place of a conversation, and no other there has it."""
    key = f"{len(request.messages)}:{at}:{name}"
    return f"call_{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def _logprobs(said: Token, request: CompletionRequest) -> tuple[TokenLogprob, ...]:
    if not request.logprobs:
        return ()
    likely = sorted({**said.others, said.text: said.logprob}.items(), key=lambda one: -one[1])
    top = tuple(_entry(text, logprob) for text, logprob in likely[: request.top_logprobs])
    return (attrs.evolve(_entry(said.text, said.logprob), top=top),)


def _entry(text: str, logprob: float) -> TokenLogprob:
    return TokenLogprob(text, logprob, tuple(text.encode("utf-8", "surrogatepass")), id=words.token_id(text))
