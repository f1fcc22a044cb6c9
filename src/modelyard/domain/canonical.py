"""Digests of values, by their canonical JSON, and of tables."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from modelyard.domain.json_text import canonical_json


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON: base64 without padding, X for + and Y for / (43 characters)."""
    return bytes_digest(canonical_json(value).encode())


def bytes_digest(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest(), b"XY")[:-1].decode()


class TableDigest:
    def __init__(self) -> None:
        self.rows: int = 0
        self._sum = hashlib.sha256()

    def add(self, row_digest: str) -> None:
        self.rows += 1
        self._sum.update(row_digest.encode())

    def hex(self) -> str:
        return self._sum.hexdigest()


def table_digest(row_digests: Iterable[str]) -> str:
    table = TableDigest()
    for row_digest in row_digests:
        table.add(row_digest)
    return table.hex()


# ---- for people --------------------------------------------------------------------------------------------------

MAX_TEXT = 400


def shortened(value: Any, most: int = MAX_TEXT) -> str:
    """Return a value as a short string: null as "", strings as they are, an object line by line.

    >>> shortened({"question": "2 + 2?", "choices": [3, 4]})
    'question: 2 + 2?\\nchoices: [3, 4]'
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        text = "\n".join(f"{name}: {_words(member)}" for name, member in value.items())
    else:
        text = _words(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _words(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)
