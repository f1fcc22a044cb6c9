"""Messages and tools as training data hold them: what a request must have, data may leave out.

Public data sets lack ids of calls, contents of turns and types of tools, and name functions as they like. A row is read
for what it has; the bounds of a request hold when the model is asked.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Message, Role, Tool, ToolCall
from modelyard.formats.chat.messages import InputPart, RefusalPart, read_content
from modelyard.formats.converter import structure


@attrs.frozen
class RecordedFunction:
    """A function that was called."""

    name: str
    arguments: str = ""


@attrs.frozen
class RecordedCall:
    """A call that an assistant made."""

    function: RecordedFunction
    id: str = ""


@attrs.frozen
class RecordedMessage:
    """A message of any role."""

    role: Role
    content: str | tuple[InputPart | RefusalPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[RecordedCall, ...] = ()
    tool_call_id: str | None = None


@attrs.frozen
class RecordedDefinition:
    """A function that could be called."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    strict: bool = False


@attrs.frozen
class RecordedTool:
    """A tool."""

    function: RecordedDefinition
    type: Literal["function"] = "function"


def recorded_message(value: Any) -> Message:
    """Read a message. Raises `InvalidInput`."""
    return message_of(structure(RecordedMessage, value))


def message_of(read: RecordedMessage) -> Message:
    """Return the message that was recorded."""
    calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in read.tool_calls]
    return Message(read.role, read_content(read.content), read.name, tuple(calls), read.tool_call_id)


def tool_of(read: RecordedTool) -> Tool:
    """Return the tool that was recorded."""
    function = read.function
    return Tool(function.name, function.description, function.parameters, function.strict)
