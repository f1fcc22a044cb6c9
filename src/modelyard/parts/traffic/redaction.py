"""Redaction: replacing strings that must not be trained on in every text of a conversation."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import ContentPart, Message, Tool, ToolCall
from modelyard.errors import InvalidInput, nearest
from modelyard.formats.json import dumps, loads

Redaction = str | re.Pattern[str] | Callable[[str], str]
"""The name of a kind of text (`KINDS`), a pattern, or a function that returns the text to keep."""

KINDS: Mapping[str, re.Pattern[str]] = {
    "email": re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"),
    "secret": re.compile(r"\b(?:(?:sk|pk|tml|hf|ghp|gho|xox[abp])[-_][\w-]{16,}|AKIA[A-Z0-9]{16})\b"),
    "card": re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)"),
    "ip": re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)"),
    "phone": re.compile(r"(?<!\w)(?:\+|\(|\d)(?:[ ().-]{0,2}\d){8,14}(?!\w)"),
}
"""Kinds of text that are replaced by their names, as in "[email]". They take time in proportion to the text."""


@attrs.frozen
class TextRedaction:
    """Functions that are applied to each text, one after the other."""

    steps: tuple[Callable[[str], str], ...] = ()

    @classmethod
    def of(cls, given: Redaction | Sequence[Redaction]) -> "TextRedaction":
        """Read the kinds and functions of a redaction. Raises `InvalidInput` for an unknown kind."""
        several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        return cls(tuple(_step(one, at) for at, one in enumerate(several)))

    def text(self, text: str) -> str:
        for step in self.steps:
            text = step(text)
        return text

    def message(self, message: Message) -> Message:
        content = message.content
        return attrs.evolve(
            message,
            content=tuple(map(self._part, content)) if isinstance(content, tuple) else content and self.text(content),
            name=message.name and self.text(message.name),
            tool_calls=tuple(map(self._call, message.tool_calls)),
        )

    def tool(self, tool: Tool) -> Tool:
        return attrs.evolve(tool, description=self.text(tool.description), parameters=self._value(tool.parameters))

    def _part(self, part: ContentPart) -> ContentPart:
        return attrs.evolve(part, text=self.text(part.text))

    def _call(self, call: ToolCall) -> ToolCall:
        """Redact the values inside the JSON, which stays JSON."""
        try:
            arguments = loads(call.arguments.encode())
        except (InvalidInput, UnicodeEncodeError):
            return attrs.evolve(call, arguments=self.text(call.arguments))
        kept = self._value(arguments)
        return call if kept == arguments else attrs.evolve(call, arguments=dumps(kept).decode())

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(name): self._value(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(part) for part in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = self.text(str(value))
            return value if shown == str(value) else shown
        return value


def _step(given: object, at: int) -> Callable[[str], str]:
    if isinstance(given, str):
        if given not in KINDS:
            hint = nearest(given, KINDS)
            raise InvalidInput.at(
                "redact", at, msg=f"must be one of {', '.join(KINDS)}, or a pattern or function{hint}"
            )
        return _replacing(KINDS[given], f"[{given}]")
    if isinstance(given, re.Pattern):
        return _replacing(given, "[redacted]")
    if not callable(given):
        raise InvalidInput.at("redact", at, msg="must be the name of a kind of text, a pattern or a function")
    return given


def _replacing(pattern: re.Pattern[str], by: str) -> Callable[[str], str]:
    return lambda text: pattern.sub(lambda _: by, text)
