"""Keep what tools and schemas were read as: without it, a request with 20 tools takes 700 % more instructions.

Agents send the same tools and schemas with each request, and a conversation that grows. A text that a tenant has sent
before is found by comparing its bytes, and is neither parsed nor checked again.
"""

import json
import threading
from bisect import bisect
from collections.abc import Callable, Mapping
from itertools import accumulate
from sys import getsizeof
from typing import Any

from modelyard.domain.completion import ResponseFormat, Tool
from modelyard.errors import InvalidInput
from modelyard.formats.chat.plain_fast import Held, has_all, plain_messages
from modelyard.formats.chat.tools import (
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    TextFormat,
    read_response_format,
    read_tool,
)
from modelyard.formats.converter import structure_exactly
from modelyard.formats.json import MAX_DEPTH, finite, int64, loads

SHARE = 2**17
"""The bytes of the texts of all messages, tools or forms that are kept for one tenant. None takes another's place."""

TENANTS = 64


class KeptMembers:
    """The members that each tenant has sent last, by their text. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, tuple[Held, ...]]] = {}
        self._lock = threading.Lock()

    def read(self, tenant: str, name: str, text: str, at: int) -> Held:
        """Read the member of this name whose value, a list or an object, begins at this place of a text.

        Of messages that continue others only the further ones are read. Raises `InvalidInput`, and ValueError and what
        else a parser raises.
        """
        kept, before = self._kept.get(tenant, {}).get(name, ()), None
        for one in kept:
            if text.startswith(one.text, at):
                return one
        if name == "messages":
            before = next((one for one in kept if _continues(text, at, one.text)), None)
        made = read_member(name, text, at) if before is None else _continued(before, text, at)
        if getsizeof(made.text) <= SHARE:
            self._keep(tenant, made, before)
        return made

    def forget(self, tenant: str) -> None:
        with self._lock:
            self._kept.pop(tenant, None)

    def _keep(self, tenant: str, made: Held, before: Held | None) -> None:
        """Keep a member, in the place of the one that it continues."""
        with self._lock:
            members = self._kept.pop(tenant, {})
            others = [one for one in members.get(made.name, ()) if one is not before]
            sizes = list(accumulate([getsizeof(one.text) for one in others], initial=getsizeof(made.text)))
            kept = made, *others[: bisect(sizes, SHARE) - 1]
            if len(self._kept) >= TENANTS:
                del self._kept[next(iter(self._kept))]
            self._kept[tenant] = {**members, made.name: kept}


def _continues(text: str, at: int, before: str) -> bool:
    """Return whether a list goes on after what another one has."""
    end = at + len(before) - 1
    return text[end : end + 1] == "," and text.startswith(before[:-1], at)


def _continued(before: Held, text: str, at: int) -> Held:
    end = at + len(before.text) - 1
    further = read_member(before.name, f"[{text[end + 1 :]}", 0)
    return Held(before.name, f"{before.text[:-1]},{further.text[1:]}", before.value + further.value)


def read_member(name: str, text: str, at: int) -> Held:
    """Read a member as `KeptMembers.read` does, from its text alone."""
    given, end = _scan(text, at)
    value = text[at:end]
    if name == "messages":
        messages = plain_messages(given)
        if not messages or not has_all(value, given, 4 * len(messages)):
            raise ValueError("not plain")
        return Held(name, value, messages)
    if "\\" in value:
        given = loads(value.encode(), max_depth=MAX_DEPTH - 1)
    elif not has_all(value, given, -1, MAX_DEPTH - 1):
        raise ValueError("a member stands twice")
    return Held(name, value, _READERS[name](given))


_scan: Any = json.JSONDecoder(parse_constant=int, parse_float=finite, parse_int=int64).scan_once  # type: ignore[attr-defined]


def _tools(given: Any) -> tuple[Tool, ...]:
    tools = structure_exactly(tuple[FunctionTool, ...], given)
    if not 0 < len(tools) <= 1024:
        raise InvalidInput.at("tools", msg="must have 1 to 1024 items")
    return tuple([read_tool(tool) for tool in tools])


def _form(given: Any) -> ResponseFormat:
    described: Any = structure_exactly(TextFormat | JsonObjectFormat | JsonSchemaFormat, given)  # type: ignore[arg-type]
    return read_response_format(described)


_READERS: Mapping[str, Callable[[Any], object]] = {"tools": _tools, "response_format": _form}
