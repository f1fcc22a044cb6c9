"""Messages and tools as plain data in the widely used chat format, there and back."""

from collections.abc import Mapping
from typing import Any

from modelyard.domain.completion import Message, Part, Role, Tool, ToolCall
from modelyard.formats.fields import each, mapping, optional, refused, required, text

_ROLES = {role.value: role for role in Role}


def message_of(value: Any) -> Message:
    """A message: `role`, `content` (text, parts or null), `name`, `tool_calls`, `tool_call_id`.

    Raises `InvalidInput`.
    """
    data = mapping(value)
    return Message(
        role=required(_role, data, "role"),
        content=optional(_content, data, "content", None),
        name=optional(text, data, "name", None),
        tool_calls=optional(lambda calls: each(_tool_call, calls), data, "tool_calls", ()),
        tool_call_id=optional(text, data, "tool_call_id", None),
    )


def tool_of(value: Any) -> Tool:
    """A tool of type function. Raises `InvalidInput`."""
    data = mapping(value)
    if data.get("type", "function") != "function":
        raise refused("must be a tool of type 'function'", "literal_error")
    return required(_function, data, "function")


def _role(value: Any) -> Role:
    role = _ROLES.get(text(value))
    if role is None:
        raise refused(f"must be one of {', '.join(_ROLES)}", "literal_error")
    return role


def _content(value: Any) -> str | tuple[Part, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise refused("must be a string or a list of parts", "string_type")
    return each(_part, value)


def _part(value: Any) -> Part:
    data = mapping(value)
    kind = required(text, data, "type")
    if kind == "text":
        return Part(kind, required(text, data, "text"))
    return Part(kind, data={name: member for name, member in data.items() if name != "type"})


def _tool_call(value: Any) -> ToolCall:
    data = mapping(value)
    name, arguments = required(_called, data, "function")
    return ToolCall(optional(text, data, "id", ""), name, arguments)


def _called(value: Any) -> tuple[str, str]:
    data = mapping(value)
    return required(text, data, "name"), optional(text, data, "arguments", "")


def _function(value: Any) -> Tool:
    data = mapping(value)
    return Tool(
        required(text, data, "name"),
        optional(text, data, "description", ""),
        optional(mapping, data, "parameters", {}),
        data.get("strict") is True,
    )


# ---- the way back ------------------------------------------------------------------------------------------------


def plain_message(message: Message) -> dict[str, Any]:
    """The message as `message_of` reads it."""
    plain: dict[str, Any] = {"role": message.role.value, "content": _plain_content(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _plain_content(content: str | tuple[Part, ...] | None) -> Any:
    return content if content is None or isinstance(content, str) else [_plain_part(part) for part in content]


def _plain_part(part: Part) -> Mapping[str, Any]:
    return {"type": part.type, "text": part.text} if part.type == "text" else {"type": part.type, **part.data}


def _plain_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def plain_tool(tool: Tool) -> dict[str, Any]:
    """The tool as `tool_of` reads it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}
