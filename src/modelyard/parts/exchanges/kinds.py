"""Requests and answers of each format, as turns. Only what was said is read of a request: it was judged when it was
made. Problems are located below `request` or `response`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob
from modelyard.domain.training import SampledChoice
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import read_messages
from modelyard.formats.chat.tools import FunctionTool, read_tool
from modelyard.formats.constraints import Only, Within
from modelyard.formats.converter import structure_exactly
from modelyard.formats.trajectories import choice_of
from modelyard.parts.completions.formats.request import Prompt, read_prompts
from modelyard.parts.exchanges.branches import RecordedTurn
from modelyard.parts.messages.formats.blocks import AssistantTurn
from modelyard.parts.messages.formats.blocks import messages_of as messages_of_turns
from modelyard.parts.messages.formats.request import read_counted
from modelyard.parts.responses.conversation import with_instructions
from modelyard.parts.responses.formats.items import ItemReference, ResponseItem, messages_of, read_items
from modelyard.parts.responses.formats.request import ParsedResponse, read_counted_response

Json = Mapping[str, Any]
T = TypeVar("T")


def _below(place: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except InvalidInput as wrong:
        raise wrong.below(place) from None


# ---- chats -------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Choices:
    """The choices of an answer, whatever else it has."""

    IGNORED = ...

    choices: tuple[Mapping[str, Any], ...]
    prompt_token_ids: Sequence[int] | None = None


@attrs.frozen
class _ChatAsked:
    IGNORED = ...

    messages: tuple[Message, ...] = attrs.field(metadata={"parser": read_messages})
    tools: tuple[FunctionTool, ...] = ()


def chat_completion(request: Json, response: Json) -> RecordedTurn:
    asked = structure_exactly(_ChatAsked, request, "request")
    answered = structure_exactly(_Choices, response, "response")
    shared = {"prompt_token_ids": answered.prompt_token_ids}
    answers = _numbered(lambda _, choice: choice_of({**shared, **choice}), answered.choices)
    return RecordedTurn(asked.messages, tuple(map(read_tool, asked.tools)), tuple(answers))


def _numbered(read: Callable[[int, Json], T], choices: Sequence[Json]) -> list[T]:
    found: list[T] = []
    for at, choice in enumerate(choices):
        try:
            found.append(read(at, choice))
        except InvalidInput as wrong:
            raise wrong.below("response", "choices", at) from None
    return found


# ---- prompts -----------------------------------------------------------------------------------------------------


@attrs.frozen
class _TextLogprobs:
    IGNORED = ...

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]


@attrs.frozen
class _TextChoice:
    IGNORED = ...

    text: str
    index: int | None = None
    finish_reason: str | None = None
    logprobs: _TextLogprobs | None = None
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None


@attrs.frozen
class _PromptAsked:
    IGNORED = ...

    prompt: Sequence[Prompt] = attrs.field(metadata={"parser": read_prompts})
    n: int = attrs.field(default=1, validator=Within(1))
    echo: object = attrs.field(
        default=None, validator=Only((False,), "must be false: the text of the prompt was not sampled")
    )


def completion(request: Json, response: Json) -> Sequence[SampledChoice]:
    """Return the continuations of prompts. Each needs the ids of its prompt: without a template, its text may have been
    read in more than one manner.
    """
    asked = structure_exactly(_PromptAsked, request, "request")

    def read(at: int, raw: Json) -> SampledChoice:
        choice = structure_exactly(_TextChoice, raw)
        prompt = asked.prompt[min((at if choice.index is None else choice.index) // asked.n, len(asked.prompt) - 1)]
        ids = choice.prompt_token_ids or (prompt if isinstance(prompt, tuple) else ())
        if not ids:
            raise InvalidInput.at("prompt_token_ids", msg="is required: ask with return_token_ids", type="missing")
        members = {name: raw.get(name) for name in ("finish_reason", "token_ids")}
        spoken = {"role": "assistant", "content": choice.text}
        return choice_of({**members, "message": spoken, "prompt_token_ids": list(ids), "logprobs": _logprobs(choice)})

    return _numbered(read, structure_exactly(_Choices, response, "response").choices)


def _logprobs(choice: _TextChoice) -> Json | None:
    if choice.logprobs is None:
        return None
    pairs = zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=False)
    return {"content": [{"token": token, "logprob": logprob} for token, logprob in pairs if logprob is not None]}


# ---- messages ----------------------------------------------------------------------------------------------------

_STOPPED = {
    "max_tokens": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
}


def message(request: Json, response: Json, trained: bool = False) -> RecordedTurn:
    """Return a turn. The format has no log-probabilities, so only the tokens of an answer can be trained."""
    asked = {name: request[name] for name in ("model", "messages", "system", "tools") if name in request}
    read = _below("request", lambda: read_counted({"model": "-", **asked}))
    turn = _below(
        "response",
        lambda: structure_exactly(AssistantTurn, {"role": "assistant", "content": response.get("content") or []}),
    )
    (answer,) = messages_of_turns(None, [turn])
    finish = _STOPPED.get(str(response.get("stop_reason")), FinishReason.STOP)
    for name in ("token_ids", "logprobs") if trained else ():
        if not response.get(name):
            msg = "is required, as this answer is trained: ask a server that returns token_ids and logprobs"
            raise InvalidInput.at("response", name, msg=msg, type="missing")
    sampled = _below("response", lambda: _with_tokens(SampledChoice(answer, finish), response))
    return RecordedTurn(read.messages, read.tools, (sampled,))


def _with_tokens(sampled: SampledChoice, response: Json) -> SampledChoice:
    """Return the answer with the tokens that servers for training write next to its blocks, if they are there."""
    ids, logprobs = response.get("token_ids"), response.get("logprobs")
    if not ids or not logprobs:
        return sampled
    tokens = [{"token": "", "logprob": one} for one in structure_exactly(tuple[float, ...], logprobs, "logprobs")]
    plain = {"token_ids": ids, "prompt_token_ids": response.get("prompt_token_ids"), "logprobs": {"content": tokens}}
    read = choice_of({"message": {"content": ""}, **plain})
    return attrs.evolve(read, message=sampled.message, finish_reason=sampled.finish_reason)


# ---- responses ---------------------------------------------------------------------------------------------------

_ASKED = ("model", "input", "instructions", "tools")


@attrs.frozen
class _Output:
    IGNORED = ...

    output: tuple[ResponseItem, ...] = attrs.field(metadata={"parser": read_items})


class ResponseChain:
    """Reads responses in their order: each may continue an earlier one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ResponseItem, ...]] = {}
        self._items: dict[str, ResponseItem] = {}

    def turn(self, request: Json, response: Json) -> RecordedTurn:
        parsed, items = _below("request", lambda: self._asked(request))
        output = structure_exactly(_Output, response, "response").output
        self._items |= {item.id: item for item in output if item.id is not None}
        if isinstance(response.get("id"), str):
            self._known[response["id"]] = (*items, *output)
        answer, finish = _answer(output, response)
        sampled = SampledChoice(answer, finish, _below("response", lambda: _sampled_logprobs(response)))
        return RecordedTurn(with_instructions(parsed, messages_of(items)), parsed.request.tools, (sampled,))

    def _asked(self, request: Json) -> tuple[ParsedResponse, tuple[ResponseItem, ...]]:
        parsed = read_counted_response({"model": "-", **{name: request[name] for name in _ASKED if name in request}})
        items = [self._resolved(at, item) for at, item in enumerate(parsed.items)]
        return parsed, (*self._before(request.get("previous_response_id")), *items)

    def _before(self, id: Any) -> tuple[ResponseItem, ...]:
        if id is None:
            return ()
        if id not in self._known:
            raise InvalidInput.at("previous_response_id", msg="names a response that is not among these exchanges")
        return self._known[id]

    def _resolved(self, at: int, item: ResponseItem) -> ResponseItem:
        if not isinstance(item, ItemReference):
            return item
        if item.id not in self._items:
            raise InvalidInput.at("input", at, "id", msg="names an item that is not among these exchanges")
        return self._items[item.id]


def _answer(output: Sequence[ResponseItem], response: Json) -> tuple[Message, FinishReason]:
    found = [one for one in messages_of(output) if one.role is Role.ASSISTANT]
    answer = found[-1] if found else Message(Role.ASSISTANT, "")
    if response.get("status") == "incomplete":
        return answer, FinishReason.LENGTH
    return answer, FinishReason.TOOL_CALLS if answer.tool_calls else FinishReason.STOP


def _sampled_logprobs(response: Json) -> tuple[TokenLogprob, ...] | None:
    """Return the log-probabilities of a text that is all of an answer."""
    parts = [part for item in response["output"] for part in item.get("content") or () if item.get("type") == "message"]
    if len(parts) != 1 or not parts[0].get("logprobs") or len(response["output"]) != 1:
        return None
    sampled = choice_of({"message": {"content": ""}, "logprobs": {"content": parts[0]["logprobs"]}})
    return sampled.logprobs
