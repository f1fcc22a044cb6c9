"""How models write tool calls into their answers, each family in the format that its chat template teaches.

A format is told by the template's own marks. Text comes in pieces, cut anywhere; what may still become a call is held
back until that is known.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import attrs

from modelyard.domain.completion import ToolCall

_STRING = r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'
"""A string of JSON, or the beginning of one that the text ends in."""


@attrs.frozen
class ToolFormat:
    """A call begins with `opening` and ends with `closing`; where that is empty, with its JSON value.

    Between them stands JSON: an object with `name` and `arguments` (under `arguments_key`), or a list of such. `taught`
    is what a template says that teaches it, `otherwise` what one says that begins calls alike and goes on otherwise.
    """

    name: str
    opening: str
    closing: str
    taught: re.Pattern[str]
    otherwise: re.Pattern[str]
    arguments_key: str = "arguments"
    listed: bool = False

    @property
    def bare(self) -> bool:
        """Whether nothing but its own JSON marks a call."""
        return self.opening.startswith("{")

    @property
    def value_at(self) -> int:
        """Where the JSON begins, in characters."""
        return 0 if self.bare else len(self.opening)

    def end(self, text: str) -> int | None:
        """Where the call ends that the text begins with; None when it goes on behind the text. What stands in strings
        of JSON ends nothing; where no JSON of its form follows, it is over with its opening.
        """
        value = text[self.value_at :].lstrip()
        if value and not value.startswith("[" if self.listed else "{"):
            return self.value_at
        if self.closing:
            parts = re.compile(f"{_STRING}|{re.escape(self.closing)}", re.DOTALL).finditer(text, self.value_at)
            return next((part.end() for part in parts if part[0] == self.closing), None)
        depth = 0
        for part in _PARTS.finditer(text, self.value_at):
            depth += (part[0] in "{[") - (part[0] in "}]")
            if depth <= 0 and part[0] in "{[}]":
                return part.end()
        return None


_PARTS = re.compile(rf"{_STRING}|[{{}}\[\]]", re.DOTALL)

_NEVER = re.compile("(?!)")

FORMATS = (
    ToolFormat(
        "tags", "<tool_call>", "</tool_call>", re.compile("<tool_call>"), re.compile("<function=|<arg_key>|<tool_sep>")
    ),
    ToolFormat("list", "[TOOL_CALLS]", "", re.compile(r"\[TOOL_CALLS\]"), re.compile(r"\[ARGS\]"), listed=True),
    ToolFormat("object", '{"name":', "", re.compile(r'\{"name":.*"parameters":'), _NEVER, arguments_key="parameters"),
)
"""Between tags (Qwen, Hermes), behind a mark (Mistral), and bare (Llama 3)."""


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template teaches, or None when it knows no tools, or writes calls in a way of its own."""
    if "tools" not in template:
        return None
    taught = next((one for one in FORMATS if one.taught.search(template)), None)
    return None if taught is None or taught.otherwise.search(template) else taught


class ToolReader:
    """Reads an answer as it comes: `take` gives the text that is certainly content and the calls that are complete.

    Calls are numbered from 0. What turns out to be no call is content after all: one that was cut off, is no JSON of
    this form, or has arguments that are no object. A call of something that is not among `tools` is told as any other:
    whoever asked can say so to the model. But where nothing except its JSON marks a call, that is an answer in JSON.
    """

    def __init__(self, format_: ToolFormat, call_id: str, tools: Collection[str]) -> None:
        self._format, self._id, self._tools = format_, call_id, tools
        self._text, self._count = "", 0

    def take(self, text: str, over: bool = False) -> Iterator[str | ToolCall]:
        """The next piece of the answer; `over` says that it is the last."""
        self._text += text
        while self._text:
            at = self._text.find(self._format.opening)
            if at < 0:
                yield from self._said(len(self._text) - (0 if over else self._begun()))
                return
            yield from self._said(at)
            end = self._format.end(self._text) or (self._cut_off() if over else None)
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

    def _cut_off(self) -> int:
        """Where the call ends that goes on to the end of the answer. One that is none ends where it seems to, so that
        those behind it are read.
        """
        closing = self._format.closing
        at = self._text.find(closing) if closing and self._parsed(self._text) is None else -1
        return len(self._text) if at < 0 else at + len(closing)

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
        body = written[form.value_at :].strip()
        try:
            value, end = _DECODER.raw_decode(body)
            if not form.closing.startswith(body[end:].lstrip()):
                return None
            calls = [_call(one) for one in (value if form.listed else [value])]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return None if form.bare and any(name not in self._tools for name, _ in calls) else calls


def _call(value: Any) -> tuple[str, str]:
    """Its name, and its arguments as JSON; models give them under either name, as an object or as the text of one."""
    name, arguments = value["name"], value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments, cls=_Decoder)
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call needs a name, and an object of arguments")
    name.encode()
    return name, json.dumps(arguments)


class _Decoder(json.JSONDecoder):
    """Of JSON as its standard has it: without NaN and infinities."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_no_number)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER = _Decoder()
