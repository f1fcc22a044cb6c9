"""Frozen attrs values as JSON data and back, so that what is read equals what was written.

A field that equals its default is left out, which keeps what a person must read short, and loses nothing.
"""

import types
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs

T = TypeVar("T")

_FACTORY: Any = attrs.Factory


def to_json(value: Any) -> Any:
    """JSON data: objects with the fields' own names, lists, and scalars."""
    if attrs.has(type(value)):
        named = ((field, getattr(value, field.name)) for field in attrs.fields(type(value)))
        return {field.name: to_json(part) for field, part in named if part != _default(field)}
    if isinstance(value, Mapping):
        return {str(name): to_json(part) for name, part in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(to_json, value))
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Decimal | date) else value


def _default(field: "attrs.Attribute[Any]") -> Any:
    made: Any = field.default
    return made.factory() if isinstance(made, _FACTORY) else made


def from_json(cls: type[T], data: Any) -> T:
    """The value of an attrs class. Raises ValueError or TypeError for data that `to_json` does not give."""
    return cast(T, _read(cls, data))


def _read(kind: Any, data: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_one_of(arguments, data)
    if origin in (tuple, frozenset):
        return origin(_read(arguments[0], item) for item in _exactly(list, data))
    if origin is not None:
        return {_key(arguments[0], name): _read(arguments[1], item) for name, item in _exactly(dict, data).items()}
    if attrs.has(kind):
        return _read_fields(kind, _exactly(dict, data))
    return _read_scalar(kind, data)


def _read_fields(cls: Any, data: dict[str, Any]) -> Any:
    hints = _hints(cls)
    unknown = sorted(data.keys() - hints.keys())
    if unknown:
        raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}")
    return cls(**{name: _read(hints[name], part) for name, part in data.items()})


def _read_one_of(kinds: tuple[Any, ...], data: Any) -> Any:
    """JSON's own types tell a union's members apart: null, a list, or what is neither."""
    for kind in kinds:
        if (kind is types.NoneType) == (data is None) and (get_origin(kind) is tuple) == isinstance(data, list):
            return _read(kind, data)
    raise TypeError(f"{data!r} is none of {kinds}")


def _read_scalar(kind: Any, data: Any) -> Any:
    if kind is Decimal:
        return Decimal(data)
    if kind is date:
        return date.fromisoformat(data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and type(data) is int:
        return float(data)
    return data if kind is Any or kind is types.NoneType else _exactly(kind, data)


def _key(kind: Any, name: str) -> Any:
    return int(name) if kind is int else name


def _exactly(kind: Any, data: Any) -> Any:
    if type(data) is not kind:
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data


_hints = cache(get_type_hints)
