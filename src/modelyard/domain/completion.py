"""Completions: the request, the deltas of an answer, and the completion that they fold into (specification 2)."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.frozen_fast import copies, quick_init
from modelyard.domain.record import EMPTY, Index, Record, brief, frozen_mapping, in_notebook, sequence_field
from modelyard.errors import Problem


@quick_init
@attrs.frozen(weakref_slot=False)
class TokenLogprob:
    """A token and its natural-log probability (<= 0). An end-of-turn token has empty text and bytes. `rank` counts from
    1, the likeliest; tokens of a prompt have it."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top: "tuple[TokenLogprob, ...]" = ()
    id: int | None = None
    rank: int | None = None


def token_bytes(entry: TokenLogprob) -> bytes:
    return entry.token.encode("utf-8", "surrogatepass") if entry.bytes is None else bytes(entry.bytes)


def trimmed(entries: Iterable[TokenLogprob], size: int) -> list[TokenLogprob]:
    """Cut the entries after `size` bytes. An entry beyond them keeps its log-probability and loses its text."""
    kept = []
    for entry in entries:
        raw = token_bytes(entry)
        if len(raw) > size:
            raw = raw[:size]
            entry = attrs.evolve(entry, token=raw.decode(errors="replace"), bytes=tuple(raw))
        kept.append(entry)
        size -= len(raw)
    return kept


class Role(StrEnum):
    """The author of a message. `developer` is another word for system; `assistant` and `tool` are for earlier turns."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class FinishReason(StrEnum):
    """The reason for the end of a choice."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


@attrs.frozen
class ToolCall:
    """A call that the model requests. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


@attrs.frozen
class ContentPart:
    """One part of a message's content: `type` is "text", or a modality of the model ("image_url", ...) with `data`."""

    type: str
    text: str = ""
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)


@quick_init
@attrs.frozen(weakref_slot=False)
class Message:
    """One message of a conversation. `reasoning` is what a model wrote before its answer, which is not content."""

    role: Role
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = attrs.field(default=None, repr=False)
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = attrs.field(default=None, repr=False)
    reasoning: str | None = None
    __repr__ = brief

    @property
    def text(self) -> str:
        """The content as plain text, without parts that are not text."""
        if self.content is None or type(self.content) is str:
            return self.content or ""
        return "".join(part.text for part in self.content if type(part) is ContentPart)


class NoCalls(tuple[ToolCall, ...]):
    """The calls of a message with an empty list of them, which is not the same as none to vendors."""


@quick_init
@attrs.frozen(weakref_slot=False)
class Tool:
    """A function that the model may call; `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    strict: bool = False


class ToolMode(StrEnum):
    """Whether the model may, must or must not call a tool."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@attrs.frozen
class ToolChoice:
    """The mode, and with `REQUIRED` optionally the one tool that must be called."""

    mode: ToolMode = ToolMode.AUTO
    name: str | None = None


def tool_choice_problems(choice: ToolChoice, tools: Sequence[Tool]) -> list[Problem]:
    if choice.mode is not ToolMode.REQUIRED:
        return []
    if choice.name is None:
        return [] if tools else [Problem(("tool_choice",), "needs tools")]
    if all(tool.name != choice.name for tool in tools):
        return [Problem(("tool_choice", "function", "name"), "must be the name of one of the tools")]
    return []


class ResponseType(StrEnum):
    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    CHOICE = "choice"
    REGEX = "regex"


@attrs.frozen
class ResponseFormat:
    """Free text, any JSON object, JSON that is valid under `schema`, one of `choices`, or text that fits `pattern`."""

    type: ResponseType = ResponseType.TEXT
    name: str = ""
    schema: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    strict: bool = False
    choices: tuple[str, ...] = ()
    pattern: str = ""


@quick_init
@attrs.frozen(weakref_slot=False)
class Sampling:
    """How tokens are drawn. None means the backend's default; `seed` None means a fresh one. A choice has at least
    `min_tokens` before an end-of-turn token; with `ignore_eos` it ends at none, and also ends at each of
    `stop_token_ids`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = attrs.field(converter=frozen_mapping, default=EMPTY)
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @copies
    def seeded(self, seed: int) -> "Sampling":
        """Return a copy with this seed. Every request needs one, and `attrs.evolve` costs three times as much."""
        raise NotImplementedError


TEMPLATE = "chat_template_kwargs"
"""Variables of the model's chat template, by name."""

TEMPLATE_WITHOUT_EFFECT: Mapping[str, str] = {
    "preserve_thinking": "what does not read it treats earlier reasoning in one way only"
}
"""Variables that are accepted for any model, and why they change nothing if its template does not read them."""

ANSWER_EXTRAS = ("reasoning_effort", "verbosity", TEMPLATE)
SAMPLING_PARAMETERS = tuple(field.name for field in attrs.fields(Sampling))


@quick_init
@attrs.frozen(weakref_slot=False)
class CompletionRequest:
    """A validated request. `model` is a catalogue id or the name of a trained model (see `domain.models.ModelName`).

    A `prompt`, a string or token ids, replaces `messages`, and is continued as it is, without a chat template;
    `prompt_logprobs` requests the log-probabilities of its tokens, with so many alternatives. `max_tokens` bounds each
    choice, prompt not counted; None means up to the model's limit. `logprobs` requests the log-probability of each
    sampled token, `top_logprobs` that of so many alternatives. `streamed` is whether the caller reads the answer as it
    is made. `metadata` is stored with the completion (`store`). `extras` are parameters that the platform passes on to
    the backend unread.
    """

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat()
    return_token_ids: bool = False
    streamed: bool = False
    user: str | None = None
    metadata: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    store: bool = False
    extras: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    prompt: str | tuple[int, ...] | None = None
    prompt_logprobs: int | None = None

    @copies
    def asking(self, messages: tuple[Message, ...], sampling: Sampling, max_tokens: int | None) -> "CompletionRequest":
        """Return a copy with these messages and settings."""
        raise NotImplementedError

    @copies
    def choosing(self, n: int, sampling: Sampling) -> "CompletionRequest":
        """Return a copy that asks for so many choices, drawn like this."""
        raise NotImplementedError

    @copies
    def detailed(self, logprobs: bool, return_token_ids: bool) -> "CompletionRequest":
        """Return a copy that asks for these details."""
        raise NotImplementedError


@attrs.frozen
class ToolCallDelta:
    """A piece of a tool call: `id` and `name` in the first piece of a call only, `arguments` in fragments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@quick_init
@attrs.frozen(weakref_slot=False)
class Usage:
    """Tokens counted. `cached_tokens` of the prompt were read from a cache, `reasoning_tokens` of the completion are
    reasoning, as far as that is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    images: int = 0
    estimated: bool = False
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


@quick_init
@attrs.frozen(weakref_slot=False)
class Delta:
    """A piece of one choice, in the order in which it was produced.

    `text` is content, and `reasoning` is what a model writes before that. `tokens` is how many tokens this piece holds
    (an end-of-turn token counts, and may come with empty text). `logprobs` and `token_ids`, if there are any, have one
    entry per token. `prompt_token_ids`, and `prompt_logprobs` of all prompt tokens but the first, come in a choice's
    first delta, `finish_reason` in its last. `usage` is what the backend reports, in any delta, of the whole request as
    it was given; its last report counts. `stop_string`, in the last delta, is the string that ended the choice; None if
    none did, or if it is not known.
    """

    text: str = ""
    tokens: int = 0
    index: int = 0
    tool_call: ToolCallDelta | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    stop_string: str | None = None
    reasoning: str = ""


@quick_init
@attrs.frozen(weakref_slot=False)
class Choice:
    """One finished answer. `logprobs` is None if the backend has none or none were requested. `stop_string` is the
    string that ended the choice; None if none did, or if it is not known."""

    index: int
    message: Message
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None = attrs.field(default=None, repr=False)
    token_ids: tuple[int, ...] = attrs.field(default=(), repr=False)
    prompt_token_ids: tuple[int, ...] = attrs.field(default=(), repr=False)
    prompt_logprobs: tuple[TokenLogprob, ...] = attrs.field(default=(), repr=False)
    stop_string: str | None = attrs.field(default=None, repr=False)
    __repr__ = brief


@quick_init
@attrs.frozen(weakref_slot=False)
class Completion:
    """A finished completion. `created` is in Unix seconds; `model` is the name that was requested."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    _repr_html_ = in_notebook

    @property
    def text(self) -> str:
        """The content of the first choice."""
        return self.choices[0].message.text


@quick_init
@attrs.frozen(weakref_slot=False)
class StoredCompletion:
    """A completion that was stored at its caller's request (`store`), with its request and answer as JSON data. `price`
    holds the prices in force that are not 0, in USD as decimal text. `checkpoint_id` is the checkpoint of a trained
    model that answered."""

    id: str
    entity: str
    project: str
    model: str
    created_at: datetime
    request: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    answer: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    metadata: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    price: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    checkpoint_id: str | None = None
    seq: int = sequence_field()


RECORDS = (
    Record(
        StoredCompletion,
        "stored_completions",
        ("id",),
        indexes={
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_age": Index((), ("created_at",)),
        },
        sequence="seq",
        domain=("entity", "entity"),
        texts="created_at",
    ),
)
