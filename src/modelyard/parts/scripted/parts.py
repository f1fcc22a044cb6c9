"""The parts of a composed answer in the order in which they happen, and the deltas that they become."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from modelyard.backends import echo
from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, NoAnswerPrepared


@attrs.frozen
class Pause:
    """A pause of so many seconds on the script's clock."""

    seconds: float


@attrs.frozen
class Called:
    """A call of a tool; `arguments` is JSON text. Its id is generated when it is streamed."""

    name: str
    arguments: str


@attrs.frozen
class Token:
    """A string that is one token, with its log-probability and its alternatives'."""

    text: str
    logprob: float
    others: Mapping[str, float] = EMPTY


@attrs.frozen
class Reasoning:
    """The text that the model writes before its answer, in one piece of the stream."""

    text: str


Part = str | Reasoning | Called | Token | Pause | Exception


@attrs.frozen
class Parts:
    parts: tuple[Part, ...]
    finish: FinishReason | None = None
    usage: Usage | None = None


Item = Delta | Pause
"""What a script streams."""

# ---- as deltas ---------------------------------------------------------------------------------------------------


@attrs.frozen
class _Piece:
    """One delta to come: its tokens, and their tool call or their log-probability if they are not plain text.

    They are content, unless they belong to a call or are reasoning.
    """

    tokens: Sequence[str]
    call: ToolCallDelta | None = None
    token: Token | None = None
    is_reasoning: bool = False

    def first(self, count: float) -> "_Piece":
        return self if len(self.tokens) <= count else attrs.evolve(self, tokens=self.tokens[: int(count)])

    def delta(self, request: CompletionRequest) -> Delta:
        text = "" if self.call else "".join(self.tokens)
        return Delta(
            "" if self.is_reasoning else text,
            len(self.tokens),
            tool_call=self.call,
            logprobs=_logprobs(self.token, request) if self.token else echo.logprobs(self.tokens, request),
            token_ids=echo.token_ids(self.tokens, request),
            reasoning=text if self.is_reasoning else "",
        )


def stream_parts(answer: Parts, request: CompletionRequest) -> Iterator[Item]:
    """Stream the parts in order, up to the request's token limit, then an empty delta with the finish reason."""
    left = math.inf if request.max_tokens is None else request.max_tokens
    ending = answer.finish or _ending(answer)
    opening = echo.prompt_ids(request.messages) if request.return_token_ids else ()
    for part in _pieces(answer, request):
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
    yield Delta(prompt_token_ids=opening, finish_reason=ending, usage=answer.usage)


def _ending(answer: Parts) -> FinishReason:
    calls = any(isinstance(part, Called) for part in answer.parts)
    return FinishReason.TOOL_CALLS if calls else FinishReason.STOP


def _pieces(answer: Parts, request: CompletionRequest) -> Iterator[_Piece | Pause | Exception]:
    calls = 0
    for part in answer.parts:
        if isinstance(part, str):
            yield _Piece(echo.split_tokens(part))
        elif isinstance(part, Reasoning):
            yield _Piece(echo.split_tokens(part.text), is_reasoning=True)
        elif isinstance(part, Token):
            yield _Piece([part.text], token=part)
        elif isinstance(part, Called):
            made = ToolCall(_call_id(request, calls, part.name), part.name, part.arguments)
            yield from (_Piece([piece.arguments], piece) for piece in echo.call_pieces(calls, made))
            calls += 1
        elif isinstance(part, Pause | Exception):
            yield part
        else:
            raise unusable(f"a script cannot stream {part!r}; give strings, reasoning(...), call(...), ...")


def _call_id(request: CompletionRequest, at: int, name: str) -> str:
    """Return an id that depends on the place in the conversation alone, and is unique there."""
    key = f"{len(request.messages)}:{at}:{name}"
    return f"call_{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _logprobs(token: Token, request: CompletionRequest) -> tuple[TokenLogprob, ...]:
    if not request.logprobs:
        return ()
    likely = sorted({**token.others, token.text: token.logprob}.items(), key=lambda one: -one[1])
    top = tuple(_entry(text, logprob) for text, logprob in likely[: request.top_logprobs])
    return (attrs.evolve(_entry(token.text, token.logprob), top=top),)


def _entry(text: str, logprob: float) -> TokenLogprob:
    return TokenLogprob(text, logprob, tuple(text.encode("utf-8", "surrogatepass")), id=echo.token_id(text))


def unusable(message: str) -> InvalidInput:
    """Return the error for an answer that a script cannot give: a fault of the test, not to be tried again."""
    return NoAnswerPrepared.at("messages", msg=message)
