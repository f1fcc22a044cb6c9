"""The items of a response's input and output: read strictly, and put together to the messages of a conversation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import attrs

from modelyard.domain.completion import ContentPart, Message, Role, ToolCall
from modelyard.errors import InvalidInput, Problem, nearest
from modelyard.formats.chat.hints import CACHED, DIRECT, CacheBreakpoint, DirectCaller
from modelyard.formats.chat.messages import AudioData, given_members
from modelyard.formats.constraints import Length, Unsupported, hint
from modelyard.formats.converter import either, structure_exactly
from modelyard.formats.json import kept_data

_NAME = Length(1, 1024)
_NO_FILES = Unsupported("is not supported: send the data themselves")

Status = Literal["in_progress", "completed", "incomplete"]

# ---- contents ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class CacheableContent:
    """What may be the end of a cached prompt."""

    prompt_cache_breakpoint: CacheBreakpoint | None = attrs.field(default=None, metadata=hint(CACHED))


Objects = tuple[Mapping[str, Any], ...]


@attrs.frozen
class InputText(CacheableContent):
    """A text in a message."""

    type: Literal["input_text"]
    text: str


@attrs.frozen
class OutputText:
    """Text of an answer."""

    IGNORED: ClassVar[Mapping[str, str]] = {"parsed": "what a client has read from the text"}

    type: Literal["output_text"]
    text: str
    annotations: Objects | None = attrs.field(
        default=None, metadata=hint("notes on the text, such as where it was found")
    )
    logprobs: Objects | None = attrs.field(default=None, metadata=hint("how likely the text was"))


@attrs.frozen
class OutputRefusal:
    """The refusal of a model to answer."""

    type: Literal["refusal"]
    refusal: str


@attrs.frozen
class InputImage(CacheableContent):
    """The address of an image, or the image itself as a data URL. Nothing is fetched here."""

    type: Literal["input_image"]
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] = "auto"
    file_id: object = attrs.field(default=None, validator=_NO_FILES)

    def __attrs_post_init__(self) -> None:
        if self.image_url is None and self.file_id is None:
            raise InvalidInput.at("image_url", msg="is required", type="missing")


@attrs.frozen
class InputFile(CacheableContent):
    """A file, as a data URL."""

    type: Literal["input_file"]
    file_data: str | None = None
    filename: str | None = None
    file_id: object = attrs.field(default=None, validator=_NO_FILES)
    file_url: object = attrs.field(default=None, validator=_NO_FILES)

    def __attrs_post_init__(self) -> None:
        if self.file_data is None and self.file_id is None and self.file_url is None:
            raise InvalidInput.at("file_data", msg="is required", type="missing")


@attrs.frozen
class InputAudio:
    """A sound in a message."""

    type: Literal["input_audio"]
    input_audio: AudioData


ItemContent = InputText | OutputText | OutputRefusal | InputImage | InputFile | InputAudio

# ---- items -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class WrittenItem:
    """What is written piece by piece."""

    status: Status | None = attrs.field(default=None, metadata=hint("an item of an input is as it is"))


@attrs.frozen
class MessageItem(WrittenItem):
    """A message of any author. Those of the assistant are text, as they were answered."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[ItemContent, ...]
    type: Literal["message"] = "message"
    id: str | None = attrs.field(default=None, validator=_NAME)
    phase: Literal["commentary", "final_answer"] | None = attrs.field(
        default=None, metadata=hint("models are given all that was said")
    )

    def __attrs_post_init__(self) -> None:
        if self.role == "user" or isinstance(self.content, str):
            return
        problems = [
            Problem(("content", at, "type"), f"must be text in a message of the role {self.role}", "literal_error")
            for at, part in enumerate(self.content)
            if not isinstance(part, InputText | OutputText | OutputRefusal)
        ]
        if problems:
            raise InvalidInput(problems)


_NO_NAMESPACES = Unsupported("is not supported: functions have names only")


@attrs.frozen
class FunctionCallItem(WrittenItem):
    """A call of a function that a model made; `arguments` is JSON text."""

    call_id: str = attrs.field(validator=_NAME)
    name: str
    arguments: str
    type: Literal["function_call"] = "function_call"
    id: str | None = attrs.field(default=None, validator=_NAME)
    parsed_arguments: Mapping[str, Any] | None = attrs.field(
        default=None, metadata=hint("what a client has read from the arguments")
    )
    namespace: object = attrs.field(default=None, validator=_NO_NAMESPACES)
    caller: DirectCaller | None = attrs.field(default=None, metadata=hint(DIRECT))


@attrs.frozen
class FunctionOutputItem(WrittenItem):
    """The return value of a called function."""

    call_id: str = attrs.field(validator=_NAME)
    output: str | tuple[InputText | OutputText, ...]
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = attrs.field(default=None, validator=_NAME)
    caller: DirectCaller | None = attrs.field(default=None, metadata=hint(DIRECT))


@attrs.frozen
class ReasoningText:
    """Reasoning as the model wrote it."""

    type: Literal["reasoning_text"]
    text: str


@attrs.frozen
class SummaryText:
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


@attrs.frozen
class ReasoningItem(WrittenItem):
    """Reasoning that a model has shown. Models that read it are given its content again; a summary is not read."""

    type: Literal["reasoning"] = "reasoning"
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | None = None
    encrypted_content: str | None = attrs.field(
        default=None, metadata=hint("what another server has hidden cannot be read")
    )
    id: str | None = attrs.field(default=None, validator=_NAME)


@attrs.frozen
class ItemReference:
    """An item of a response that is stored, by its id."""

    id: str = attrs.field(validator=_NAME)
    type: Literal["item_reference"] = "item_reference"


ResponseItem = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem | ItemReference

_CLASSES: Mapping[str, type[ResponseItem]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}

# ---- read --------------------------------------------------------------------------------------------------------


def read_items(raw: Any) -> tuple[ResponseItem, ...]:
    """Read the items of an input; a string is one message of the user. Raises `InvalidInput`."""
    if type(raw) is str:
        return (MessageItem("user", raw),)
    if type(raw) is not list:
        raise InvalidInput.at(msg="must be a string or a list", type="union_type")
    items: list[ResponseItem] = []
    problems: list[Problem] = []
    for at, one in enumerate(raw):
        try:
            items.append(_read_item(one, at))
        except InvalidInput as wrong:
            problems += wrong.problems
    if problems:
        raise InvalidInput(problems[:100])
    return tuple(items)


def stored_items(items: Iterable[Mapping[str, Any]]) -> tuple[ResponseItem, ...]:
    return read_items(kept_data(list(items)))


def _read_item(raw: Any, at: int) -> ResponseItem:
    kind = raw.get("type") if type(raw) is dict else None
    if kind is None:
        referred = type(raw) is dict and "id" in raw and raw.keys() <= {"id", "type"}
        kind = "item_reference" if referred else "message"
    cls = _CLASSES.get(kind) if type(kind) is str else None
    if cls is None:
        known = f"must be {either([repr(name) for name in _CLASSES])}"
        more = f": items of hosted tools are not supported{nearest(kind, _CLASSES)}" if type(kind) is str else ""
        raise InvalidInput.at(at, "type", msg=known + more, type="literal_error")
    item: ResponseItem = structure_exactly(cast(Any, cls), raw, at)
    return item


# ---- as messages -------------------------------------------------------------------------------------------------


def messages_of(items: Iterable[ResponseItem]) -> tuple[Message, ...]:
    """Return the messages that items stand for.

    Calls belong to the message of the assistant right before them, and so does text of the assistant that follows them.
    Reasoning belongs to the answer right after it. References must have been replaced by what they refer to.
    """
    messages: list[Message] = []
    reasoning = ""
    for item in items:
        if isinstance(item, ReasoningItem):
            reasoning += "".join([part.text for part in item.content or ()])
            continue
        if isinstance(item, MessageItem):
            said, last = Message(Role(item.role), _content(item)), messages[-1] if messages else None
            if last is not None and last.tool_calls and said.role is Role.ASSISTANT:
                messages[-1] = attrs.evolve(last, content=last.text + said.text)
            else:
                messages.append(said)
        elif isinstance(item, FunctionOutputItem):
            messages.append(Message(Role.TOOL, _parts(item.output), tool_call_id=item.call_id))
        elif isinstance(item, FunctionCallItem):
            if not messages or messages[-1].role is not Role.ASSISTANT:
                messages.append(Message(Role.ASSISTANT))
            call = ToolCall(item.call_id, item.name, item.arguments)
            messages[-1] = attrs.evolve(messages[-1], tool_calls=(*messages[-1].tool_calls, call))
        if reasoning and messages and messages[-1].role is Role.ASSISTANT:
            messages[-1] = attrs.evolve(messages[-1], reasoning=(messages[-1].reasoning or "") + reasoning)
        reasoning = ""
    return tuple(messages)


def _content(item: MessageItem) -> str | tuple[ContentPart, ...]:
    parts = _parts(item.content)
    if type(parts) is tuple and item.role == "assistant" and all(part.type == "text" for part in parts):
        return "".join(part.text for part in parts)
    return parts


def _parts(content: str | Sequence[ItemContent]) -> str | tuple[ContentPart, ...]:
    """Return the parts; a single text as the string that it is."""
    if isinstance(content, str):
        return content
    parts = tuple([_part(one) for one in content])
    return parts[0].text if len(parts) == 1 and parts[0].type == "text" else parts


def _part(content: ItemContent) -> ContentPart:
    if isinstance(content, InputText | OutputText):
        return ContentPart("text", content.text)
    if isinstance(content, OutputRefusal):
        return ContentPart("text", content.refusal)
    if isinstance(content, InputImage):
        return ContentPart("image_url", data={"url": content.image_url, "detail": content.detail})
    if isinstance(content, InputFile):
        data = {"file_data": content.file_data, "filename": content.filename}
        return ContentPart("file", data={name: value for name, value in data.items() if value is not None})
    return ContentPart("input_audio", data=given_members(content.input_audio))
