"""Tool calls in the text of models: each family writes them in the format that its chat template teaches.

A format is recognised by marks in the template. Text comes in pieces that are cut anywhere; what may still become a
call is held back until that is known.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import attrs

from modelyard.domain.completion import ToolCall

_STRING = r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'
"""A JSON string, or the beginning of one at the end of the text."""


@attrs.frozen
class ToolFormat:
    """A call begins with `opening` and ends with `closing`; where that is empty, with its JSON value.

    Between them is JSON: an object with `name` and `arguments` (under `arguments_key`), or a list of such objects.
    `taught` matches templates that teach the format, `otherwise` those whose calls begin the same but continue
    differently.
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
        """Whether a call is marked by its JSON alone."""
        return self.opening.startswith("{")

    @property
    def value_at(self) -> int:
        """The number of characters before the JSON."""
        return 0 if self.bare else len(self.opening)

    def end(self, text: str) -> int | None:
        """Return where the call ends that the text begins with; None when it continues after the text.

        The inside of a JSON string ends nothing. If no JSON of the right form follows, the call ends with its opening.
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
"""Between tags (Qwen, Hermes), after a mark (Mistral), and bare (Llama 3)."""


def format_of(template: str) -> ToolFormat | None:
    """Return the format that a chat template teaches; None for one without tools, or with an unknown format."""
    if "tools" not in template:
        return None
    taught = next((one for one in FORMATS if one.taught.search(template)), None)
    return None if taught is None or taught.otherwise.search(template) else taught


class ToolReader:
    """Reads an answer piece by piece: `take` yields text that is certainly content, and calls that are complete.

    Calls are numbered from 0. What is not a call after all is content: one that was cut off, is not JSON of this form,
    or has arguments that are not an object. A call of a tool that is not among `tools` is passed on like any other, so
    that the caller can answer it. But where a call is marked by its JSON alone, that is an answer in JSON.
    """

    def __init__(self, format_: ToolFormat, call_id: str, tools: Collection[str]) -> None:
        self._format, self._id, self._tools = format_, call_id, tools
        self._text, self._count = "", 0

    def take(self, text: str, over: bool = False) -> Iterator[str | ToolCall]:
        """Take the next piece of the answer; `over` marks the last one."""
        self._text += text
        while self._text:
            at = self._text.find(self._format.opening)
            if at < 0:
                yield from self._content(len(self._text) - (0 if over else self._begun()))
                return
            yield from self._content(at)
            end = self._format.end(self._text) or (self._cut_off() if over else None)
            if end is None:
                return
            yield from self._called(end)

    def _content(self, count: int) -> Iterator[str]:
        if count:
            content, self._text = self._text[:count], self._text[count:]
            yield content

    def _begun(self) -> int:
        """Return how many characters at the end may be the beginning of a call."""
        opening = self._format.opening
        sizes = range(min(len(opening) - 1, len(self._text)), 0, -1)
        return next((size for size in sizes if self._text.endswith(opening[:size])), 0)

    def _cut_off(self) -> int:
        """Return where the call ends that the answer is cut off in.

        If it is not a call, it ends where it seems to, so that calls after it are read.
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
    """Return the name, and the arguments as JSON. Models write them under either name, as an object or as its text."""
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
    """Decodes standard JSON: without NaN and infinities."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_no_number)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER = _Decoder()
