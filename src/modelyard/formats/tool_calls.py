"""How models write tool calls into their answers, each family in the format that its chat template teaches.

A format is told by the template's own marks. Text comes in pieces, cut anywhere; what may still become a call is held
back until that is known.
"""

import json
from collections.abc import Iterator
from typing import Any

import attrs

from modelyard.domain.completion import ToolCall


@attrs.frozen
class ToolFormat:
    """A call begins with `opening` and ends with `closing`, or with the answer where that is empty.

    Between them stands JSON: an object with `name` and `arguments` (under `arguments_key`), or a list of such.
    """

    name: str
    opening: str
    closing: str
    arguments_key: str = "arguments"
    listed: bool = False


FORMATS = (
    ToolFormat("tags", "<tool_call>", "</tool_call>"),
    ToolFormat("list", "[TOOL_CALLS]", "", listed=True),
    ToolFormat("object", '{"name":', "", arguments_key="parameters"),
)
"""Between tags (Qwen, Hermes), behind a mark (Mistral), and bare (Llama 3)."""

_MARKS = {"tags": "<tool_call>", "list": "[TOOL_CALLS]", "object": '"parameters":'}


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template teaches, or None when it knows no tools."""
    if "tools" not in template:
        return None
    return next((one for one in FORMATS if _MARKS[one.name] in template), None)


class ToolReader:
    """Reads an answer as it comes: `take` gives the text that is certainly content and the calls that are complete.

    Calls are numbered from 0. What turns out to be no call is content after all.
    """

    def __init__(self, format_: ToolFormat, call_id: str) -> None:
        self._format, self._id, self._text, self._count = format_, call_id, "", 0

    def take(self, text: str, over: bool = False) -> Iterator[str | ToolCall]:
        """The next piece of the answer; `over` says that it is the last."""
        self._text += text
        while self._text:
            at = self._text.find(self._format.opening)
            if at < 0:
                yield from self._said(len(self._text) - (0 if over else self._begun()))
                return
            yield from self._said(at)
            end = self._end(over)
            if end is None:
                return
            yield from self._called(end)

    def _said(self, count: int) -> Iterator[str]:
        if count:
            said, self._text = self._text[:count], self._text[count:]
            yield said

    def _begun(self) -> int:
        """How many characters at the end may be the beginning of a call."""
        opening = self._format.opening
        sizes = range(min(len(opening) - 1, len(self._text)), 0, -1)
        return next((size for size in sizes if self._text.endswith(opening[:size])), 0)

    def _end(self, over: bool) -> int | None:
        """Where the call ends that the text begins with; None when that is not to be seen yet."""
        closing = self._format.closing
        if not closing:
            return len(self._text) if over else None
        at = self._text.find(closing)
        if at < 0:
            return len(self._text) if over else None
        return at + len(closing)

    def _called(self, end: int) -> Iterator[str | ToolCall]:
        written, self._text = self._text[:end], self._text[end:]
        calls = self._parsed(written)
        if calls is None:
            yield written
            return
        for name, arguments in calls:
            yield ToolCall(f"{self._id}-{self._count}", name, arguments)
            self._count += 1

    def _parsed(self, written: str) -> list[tuple[str, str]] | None:
        form = self._format
        body = written if form.name == "object" else written[len(form.opening) :].removesuffix(form.closing)
        try:
            value = json.loads(body)
            return [_call(one, form.arguments_key) for one in (value if form.listed else [value])]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def _call(value: Any, key: str) -> tuple[str, str]:
    name, arguments = value["name"], value.get(key, value.get("arguments", {}))
    if not isinstance(name, str) or not name:
        raise ValueError("a call needs a name")
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments)
