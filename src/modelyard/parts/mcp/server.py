"""The server: the tools by the package `mcp`, over stdin and stdout."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modelyard.errors import MissingExtra
from modelyard.parts.mcp.answers import answered
from modelyard.platform.platform import Platform
from modelyard.version import __version__

if TYPE_CHECKING:
    from modelyard.parts.mcp.tools import AgentTool

try:
    import anyio
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
except ImportError as error:
    raise MissingExtra("mcp", "mcp") from error

INSTRUCTIONS = (
    "A model platform in one store: models with checkpoints, training jobs, evaluation runs, usage. Answers are pages: "
    "`next` is the `after` of the next one. `docs` finds how to do a thing in Python or on the command line."
)


def serve(platform: Platform, tools: "Mapping[str, AgentTool]") -> None:
    """Answer a client until it closes stdin."""
    anyio.run(_serve, platform, tools)


async def _serve(platform: Platform, tools: "Mapping[str, AgentTool]") -> None:
    async def listed(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools.values()])

    async def called(context: Any, params: Any) -> Any:
        arguments = params.arguments or {}
        text, failed = await anyio.to_thread.run_sync(answered, platform, tools, params.name, arguments)
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    known: Any = {"version": __version__, "instructions": INSTRUCTIONS}
    server: Any = Server("modelyard", on_list_tools=listed, on_call_tool=called, **known)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _described(tool: "AgentTool") -> Any:
    reads = not tool.act
    hints = types.ToolAnnotations(read_only_hint=reads, destructive_hint=False, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.help, input_schema=tool.schema, annotations=hints)
