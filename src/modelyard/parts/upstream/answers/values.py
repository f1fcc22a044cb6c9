"""Values in an answer of another server: what is usable is read, in whichever form it comes, and nothing is refused.

The guards of requests do not apply here, as the answer is paid for: a member that nobody reads may hold anything.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput

MOST_TOKENS = 2**40
"""A count above this is not one."""
LEAST_LOGPROB = -9999.0
"""The log-probability of a token whose own is minus infinity, or cannot be read."""
_MOST_DIGITS = 12
"""A name of more digits is no number: not even that of a token."""
BYTES_PER_TOKEN = 4
"""The estimate of tokens, where a server counts none, by the bytes of the text in UTF-8."""


def read_json(raw: bytes) -> Any:
    """Parse an answer. Raises `InvalidInput` for what is not JSON; what follows a JSON value is ignored.

    NaN, infinities, integers of any length, doubled members, control characters in strings, a byte order mark, half
    characters and bytes that are not UTF-8 are read; see `whole_characters` for the last two.
    """
    text = raw.decode("utf-8", "surrogateescape").removeprefix("\ufeff").lstrip()
    try:
        return _PLAIN.raw_decode(text)[0]
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput.at("answer", msg=f"is not valid JSON: {error.msg} at {place}", type="json_invalid") from None
    except ValueError:  # an integer of thousands of digits
        return _CAREFUL.raw_decode(text)[0]
    except RecursionError:
        raise InvalidInput.at("answer", msg="is nested too deeply", type="json_invalid") from None


def read_values(raw: bytes) -> list[Any]:
    """Parse an answer of one JSON value, or of several that follow each other or stand in a list.

    What follows them and is not JSON is ignored. Raises `InvalidInput` if there is none.
    """
    text = raw.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    found: list[Any] = []
    while rest := text.lstrip(" \t\r\n,"):
        try:
            value, end = _PLAIN.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        value = read_again(value)
        found += value if isinstance(value, list) else [value]
        text = rest[end:]
    return found or [read_json(raw)]


def read_again(value: Any) -> Any:
    """Return the object or the list that a string holds, as some servers write their JSON as JSON; else the value."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return _PLAIN.raw_decode(value.lstrip())[0]
    except (ValueError, RecursionError):
        return value


def is_whole(raw: bytes) -> bool:
    """Return whether a body is the JSON of an object or of a list."""
    try:
        return isinstance(json.loads(raw), dict | list)
    except (ValueError, RecursionError):
        return False


_PLAIN = json.JSONDecoder(strict=False)
_CAREFUL = json.JSONDecoder(strict=False, parse_int=float)


def object_of(value: Any) -> Mapping[str, Any]:
    """Return an object, or an empty one in the place of anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else EMPTY


def objects_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; one alone counts as a list of one, and one of them by their numbers as the list."""
    if value is None:
        return []
    if type(value) is dict or isinstance(value, Mapping):
        numbered = numbered_of(value)
        if numbered:
            return [{"index": at, **one} for at, one in numbered.items() if isinstance(one, Mapping)]
        return [value]
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def numbered_of(value: Mapping[str, Any]) -> Mapping[int, Any]:
    """Return the members of an object with numbers as names."""
    return {int(at): one for at, one in value.items() if at.isdecimal() and len(at) <= _MOST_DIGITS}


def count_of(value: Any) -> int | None:
    """Return a number of tokens, also from `12.0` or `"12"`; None for what is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS:
        return None
    return round(value)


def index_of(value: Any) -> int | None:
    """Return a place in a list; None for what is none."""
    return count_of(value)


def logprob_of(value: Any) -> float:
    """Return a log-probability, which is at most 0 and finite."""
    try:
        found = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    return min(0.0, max(found, LEAST_LOGPROB)) if not math.isnan(found) else LEAST_LOGPROB


def string_of(value: Any) -> str:
    """Return a string without half characters; an empty one in the place of anything else."""
    return whole_characters(value) if isinstance(value, str) else ""


def content_of(value: Any) -> tuple[str, str]:
    """Return the reasoning and the text of a content, which is a string or a list of parts.

    What a server has parsed, as some do in their JSON mode, is its JSON.
    """
    if isinstance(value, str):
        return "", value
    if value is None:
        return "", ""
    if is_number(value) or is_parsed(value):
        return "", arguments_of(value)
    parts = value if isinstance(value, list | tuple) else [value]
    try:
        found = [_part(part) for part in parts]
    except RecursionError:
        return "", ""
    return "".join([thought for thought, _ in found]), "".join([text for _, text in found])


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_parsed(value: Any) -> bool:
    """Return whether a content is JSON that the server has parsed: an object or a list without any part."""
    if isinstance(value, Mapping):
        return bool(value) and not (_is_part(value) and (_PART_MEMBERS.issuperset(value) or "type" in value))
    return isinstance(value, list) and bool(value) and not any(map(_is_part, value))


def message_of(value: Any) -> Mapping[str, Any]:
    """Return a message, which may be its text alone, or the only one of a list."""
    only = value[0] if isinstance(value, list) and value else value
    return {"content": only} if isinstance(only, str) else object_of(only)


def delta_of(value: Any) -> Mapping[str, Any]:
    """Return a delta, as `message_of` does. The word for none is no text."""
    return EMPTY if isinstance(value, str) and value.lower() in ("none", "null") else message_of(value)


def said_of(message: Mapping[str, Any]) -> Any:
    """Return the content of a message, or what stands in its place: a refusal, a text, or the words of a sound."""
    content = message.get("content")
    if content or is_number(content):
        return content
    return message.get("refusal") or message.get("text") or object_of(message.get("audio")).get("transcript")


_THOUGHTS = ("thinking", "reasoning", "reasoning_content", "summary")
_TEXTS = ("text", "content", "refusal", "output_text", "transcript", "value", "parts")
_PART_MEMBERS = frozenset(
    {*_THOUGHTS, *_TEXTS, "type", "thought", "index", "id", "role", "annotations", "citations", "logprobs", "signature"}
)
"""Names of the members of a part that has no type."""
_PART_TYPE = re.compile(
    "text|think|thought|reason|refusal|summary|message|transcript|tool|call|function|image|audio|video|media|file"
    "|document|source|reference|citation|search|code"
)
"""Words in the types of parts, also of those that have no text."""


def _is_part(value: Any) -> bool:
    """Return whether a value is a part of a content: by its type, or as its text stands where that of parts does."""
    if not isinstance(value, Mapping):
        return isinstance(value, str) or value is None
    kind = value.get("type")
    return (isinstance(kind, str) and bool(_PART_TYPE.search(kind))) or any(
        isinstance(value.get(name), str | list | Mapping) for name in (*_THOUGHTS, *_TEXTS)
    )


def has_unread(content: Any) -> bool:
    """Return whether a content that gave nothing has something nevertheless, such as an image."""
    parts = content if isinstance(content, list | tuple) else [content]
    return any(part[name] for part in parts if isinstance(part, Mapping) for name in part if name not in _PART_MEMBERS)


def _part(part: Any) -> tuple[str, str]:
    if isinstance(part, str):
        return "", part
    if not isinstance(part, Mapping):
        return content_of(part) if isinstance(part, list) else ("", "")
    within = (content_of(part.get(name)) for name in _TEXTS)
    thought, texts = next((found for found in within if any(found)), ("", ""))
    thoughts = "".join([*["".join(content_of(part.get(name))) for name in _THOUGHTS], thought])
    kind = part.get("type")
    is_thought = part.get("thought") is True or (isinstance(kind, str) and ("reason" in kind or "think" in kind))
    return (thoughts or texts, "") if is_thought else (thoughts, texts)


_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "thinking_blocks", "thoughts", "thought")
"""Names under which servers put reasoning next to the content. One of them is enough."""


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return reasoning under the name that the server has for it."""
    for name in _REASONING:
        given = message.get(name)
        if given and isinstance(given, str):
            return given
        if given and (found := "".join(content_of(given))):
            return found
    details = message.get("reasoning_details")
    return "".join(map("".join, map(_part, details))) if isinstance(details, list) else ""


def arguments_of(value: Any) -> str:
    """Return the arguments of a call as text: an object becomes its JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError:
        return ""


def size_of(text: str) -> int:
    """Return how many bytes a string has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def tokens_of(size: int) -> int:
    """Estimate the tokens of so many bytes of text."""
    return -(-size // BYTES_PER_TOKEN)


# ---- characters that come in halves

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BYTES = re.compile("[\udc80-\udcff]+")
_HALF = re.compile("[\ud800-\udfff]")
_OPEN = re.compile("(?:[\ud800-\udbff]|[\udcc2-\udcf4][\udc80-\udcbf]{0,2})\\Z")


def _paired(text: str) -> str:
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def whole_characters(text: str) -> str:
    """Return the text with characters for pairs of surrogates, and for the bytes that `read_json` let through.

    What remains of a character is U+FFFD.

    >>> whole_characters("\\ud83d\\ude00"), whole_characters("\\udcc3\\udca9 \\ud83d")
    ('😀', 'é �')
    """
    if text.isascii() or not _HALF.search(text):
        return text
    text = _paired(text)
    text = _BYTES.sub(lambda run: run[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace"), text)
    return _HALF.sub("\ufffd", text)


class Halves:
    """Text that comes in pieces which may be cut within a character: its first half waits for the second."""

    def __init__(self) -> None:
        self.held: str = ""

    def take(self, piece: str) -> str:
        if not self.held and (piece.isascii() or not _HALF.search(piece)):
            return piece
        text = _paired(self.held + piece)
        cut = _OPEN.search(text)
        self.held = cut[0] if cut else ""
        return whole_characters(text[: len(text) - len(self.held)])

    def end(self) -> str:
        """Return what still waits, as U+FFFD."""
        held, self.held = self.held, ""
        return whole_characters(held)


def list_of(value: Any) -> Sequence[Any]:
    """Return the members of a list; none of anything else."""
    return value if isinstance(value, list | tuple) else ()
