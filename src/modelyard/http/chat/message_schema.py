"""The messages of a conversation, as clients send them and as the domain means them."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Message, Part, Role, ToolCall
from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length
from modelyard.formats.converter import structure

_NAME = Length(0, 1024)


@attrs.frozen
class TextPart:
    """Text in a message's content."""

    type: Literal["text"]
    text: str


@attrs.frozen
class RefusalPart:
    """What an assistant declined to say."""

    type: Literal["refusal"]
    refusal: str


@attrs.frozen
class ImageUrl:
    """Where an image is, or the image itself as a data URL. Nothing is fetched here."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


@attrs.frozen
class ImagePart:
    """An image in a message's content."""

    type: Literal["image_url"]
    image_url: ImageUrl


@attrs.frozen
class AudioPart:
    """Sound in a message's content."""

    type: Literal["input_audio"]
    input_audio: Mapping[str, Any]


@attrs.frozen
class VideoPart:
    """A video in a message's content."""

    type: Literal["video_url"]
    video_url: Mapping[str, Any]


@attrs.frozen
class FilePart:
    """A file in a message's content."""

    type: Literal["file"]
    file: Mapping[str, Any]


InputPart = TextPart | ImagePart | AudioPart | VideoPart | FilePart


@attrs.frozen
class SystemMessage:
    """Instructions. `developer` is another word for `system`."""

    role: Literal["system", "developer"]
    content: str | tuple[TextPart, ...]
    name: str | None = attrs.field(default=None, validator=_NAME)


@attrs.frozen
class UserMessage:
    """What the user says."""

    role: Literal["user"]
    content: str | tuple[InputPart, ...]
    name: str | None = attrs.field(default=None, validator=_NAME)


@attrs.frozen
class CalledFunction:
    """A function and its arguments as JSON text."""

    name: str
    arguments: str


@attrs.frozen
class WireToolCall:
    """A call that an assistant made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


@attrs.frozen
class AssistantMessage:
    """An earlier turn of the assistant: text, calls, or both."""

    role: Literal["assistant"]
    content: str | tuple[TextPart | RefusalPart, ...] | None = None
    tool_calls: tuple[WireToolCall, ...] | None = None
    name: str | None = attrs.field(default=None, validator=_NAME)

    def __attrs_post_init__(self) -> None:
        if self.content is None and not self.tool_calls:
            raise InvalidInput.at("content", msg="is required, unless there are tool_calls", type="missing")


@attrs.frozen
class ToolMessage:
    """What a called tool answered."""

    role: Literal["tool"]
    content: str | tuple[TextPart, ...]
    tool_call_id: str
    name: str | None = attrs.field(default=None, validator=_NAME)


WireMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage

_ROLES: Mapping[Any, Role] = {role.value: role for role in Role}
_PLAIN_ROLES: Mapping[Any, Role] = {role.value: role for role in Role if role is not Role.TOOL}


def read_messages(raw: Any) -> tuple[Message, ...]:
    """The messages of a conversation. A list of nothing but roles and texts, as most are, is read in one go."""
    plain = plain_messages(raw)
    return tuple([_message(one) for one in structure(tuple[WireMessage, ...], raw)]) if plain is None else plain


def plain_messages(raw: Any) -> tuple[Message, ...] | None:
    """The messages of a list of nothing but roles and texts; None for any other."""
    if type(raw) is not list:
        return None
    messages = []
    for given in raw:
        if type(given) is not dict or len(given) != 2:
            return None
        content, role = given.get("content"), given.get("role")
        if type(content) is not str or type(role) is not str or role not in _PLAIN_ROLES:
            return None
        messages.append(Message(_PLAIN_ROLES[role], content))
    return tuple(messages)


def _message(message: WireMessage) -> Message:
    role, content = _ROLES[message.role], _content(message.content)
    if isinstance(message, AssistantMessage):
        made = message.tool_calls or ()
        calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in made)
        return Message(role, content, message.name, calls)
    if isinstance(message, ToolMessage):
        return Message(role, content, message.name, tool_call_id=message.tool_call_id)
    return Message(role, content, message.name)


def _content(content: str | tuple[Any, ...] | None) -> str | tuple[Part, ...] | None:
    if content is None or isinstance(content, str):
        return content
    return tuple(_part(part) for part in content)


def _part(part: InputPart | RefusalPart) -> Part:
    if isinstance(part, TextPart):
        return Part("text", part.text)
    if isinstance(part, RefusalPart):
        return Part("text", part.refusal)
    if isinstance(part, ImagePart):
        return Part(part.type, data={"url": part.image_url.url, "detail": part.image_url.detail})
    return Part(part.type, data=getattr(part, part.type))
