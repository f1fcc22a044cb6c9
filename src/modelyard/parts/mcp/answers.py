"""Answers of bounded size without secrets, and errors in one line."""

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from modelyard.cli.terminal import printable_store
from modelyard.errors import ModelyardError, nearest
from modelyard.formats.converter import structure_exactly, unstructure
from modelyard.lazy import log
from modelyard.parts.traffic.redaction import KINDS
from modelyard.platform.platform import Platform

if TYPE_CHECKING:
    from modelyard.parts.mcp.tools import AgentTool

MOST = 20_000
"""Characters of an answer at most."""

LONGEST = (2000, 500, 100)
"""Characters of a text in it, and a quarter as many members of a value: the first that makes it fit."""

LONGEST_SECRET = 500
"""Characters after a cut that are looked at, so that no part of a secret is left before it."""

_OWN_KEY = re.compile(r"\b[A-Za-z0-9_-]{1,8}[A-Za-z0-9-]{8}_[A-Za-z0-9_-]{43}\b")
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"]+")


def answered(
    platform: Platform, tools: "Mapping[str, AgentTool]", name: str, arguments: Mapping[str, Any]
) -> tuple[str, bool]:
    """Return what a tool answers as JSON text, or in one line why it cannot, and whether it could not."""
    try:
        if name not in tools:
            return f"there is no tool {name[:100]!r}{nearest(name, tools)}", True
        tool = tools[name]
        return bounded(tool.answer(platform, structure_exactly(tool.asks, arguments))), False
    except click.ClickException as wrong:
        return _line(wrong.format_message()), True
    except (ModelyardError, TypeError, ValueError, OSError, TimeoutError) as wrong:
        return _line(str(wrong) or type(wrong).__name__), True
    except Exception as fault:  # noqa: BLE001 - whatever goes wrong, the session goes on
        log.exception("the tool %s failed", name)
        return f"{name} failed with {type(fault).__name__}; the log of the server says where", True


def _line(message: str) -> str:
    return _without_secrets(" ".join(message.split()))[: LONGEST[0]]


def bounded(answer: Mapping[str, Any]) -> str:
    """Return an answer as JSON text of at most `MOST` characters: long texts are cut, and items left to the next page,
    each with a note of it."""
    given = unstructure(dict(answer))
    for longest in LONGEST:
        left, items = [2 * MOST], given.get("items", ())  # of which none is left out but with `next`
        shown = _cut({name: one for name, one in given.items() if name != "items"}, longest, left)
        shown |= {"items": [_cut(one, longest, left) for one in items]} if "items" in given else {}
        text = _written(shown)
        while len(text) > MOST and len(shown.get("items", ())) > 1:
            kept = shown["items"][: len(shown["items"]) * MOST // (len(text) + 1)] or shown["items"][:1]
            last = kept[-1]["cursor"] if "cursor" in kept[-1] else kept[-1].get("id")
            more = {"note": f"{len(kept)} items fit here; ask for those after `next`"}
            shown = {**shown, "items": kept, "next": last, **more}
            text = _written(shown)
        if len(text) <= MOST:
            return text
    return _written({"note": f"cut after {MOST // 2} characters", "text": text[: MOST // 2]})


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cut(value: Any, longest: int, left: list[int]) -> Any:
    """Return a value with its texts cut; once more than `left` characters are shown, with no more of them."""
    most = longest // 4
    if isinstance(value, str):
        return _cut_text(value, longest, left)
    if isinstance(value, Mapping):
        members = {
            _cut_text(str(name), longest, left): _cut(one, longest, left) for name, one in islice(value.items(), most)
        }
        return members if len(value) <= most else {**members, "note": f"{len(value) - most} members more"}
    if isinstance(value, list | tuple):
        more = [f"{len(value) - most} more"] if len(value) > most else []
        return [_cut(one, longest, left) for one in value[:most]] + more
    return value


def _cut_text(text: str, longest: int, left: list[int]) -> str:
    if left[0] <= 0:
        return "…"
    shown = _without_secrets(text[: longest + LONGEST_SECRET])
    left[0] -= min(len(shown), longest)
    more = len(text) - longest
    return shown if more <= 0 else f"{shown[:longest]}… (cut, {more} characters more)"


def _without_secrets(text: str) -> str:
    shown = KINDS["secret"].sub("[secret]", _OWN_KEY.sub("[secret]", text))
    return _ADDRESS.sub(lambda found: printable_store(found[0]), shown)
