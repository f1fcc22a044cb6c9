"""The one canonical JSON text, and the digests that are made of it: the domain's only JSON."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=True, allow_nan=False, default=_plain).encode


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, separators ", " and ": ", non-ASCII escaped. Raises ValueError on NaN and infinity."""
    return _encode(value)


def digest(value: Any) -> str:
    """SHA-256 of the canonical text: base64url without padding, `-` to `X`, `_` to `Y` (43 characters)."""
    raw = hashlib.sha256(canonical_json(value).encode()).digest()
    return base64.b64encode(raw, b"XY")[:-1].decode()


class TableDigest:
    """The digest of a table whose rows come one after the other: SHA-256 over the row digests joined."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = hashlib.sha256()

    def add(self, row_digest: str) -> None:
        """Go on with the next row."""
        self.rows += 1
        self._sum.update(row_digest.encode())

    def hex(self) -> str:
        """The digest of the rows so far."""
        return self._sum.hexdigest()


def table_digest(row_digests: Iterable[str]) -> str:
    """SHA-256, in hex, over the row digests joined."""
    table = TableDigest()
    for row_digest in row_digests:
        table.add(row_digest)
    return table.hex()
