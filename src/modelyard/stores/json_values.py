"""JSON values inside a record: which are accepted, how they are frozen, and their text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from types import MappingProxyType, NoneType
from typing import Any

from modelyard.domain.canonical import json_encoder
from modelyard.domain.record import EMPTY, MAX_DEPTH, WrittenMapping, read_frozen

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
    bits, lone surrogates, keys that are not strings, other types, and nesting deeper than `MAX_DEPTH`."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if kind is WrittenMapping:
        return value
    if kind is dict or kind is MappingProxyType or isinstance(value, Mapping):
        return _frozen_mapping(value, depth)
    if isinstance(value, _ARRAYS):
        return _frozen_array(value, depth)
    check = _SCALARS.get(kind)
    if check is None:
        raise ValueError(f"{kind.__name__} is not a JSON value")
    check(value)
    return value


def _frozen_mapping(value: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    try:
        encodable("".join(value))
    except TypeError:
        raise ValueError("a key of a mapping is not a string") from None
    changed = _changed(value.items(), depth)
    return value if type(value) is MappingProxyType and not changed else MappingProxyType({**value, **changed})


def _frozen_array(value: Sequence[Any], depth: int) -> tuple[Any, ...]:
    changed = _changed(enumerate(value), depth)
    if changed:
        return tuple([changed.get(at, item) for at, item in enumerate(value)])
    return value if type(value) is tuple else tuple(value)


def _changed(items: Iterable[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
    """Check the items of a container. Returns those that are not frozen, frozen, by their places."""
    changed = {}
    for at, item in items:
        kind = type(item)
        if kind is str:
            if not item.isascii():
                item.encode()
        elif kind is int or kind is float:
            if not -MAX_INT <= item < MAX_INT:
                _SCALARS[kind](item)
        elif kind is not bool and item is not None:
            kept = frozen(item, depth + 1)
            if kept is not item:
                changed[at] = kept
    return changed


def _copied(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(mapping)  # a call of Python for each mapping, between which other threads run


_encode = json_encoder(_copied, (",", ":"))


def dump(value: Any) -> str:
    """Return the JSON text of a value. Raises `ValueError` as `frozen` does, or leaves that to SQL's binding."""
    if value is EMPTY:
        return "{}"
    if type(value) is WrittenMapping:
        return value.text
    is_plain = (  # a flat mapping for which the encoder and the binding refuse all that `frozen` would
        type(value) is MappingProxyType
        and _ENCODED_SAFELY.issuperset(map(type, value.values()))
        and _KEYS.issuperset(map(type, value))
    )
    return "".join(_encode(value.copy() if is_plain else frozen(value), 0))


def load(text: str) -> Any:
    """Return the frozen value of a string that `dump` wrote. Raises `ValueError` for any other string."""
    return EMPTY if text == "{}" else read_frozen(text)
