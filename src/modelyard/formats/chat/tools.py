"""Tools, the choice among them, and the form of an answer, in the chat-completion format: read and written."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from modelyard.domain.completion import ResponseFormat, ResponseType, Tool, ToolChoice, ToolMode
from modelyard.domain.frozen_fast import maker, quick_init
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.chat.hints import Cacheable
from modelyard.formats.constraints import Length, Matching, Unsupported
from modelyard.formats.json import loads

JsonObject = Mapping[str, Any]

_tool = maker(Tool)
_NAME = Matching("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 characters of A-Z a-z 0-9 _ -")


# ---- tools -------------------------------------------------------------------------------------------------------


@quick_init
@attrs.frozen(weakref_slot=False)
class FunctionDefinition:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str = attrs.field(validator=_NAME)
    description: str = ""
    parameters: JsonObject = attrs.field(factory=dict)
    strict: bool = False


@quick_init
@attrs.frozen(weakref_slot=False)
class FunctionTool(Cacheable):
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


@attrs.frozen
class AllowedFunctions:
    """The tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: tuple[NamedToolChoice, ...] = attrs.field(validator=Length(1, 1024))


@attrs.frozen
class AllowedTools:
    """A choice among some of the tools: the others are as if they were not there."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


def read_tool(tool: FunctionTool) -> Tool:
    """Return the tool that was described."""
    function = tool.function
    return _tool(function.name, function.description, function.parameters, function.strict)


def tool_object(tool: Tool) -> JsonObject:
    """Return the JSON of a tool."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def read_tool_choice(choice: str | NamedToolChoice | AllowedTools) -> ToolChoice:
    """Return the choice that was described."""
    if isinstance(choice, NamedToolChoice):
        return ToolChoice(ToolMode.REQUIRED, choice.function.name)
    return ToolChoice(ToolMode(choice.allowed_tools.mode if isinstance(choice, AllowedTools) else choice))


def allowed_tools(tools: Sequence[Tool], choice: object) -> tuple[Tool, ...]:
    """Return those of the tools that the choice allows. Raises `InvalidInput` where it allows one that is not there."""
    if not isinstance(choice, AllowedTools):
        return tuple(tools)
    names, known = [one.function.name for one in choice.allowed_tools.tools], {tool.name for tool in tools}
    place = ("tool_choice", "allowed_tools", "tools")
    says = "must be the name of one of the tools"
    problems = [Problem((*place, at, "function", "name"), says) for at, name in enumerate(names) if name not in known]
    if problems:
        raise InvalidInput(problems)
    return tuple(tool for tool in tools if tool.name in names)


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


@attrs.frozen
class StructuredOutputs:
    """The form of an answer as vLLM 0.32 has it: exactly one of these."""

    json: JsonObject | str | None = None
    json_object: bool | None = None
    choice: tuple[str, ...] | None = attrs.field(default=None, validator=Length(1, 1024))
    regex: str | None = attrs.field(default=None, validator=Length(1, 10_000))
    grammar: object = attrs.field(default=None, validator=Unsupported("is not supported: send json, choice or regex"))
    structural_tag: object = attrs.field(
        default=None, validator=Unsupported("is not supported: send json, choice or regex")
    )


def read_structured_outputs(outputs: StructuredOutputs, *loc: str) -> ResponseFormat:
    """Return the form of an answer that was described. Raises `InvalidInput` for none and for several."""
    given = (outputs.json, outputs.json_object or None, outputs.choice, outputs.regex)
    if sum(one is not None for one in given) != 1:
        raise InvalidInput.at(*loc, msg="must have exactly one of json, json_object, choice and regex")
    if outputs.choice is not None:
        return ResponseFormat(ResponseType.CHOICE, choices=outputs.choice)
    if outputs.regex is not None:
        return ResponseFormat(ResponseType.REGEX, pattern=outputs.regex)
    if outputs.json is None:
        return ResponseFormat(ResponseType.JSON_OBJECT)
    return schema_format(outputs.json, *loc, "json")


def schema_format(schema: JsonObject | str, *loc: str) -> ResponseFormat:
    """Return the form of JSON under a schema, which may be given as JSON text. Raises `InvalidInput`."""
    given = loads(schema.encode(), at=loc) if isinstance(schema, str) else schema
    if not isinstance(given, Mapping):
        raise InvalidInput.at(*loc, msg="must be a JSON schema, which is an object")
    return ResponseFormat(ResponseType.JSON_SCHEMA, "answer", given, strict=True)


def response_format_object(wanted: ResponseFormat) -> JsonObject:
    """Return the JSON of an answer's form."""
    if wanted.type is not ResponseType.JSON_SCHEMA:
        return {"type": wanted.type.value}
    schema = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
    return {"type": wanted.type.value, "json_schema": schema}
