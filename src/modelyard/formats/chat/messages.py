"""The messages of a conversation in the chat-completion format: read and written."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from modelyard.domain.completion import ContentPart, Message, NoCalls, Role, Tool, ToolCall
from modelyard.errors import InvalidInput
from modelyard.formats.chat.hints import Cacheable
from modelyard.formats.chat.plain_fast import plain_messages
from modelyard.formats.constraints import Length, Matching, Unsupported, hint
from modelyard.formats.converter import structure_exactly

_NAME = Length(0, 1024)
_OF_SERVERS = hint("what some servers add for themselves")
_ARGUMENTS, _TEXT = (hint(f"what a client has read from the {one}") for one in ("arguments", "text"))
_NOTES = hint("notes on the text, such as where it was found")
_REASONED = hint("reasoning is read from reasoning_content or reasoning")
Object = Mapping[str, Any]
Objects = tuple[Object, ...]


@attrs.frozen
class TextPart(Cacheable):
    """Text in a message's content."""

    type: Literal["text"]
    text: str


@attrs.frozen
class RefusalPart(Cacheable):
    """What an assistant refused to answer."""

    type: Literal["refusal"]
    refusal: str


@attrs.frozen
class ImageUrl:
    """The address of an image, or the image itself as a data URL. Nothing is fetched here."""

    url: str
    detail: Literal["auto", "low", "high", "original"] = "auto"


@attrs.frozen
class ImagePart(Cacheable):
    """An image in a message's content."""

    type: Literal["image_url"]
    image_url: ImageUrl


@attrs.frozen
class AudioData:
    """Sound in base64, in a format such as wav or mp3."""

    data: str
    format: str | None = attrs.field(
        default=None, validator=Matching("[a-z0-9]{1,16}", "must be a format such as wav or mp3")
    )


@attrs.frozen
class AudioPart(Cacheable):
    """Sound in a message's content."""

    type: Literal["input_audio"]
    input_audio: AudioData


@attrs.frozen
class VideoUrl:
    """The address of a video, or the video itself as a data URL. Nothing is fetched here."""

    url: str


@attrs.frozen
class VideoPart(Cacheable):
    """A video in a message's content."""

    type: Literal["video_url"]
    video_url: VideoUrl


@attrs.frozen
class FileData:
    """A file as a data URL, or the id by which the server of the model knows it."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


@attrs.frozen
class FilePart(Cacheable):
    """A file in a message's content."""

    type: Literal["file"]
    file: FileData


InputPart = TextPart | ImagePart | AudioPart | VideoPart | FilePart


@attrs.frozen
class SystemMessage(Cacheable):
    """Instructions. `developer` is another word for `system`."""

    role: Literal["system", "developer"]
    content: str | tuple[TextPart, ...]
    name: str | None = attrs.field(default=None, validator=_NAME)


@attrs.frozen
class UserMessage(Cacheable):
    """A turn of the user."""

    role: Literal["user"]
    content: str | tuple[InputPart, ...]
    name: str | None = attrs.field(default=None, validator=_NAME)


@attrs.frozen
class CalledFunction:
    """A function and its arguments as JSON text."""

    name: str
    arguments: str
    parsed_arguments: Object | None = attrs.field(default=None, metadata=_ARGUMENTS)
    provider_specific_fields: Object | None = attrs.field(default=None, metadata=_OF_SERVERS)


@attrs.frozen
class MessageToolCall:
    """A call that an assistant made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = attrs.field(default=None, metadata=hint("its place in a stream"))
    extra_content: Object | None = attrs.field(default=None, metadata=_OF_SERVERS)
    provider_specific_fields: Object | None = attrs.field(default=None, metadata=_OF_SERVERS)


@attrs.frozen
class AssistantMessage(Cacheable):
    """An earlier turn of the assistant: text, calls, or both, and the reasoning before them, under either name. A
    `refusal` is the text of a turn that has no other.

    Reasoning is given to models that read it, and to no others.
    """

    role: Literal["assistant"]
    content: str | tuple[TextPart | RefusalPart, ...] | None = None
    tool_calls: tuple[MessageToolCall, ...] | None = None
    name: str | None = attrs.field(default=None, validator=_NAME)
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: object = attrs.field(default=None, validator=Unsupported("is not supported: answers are text"))
    function_call: object = attrs.field(default=None, validator=Unsupported("is the old form; send tool_calls"))
    annotations: Objects | None = attrs.field(default=None, metadata=_NOTES)
    parsed: object = attrs.field(default=None, metadata=_TEXT)
    provider_specific_fields: Object | None = attrs.field(default=None, metadata=_OF_SERVERS)
    reasoning_details: Objects | None = attrs.field(default=None, metadata=_REASONED)
    thinking_blocks: Objects | None = attrs.field(default=None, metadata=_REASONED)

    def __attrs_post_init__(self) -> None:
        if self.content and self.refusal:
            raise InvalidInput.at("refusal", msg="must be null if there is content: one of them is the answer")
        if self.content is None and not (self.tool_calls or self.reasoning_content or self.reasoning or self.refusal):
            raise InvalidInput.at("content", msg="is required, unless there are tool_calls", type="missing")


@attrs.frozen
class ToolMessage(Cacheable):
    """The answer of a tool that was called."""

    role: Literal["tool"]
    content: str | tuple[TextPart, ...]
    tool_call_id: str
    name: str | None = attrs.field(default=None, validator=_NAME)


ChatMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage


# ---- read --------------------------------------------------------------------------------------------------------


def read_messages(raw: Any) -> tuple[Message, ...]:
    """Read a list of messages. Raises `InvalidInput`."""
    plain = plain_messages(raw)
    return plain or tuple([_read_message(one) for one in structure_exactly(tuple[ChatMessage, ...], raw)])


def _read_message(message: ChatMessage) -> Message:
    role, content = Role(message.role), read_content(message.content)
    if isinstance(message, AssistantMessage):
        content = content or message.refusal or content
        reasoning = message.reasoning_content or message.reasoning or None
        calls = () if message.tool_calls is None else _read_calls(message.tool_calls)
        return Message(role, content, message.name, calls, reasoning=reasoning)
    answered = message.tool_call_id if isinstance(message, ToolMessage) else None
    return Message(role, content, message.name, tool_call_id=answered)


def _read_calls(calls: tuple[MessageToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple([ToolCall(call.id, call.function.name, call.function.arguments) for call in calls]) or NoCalls()


def read_content(content: str | tuple[InputPart | RefusalPart, ...] | None) -> str | tuple[ContentPart, ...] | None:
    """Return the content that was described."""
    return tuple([_read_part(part) for part in content]) if isinstance(content, tuple) else content


def _read_part(part: InputPart | RefusalPart) -> ContentPart:
    if isinstance(part, TextPart):
        return ContentPart("text", part.text)
    if isinstance(part, RefusalPart):
        return ContentPart("text", part.refusal)
    return ContentPart(part.type, data=given_members(getattr(part, part.type)))


def given_members(data: attrs.AttrsInstance) -> Mapping[str, Any]:
    return {name: value for name, value in attrs.asdict(data).items() if value is not None}


# ---- written -----------------------------------------------------------------------------------------------------


def message_object(message: Message) -> dict[str, Any]:
    """Return the JSON of a message."""
    written: dict[str, Any] = {"role": str(message.role), "content": _content_json(message.content)}
    if message.name is not None:
        written["name"] = message.name
    if message.tool_calls:
        written["tool_calls"] = [tool_call_object(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        written["reasoning_content"] = message.reasoning
    return written


def _content_json(content: str | tuple[ContentPart, ...] | None) -> Any:
    return [part_object(part) for part in content] if isinstance(content, tuple) else content


def part_object(part: ContentPart | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON of a part. Its data are a member of its type's name, whether they come with that name or not."""
    if not isinstance(part, ContentPart):  # a message of the host's may hold what will be read in its place
        return part
    if part.type == "text":
        return {"type": part.type, "text": part.text}
    return {"type": part.type, **(part.data if part.type in part.data else {part.type: part.data})}


def tool_call_object(call: ToolCall | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON of a complete tool call."""
    if not isinstance(call, ToolCall):
        return call
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


# ---- in training data ------------------------------------------------------------------------------------------------
#
# Public data sets lack ids of calls, contents of turns and types of tools, and name functions as they like. A row is
# read for what it has; the bounds of a request hold when the model answers. `IGNORED` has the members that change
# nothing, each with the reason.


@attrs.frozen
class RecordedFunction:
    """A function that was called."""

    name: str
    arguments: str = ""


@attrs.frozen
class RecordedCall:
    """A call that an assistant made."""

    IGNORED: ClassVar[Mapping[str, str]] = {"type": "all are functions", "index": "its place in a stream"}

    function: RecordedFunction
    id: str = ""


@attrs.frozen
class RecordedMessage:
    """A message of any role. A `refusal` is the text of an assistant that has no other."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "annotations": "notes on the text, such as where it was found",
        "id": "a name of the message",
        "timestamp": "when it was written",
    }

    role: Role
    content: str | tuple[InputPart | RefusalPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[RecordedCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: object = attrs.field(default=None, validator=Unsupported("is the old form; send tool_calls"))

    def __attrs_post_init__(self) -> None:
        if self.refusal and self.content:
            raise InvalidInput.at("refusal", msg="must be null where there is content: one of them is the answer")


@attrs.frozen
class RecordedDefinition:
    """A function that could be called."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    strict: bool = False


@attrs.frozen
class RecordedTool:
    """A tool that could be called."""

    function: RecordedDefinition
    type: Literal["function"] = "function"


def message_of(read: RecordedMessage) -> Message:
    """Return the message that was recorded."""
    calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in read.tool_calls]
    content = read_content(read.content or read.refusal or read.content)
    reasoning = read.reasoning_content or read.reasoning or None
    return Message(read.role, content, read.name, tuple(calls), read.tool_call_id, reasoning)


def tool_of(read: RecordedTool) -> Tool:
    """Return the tool that was recorded."""
    function = read.function
    return Tool(function.name, function.description, function.parameters, function.strict)
