"""JSON values inside a record: which are accepted, how they are frozen, and their text."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.scanner import make_scanner
from math import isfinite
from operator import is_
from types import MappingProxyType, NoneType
from typing import Any

from modelyard.domain.canonical import json_encoder
from modelyard.domain.record import EMPTY

MAX_DEPTH = 100
"""Levels of nested containers; far below the interpreter's recursion limit, so that what was written can be read."""

MAX_INT = 2**63
"""Integers from minus this to one below it can be kept."""


def encodable(text: str) -> str:
    """Return `text` unchanged. Raises `UnicodeEncodeError` (a `ValueError`) if it contains a lone surrogate."""
    if not text.isascii():
        text.encode()
    return text


def within_63_bits(number: int) -> int:
    """Return `number` unchanged. Raises `ValueError` if a signed 64-bit integer cannot hold it."""
    if not -MAX_INT <= number < MAX_INT:
        raise ValueError("an integer of more than 63 bits cannot be kept")
    return number


def _finite(number: float) -> float:
    if not isfinite(number):
        raise ValueError(f"{number!r} cannot be kept in JSON")
    return number


_ENCODED_SAFELY = frozenset({NoneType, bool, float, str})
_KEYS = frozenset({str})
_ARRAYS = (list, tuple)

_SCALARS: Mapping[type, Callable[[Any], Any]] = {
    NoneType: bool,
    bool: bool,
    int: within_63_bits,
    float: _finite,
    str: encodable,
}


def frozen(value: Any, depth: int = 0) -> Any:
    """Return `value` with read-only mappings and with tuples for arrays; the same object if it is so already.

    Raises `ValueError` for what JSON or a store would change or lose: NaN and infinities, integers of more than 63
    bits, lone surrogates, keys that are not strings, other types, and nesting deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, _ARRAYS):
        return _frozen_array(value, depth)
    if isinstance(value, Mapping):
        return _frozen_mapping(value, depth)
    check = _SCALARS.get(type(value))
    if check is None:
        raise ValueError(f"{type(value).__name__} is not a JSON value")
    check(value)
    return value


def _frozen_mapping(value: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    try:
        encodable("".join(value))
    except TypeError:
        raise ValueError("a key of a mapping is not a string") from None
    kept = _frozen_items(value.values(), depth)
    if type(value) is MappingProxyType and all(map(is_, kept, value.values())):
        return value
    return MappingProxyType(dict(zip(value, kept, strict=True)))


def _frozen_array(value: Sequence[Any], depth: int) -> tuple[Any, ...]:
    kept = _frozen_items(value, depth)
    return value if type(value) is tuple and all(map(is_, kept, value)) else tuple(kept)


def _frozen_items(items: Iterable[Any], depth: int) -> list[Any]:
    kept = []
    for item in items:
        check = _SCALARS.get(type(item))
        if check is None:
            kept.append(frozen(item, depth + 1))
        else:
            check(item)
            kept.append(item)
    return kept


_encode = json_encoder(dict, (",", ":"))
_decode = make_scanner(json.JSONDecoder(object_hook=MappingProxyType))  # type: ignore[arg-type]  # a decoder, as json does


def dump(value: Any) -> str:
    """Return the JSON text of a value.

    Raises `ValueError` as `frozen` does, or leaves that to SQL's binding.
    """
    if value is EMPTY:
        return "{}"
    is_plain = (  # a flat mapping for which the encoder and the binding refuse all that `frozen` would
        type(value) is MappingProxyType
        and _ENCODED_SAFELY.issuperset(map(type, value.values()))
        and _KEYS.issuperset(map(type, value))
    )
    return "".join(_encode(value.copy() if is_plain else frozen(value), 0))


def load(text: str) -> Any:
    """Return the frozen value of a string that `dump` wrote. Raises `ValueError` for any other string."""
    if text == "{}":
        return EMPTY
    try:
        value, end = _decode(text, 0)
    except StopIteration as at:
        raise ValueError(f"there is no JSON value at character {at.value}") from None
    if end != len(text):
        raise ValueError(f"there is more text after the JSON value, at character {end}")
    return frozen(value) if "[" in text else value
