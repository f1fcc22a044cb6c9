"""Tools, the choice among them, and the form of an answer, in the chat-completion format: read and written."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import ResponseFormat, ResponseType, Tool, ToolChoice, ToolMode
from modelyard.formats.constraints import Matching

JsonObject = Mapping[str, Any]

_NAME = Matching("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 characters of A-Z a-z 0-9 _ -")


# ---- tools -------------------------------------------------------------------------------------------------------


@attrs.frozen
class FunctionDefinition:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str = attrs.field(validator=_NAME)
    description: str = ""
    parameters: JsonObject = attrs.field(factory=dict)
    strict: bool = False


@attrs.frozen
class FunctionTool:
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


@attrs.frozen
class FunctionName:
    """A function by name."""

    name: str = attrs.field(validator=_NAME)


@attrs.frozen
class NamedToolChoice:
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


def read_tool(tool: FunctionTool) -> Tool:
    """Return the tool that was described."""
    function = tool.function
    return Tool(function.name, function.description, function.parameters, function.strict)


def tool_object(tool: Tool) -> JsonObject:
    """Return the JSON of a tool."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def read_tool_choice(choice: str | NamedToolChoice) -> ToolChoice:
    """Return the choice that was described."""
    if isinstance(choice, NamedToolChoice):
        return ToolChoice(ToolMode.REQUIRED, choice.function.name)
    return ToolChoice(ToolMode(choice))


def tool_choice_json(choice: ToolChoice) -> str | JsonObject:
    """Return the JSON of a choice among tools."""
    if choice.mode is ToolMode.REQUIRED and choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode.value


# ---- the form of an answer ---------------------------------------------------------------------------------------


@attrs.frozen
class TextFormat:
    """Free text."""

    type: Literal["text"]


@attrs.frozen
class JsonObjectFormat:
    """Any JSON object."""

    type: Literal["json_object"]


@attrs.frozen
class NamedSchema:
    """A JSON schema under a name."""

    name: str = attrs.field(validator=_NAME)
    schema: JsonObject = attrs.field(factory=dict)
    strict: bool = False
    description: str = ""


@attrs.frozen
class JsonSchemaFormat:
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


def read_response_format(described: TextFormat | JsonObjectFormat | JsonSchemaFormat) -> ResponseFormat:
    """Return the form of an answer that was described."""
    if isinstance(described, JsonSchemaFormat):
        named = described.json_schema
        return ResponseFormat(ResponseType.JSON_SCHEMA, named.name, named.schema, named.strict)
    return ResponseFormat(ResponseType(described.type))


def response_format_object(wanted: ResponseFormat) -> JsonObject:
    """Return the JSON of an answer's form."""
    if wanted.type is not ResponseType.JSON_SCHEMA:
        return {"type": wanted.type.value}
    schema = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
    return {"type": wanted.type.value, "json_schema": schema}
