"""A request of a client, and what became of it."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.parts.doubles.cassette.redaction import Redactor
from modelyard.parts.doubles.vendors.refusal import member, parsed

REFUSED = {400, 404, 405, 413, 415, 422}
"""Statuses that say that the request itself is wrong; the others say how the platform or the caller stands."""

_SHOWN = 300


_REDACTOR = Redactor()
without_secrets = _REDACTOR.text


def shown(value: object, most: int | None = None) -> str:
    """Return the representation of a value without secrets, and only then cut it to `most` characters."""
    clean = _REDACTOR.value(value)  # before the representation puts letters in front of a key, as for the end of a line
    text = without_secrets(repr(clean))
    if most is None or len(text) <= most:
        return text
    return f"{clean[:most]!r}..." if isinstance(clean, str) else f"{text[:most]}..."


@attrs.define(eq=False)
class LoggedRequest:
    """A request of a client. `body` is its JSON. `status` is None while it is not answered, or if the client left, and
    `words` is what an error said."""

    method: str
    path: str = attrs.field(repr=shown)
    body: Any = attrs.field(default=None, repr=shown)
    status: int | None = None
    words: str = attrs.field(default="", repr=shown)

    @property
    def model(self) -> str:
        """The model that it names, or ""."""
        named = member(self.body, "model")
        return named if isinstance(named, str) else ""

    @property
    def text(self) -> str:
        """The text of its last message, input or prompt."""
        return last_text(self.body)

    @property
    def refused(self) -> bool:
        """Whether it was refused because of what it asks."""
        if self.status == 404 and self.method in ("GET", "DELETE"):  # whether there is such a thing
            return "no route" in self.words or "modelyard has no" in self.words
        return self.status in REFUSED

    def __str__(self) -> str:
        status = "no answer" if self.status is None else str(self.status)
        asked = shown(self.text, _SHOWN) if self.text else _shown_calls(self.body)
        lines = [" ".join(filter(None, [status, self.method, self.path, self.model, asked]))]
        return without_secrets("\n    ".join([*lines, *filter(None, [self.words])]))


def last_text(body: object) -> str:
    """Return the text of the last message, of the input or of the prompt of a request."""
    for name in ("messages", "input", "prompt"):
        found = member(body, name)
        if isinstance(found, list) and found:
            found = found[-1]
        if found:
            return _text(found)
    return ""


def _shown_calls(body: object) -> str:
    """Return the calls of tools in the last message or items of the input, where that has no text: "look(x=1)"."""
    found = member(body, "messages") or member(body, "input")
    last = found[-1] if isinstance(found, list) and found else None
    blocks = member(last, "content")
    calls = member(last, "tool_calls") or (blocks if isinstance(blocks, list) else [last])
    told = [_shown_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return ", ".join(filter(None, told))


def _shown_call(call: object) -> str:
    """Return a call in any format of requests, without secrets."""
    function = member(call, "function") or call
    name, given = member(function, "name"), member(function, "arguments") or member(function, "input")
    if not isinstance(name, str):
        return ""
    arguments = parsed(given.encode("utf-8", "replace")) if isinstance(given, str) else given
    shown_given = shown(given, _SHOWN) if given else ""
    if isinstance(arguments, dict):
        shown_given = ", ".join(f"{shown(key, 80)}: {shown(value, 80)}" for key, value in arguments.items())[:_SHOWN]
    return f"{shown(name, 80)[1:-1]}({shown_given})"


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    found = (member(value, name) for name in ("content", "text", "output", "prompt"))
    return next((_text(one) for one in found if one), "")


def words_of_failure(failure: Exception) -> list[str]:
    """Return what an exception says, place by place."""
    said = [one.msg for one in failure.problems] if isinstance(failure, InvalidInput) else [str(failure)]
    return [*filter(None, said)]


def words_of(body: bytes) -> str:
    """Return what an error says, in any format of errors."""
    data = parsed(body)
    for path in (("error", "message"), ("detail",), ("reason",)):
        found = member(data, *path)
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            return "; ".join(map(_problem, found))
    return ""


def _problem(problem: object) -> str:
    place = member(problem, "loc")
    return f"{'.'.join(map(str, place)) if isinstance(place, list) else ''}: {member(problem, 'msg')}"


def plain(value: Any) -> Any:
    """Return JSON data of nested mappings and sequences."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
