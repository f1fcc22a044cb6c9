"""Keep what tools and schemas were read as: without it, a request with 20 tools takes several times the instructions.

Agents send the same tools and schemas with each request. A text that a tenant has sent before is found by comparing its
bytes, and is neither parsed nor checked again.
"""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from modelyard.domain.completion import ResponseFormat, Tool
from modelyard.errors import InvalidInput
from modelyard.formats.chat.plain_fast import Held
from modelyard.formats.chat.tools import (
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    TextFormat,
    read_response_format,
    read_tool,
)
from modelyard.formats.converter import structure_exactly
from modelyard.formats.json import MAX_DEPTH, loads

SHARE = 2**17
"""The characters of all texts that are kept for one tenant. So none takes the place of what others have sent."""

TENANTS = 64

_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class KeptMembers:
    """The members that each tenant has sent last, by their text. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Held, ...]] = {}
        self._lock = threading.Lock()

    def read(self, tenant: str, name: str, text: str, at: int) -> Held:
        """Read the member of this name whose value, a list or an object, begins at this place of a text.

        Raises `InvalidInput`, and what the scanner raises.
        """
        for one in self._kept.get(tenant, ()):
            if one.name == name and text.startswith(one.text, at):
                return one
        made = read_member(name, text, at)
        if len(made.text) <= SHARE:
            self._keep(tenant, made)
        return made

    def _keep(self, tenant: str, made: Held) -> None:
        with self._lock:
            kept, room = [made], SHARE - len(made.text)
            for one in self._kept.pop(tenant, ()):
                room -= len(one.text)
                if room >= 0:
                    kept.append(one)
            if len(self._kept) >= TENANTS:
                del self._kept[next(iter(self._kept))]
            self._kept[tenant] = tuple(kept)


def read_member(name: str, text: str, at: int) -> Held:
    """Read a member as `KeptMembers.read` does, from its text alone."""
    _, end = _scan(text, at)
    value = text[at:end]
    return Held(name, value, _READERS[name](loads(value.encode(), max_depth=MAX_DEPTH - 1)))


def _tools(given: Any) -> tuple[Tool, ...]:
    tools = structure_exactly(tuple[FunctionTool, ...], given)
    if not 0 < len(tools) <= 1024:
        raise InvalidInput.at("tools", msg="must have 1 to 1024 items")
    return tuple([read_tool(tool) for tool in tools])


def _form(given: Any) -> ResponseFormat:
    described: Any = structure_exactly(TextFormat | JsonObjectFormat | JsonSchemaFormat, given)  # type: ignore[arg-type]
    return read_response_format(described)


_READERS: Mapping[str, Callable[[Any], object]] = {"tools": _tools, "response_format": _form}
