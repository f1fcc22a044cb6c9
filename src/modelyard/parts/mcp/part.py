"""A platform as tools of a coding agent: `modelyard mcp`."""

from modelyard.part import Command, Part

PART = Part(
    "mcp",
    commands={
        "mcp": Command(
            "Work",
            "modelyard.parts.mcp.commands:mcp",
            "Let a coding agent read this store by the Model Context Protocol, over stdin and stdout.",
        )
    },
)
