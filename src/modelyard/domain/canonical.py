"""JSON text of JSON data and of mappings of any kind, and digests of values and of tables."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from json.encoder import (  # type: ignore[attr-defined]  # which typeshed leaves out
    c_make_encoder,
    encode_basestring,
    encode_basestring_ascii,
)
from typing import Any

from modelyard.lazy import hashlib


def json_encoder(
    default: Callable[[Any], Any], separators: tuple[str, str], *, sort_keys: bool = False, ensure_ascii: bool = False
) -> Callable[[Any, int], Iterable[str]]:
    """Return a function from a value, and 0, to the parts of its JSON text. One encoder for all values takes a third of
    the time. `default` replaces a value that JSON does not have, and `separators` follow an item and a key. The
    function raises ValueError on NaN and infinity, and RecursionError on what contains itself."""
    if c_make_encoder is None:  # an interpreter without the accelerator
        options: Any = {"sort_keys": sort_keys, "ensure_ascii": ensure_ascii, "separators": separators}
        encoder = json.JSONEncoder(check_circular=False, allow_nan=False, default=default, **options)
        return lambda value, _: encoder.iterencode(value)
    quoted = encode_basestring_ascii if ensure_ascii else encode_basestring
    return c_make_encoder(None, default, quoted, None, *reversed(separators), sort_keys, False, False)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_encode = json_encoder(_plain, (", ", ": "), sort_keys=True, ensure_ascii=True)


def canonical_json(value: Any) -> str:
    """Encode with sorted keys, separators ", " and ": ", non-ASCII escaped. Raises ValueError on NaN and infinity."""
    return "".join(_encode(value, 0))


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
    """Return a value as a short string: null as "", strings as they are, an object line by line, the turns of a
    conversation under their roles.

    >>> shortened({"question": "2 + 2?", "choices": [3, 4]})
    'question: 2 + 2?\\nchoices: [3, 4]'
    >>> shortened({"messages": [{"role": "user", "content": "2 + 2?"}]})
    'user: 2 + 2?'
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        text = "\n".join(_turns(member) or f"{name}: {_words(member)}" for name, member in value.items())
    else:
        text = _words(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _turns(value: Any) -> str:
    """Return a conversation as what each of its turns says; "" if it is none, or a turn holds more than text."""
    turns = value if isinstance(value, list | tuple) else ()
    plain = [one for one in turns if isinstance(one, Mapping) and one.keys() == {"role", "content"}]
    texts = [f"{one['role']}: {one['content']}" for one in plain if isinstance(one["content"], str)]
    return "\n".join(texts) if len(texts) == len(turns) else ""


def _words(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)
