"""JSON text of JSON data and of mappings of any kind: by an encoder that is made once, and in canonical form."""

import json
from collections.abc import Callable, Iterable, Mapping
from json.encoder import (  # type: ignore[attr-defined]  # which typeshed leaves out
    c_make_encoder,
    encode_basestring,
    encode_basestring_ascii,
)
from typing import Any


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
