"""What serving and training must agree on about the tabular model: its base models, and how a request is read."""

from collections.abc import Sequence
from zlib import crc32

from modelyard.domain.completion import Message, Role, Tool

BASE_MODELS = ("tabular-mini",)
"""The base models that are offered and trained where the host names none."""


def base_seed(base_model: str) -> int:
    """The seed that makes a base model: each name is a model with a taste of its own."""
    return crc32(base_model.encode())


def conversation(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[Message, ...]:
    """The messages as the model reads them: tools as a system message before them, tool calls as text."""
    offered = (Message(Role.SYSTEM, "tools: " + "; ".join(map(_tool_text, tools))),) if tools else ()
    return (*offered, *map(_spelled_out, messages))


def _tool_text(tool: Tool) -> str:
    return f"{tool.name} {tool.description}".rstrip()


def _spelled_out(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = "".join(f"\n{call.name} {call.arguments}" for call in message.tool_calls)
    return Message(message.role, (message.text + calls).lstrip("\n"))
