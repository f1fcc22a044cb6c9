"""JSON as it travels: strangers' bytes are parsed under guard, answers are ASCII without NaN."""

from modelyard.formats.json_text import dumps as dump
from modelyard.formats.json_text import loads

__all__ = ["dump", "parse"]


def parse(raw: bytes) -> object:
    """The value of a request's body. Raises `InvalidInput` at ("body",), never repeating the input."""
    return loads(raw, at=("body",))
