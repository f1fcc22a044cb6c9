"""The table from Python types to columns, and the reading of a record's columns.

Every store keeps a value exactly or refuses it with `ValueError`. All stores sort in the same way: strings by code
point, None first, enums by their value.
"""

import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Any

import attrs

from modelyard.domain.record import Record
from modelyard.errors import InvalidInput
from modelyard.stores import conversions_fast as conversions
from modelyard.stores import json_values
from modelyard.stores.conversions_fast import Conversion, Convert


@attrs.frozen
class ColumnKind:
    """How the values of one type are stored.

    `keep` returns the value in a form that may be shared, or raises `ValueError`. `dump` converts it to what SQL binds,
    `load` converts it back, and `rank` converts it to a value that sorts as SQL sorts the dumped one. None means:
    unchanged. Without a `dump`, the binding refuses what `keep` would refuse. Types with equal values of different text
    are not `indexable`: they cannot be part of a key or an index.
    """

    sql: str
    types: tuple[type, ...]
    keep: Convert | None = None
    dump: Convert | None = None
    load: Convert | None = None
    rank: Convert | None = None
    indexable: bool = True

    @property
    def usual(self) -> type:
        """The type that nearly all values have."""
        return MappingProxyType if self.types[0] is Mapping else self.types[0]

    def admits(self, type_: type) -> bool:
        """Return whether values of exactly this type are accepted; bool does not count as a number."""
        return issubclass(type_, self.types) and (type_ is not bool or bool in self.types)


_INDEXED_TEXT = ColumnKind("TEXT", (str,), keep=conversions.within_index, dump=conversions.within_index)

_KINDS: Mapping[Any, ColumnKind] = {
    str: ColumnKind("TEXT", (str,), keep=json_values.encodable),
    int: ColumnKind("INTEGER", (int,), keep=json_values.within_63_bits),
    bool: ColumnKind("INTEGER", (bool,), load=bool),
    float: ColumnKind("REAL", (float, int), keep=conversions.number, dump=conversions.number),
    bytes: ColumnKind("BLOB", (bytes,)),
    Decimal: ColumnKind(
        "TEXT", (Decimal,), keep=conversions.decimal, dump=conversions.dump_decimal, load=Decimal, indexable=False
    ),
    datetime: ColumnKind(
        "TEXT", (datetime,), keep=conversions.utc, dump=conversions.dump_time, load=datetime.fromisoformat
    ),
    Mapping: ColumnKind("TEXT", (Mapping,), json_values.frozen, json_values.dump, json_values.load, indexable=False),
    tuple: ColumnKind("TEXT", (tuple, list), json_values.frozen, json_values.dump, json_values.load, indexable=False),
}


def _enum_kind(enum: type[Enum]) -> ColumnKind:
    members = {member.value: member for member in enum}
    if not all(type(value) is str for value in members):
        raise TypeError(f"{enum.__name__} has values that are not strings")
    value_of = attrgetter("_value_")
    return ColumnKind("TEXT", (enum,), dump=value_of, load=members.__getitem__, rank=value_of)


def _kind_of(hint: Any) -> ColumnKind:
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _enum_kind(origin)
    if origin not in _KINDS or not all(_is_json(part) for part in typing.get_args(hint)):
        raise TypeError(f"{hint} cannot be a column")
    return _KINDS[origin]


_JSON_HINTS = (str, int, float, bool, NoneType, Any, object, Mapping, tuple, list, dict, typing.Union, UnionType, ...)


def _is_json(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    return origin in _JSON_HINTS and all(_is_json(part) for part in typing.get_args(hint))


@attrs.frozen
class Column:
    """One field of a record as it is stored."""

    name: str
    kind: ColumnKind
    nullable: bool

    def admits(self, type_: type) -> bool:
        """Return whether values of exactly this type are accepted."""
        return self.nullable if type_ is NoneType else self.kind.admits(type_)

    def rank(self) -> Convert | None:
        """Return the function that makes values sort as in SQL, None first; or None if they already sort so."""
        rank = self.kind.rank
        if not self.nullable:
            return rank
        return lambda value: (False,) if value is None else (True, rank(value) if rank else value)


@cache
def columns_of(record: Record) -> Mapping[str, Column]:
    """Return the columns of a declared record by name, in the order of its fields. Raises `TypeError`."""
    hints = typing.get_type_hints(record.cls)
    for field in attrs.fields(record.cls):
        if not field.init or field.kw_only:
            raise TypeError(f"{record.cls.__name__}.{field.name} must be a positional argument")
    columns = {field.name: _column(field.name, hints[field.name]) for field in attrs.fields(record.cls)}
    for name in record.key:
        if columns[name].nullable:
            raise TypeError(f"{record.cls.__name__}.{name} is part of the key and cannot be None")
    for name in viewed_columns(record):
        if not columns[name].kind.indexable:
            raise TypeError(f"{record.cls.__name__}.{name} cannot be part of a key or an index")
        if columns[name].kind is _KINDS[str]:
            columns[name] = attrs.evolve(columns[name], kind=_INDEXED_TEXT)
    return columns


def viewed_columns(record: Record) -> set[str]:
    """Return the names of the columns by which records are found and listed."""
    unique = [name for names in record.unique.values() for name in names]
    return {*record.key, *unique, *(name for i in record.indexes.values() for name in (*i.where, *i.order))}


def _column(name: str, hint: Any) -> Column:
    if typing.get_origin(hint) not in (typing.Union, UnionType):
        return Column(name, _kind_of(hint), nullable=False)
    parts = [part for part in typing.get_args(hint) if part is not NoneType]
    if len(parts) != 1:
        raise TypeError(f"{hint} cannot be a column")
    return Column(name, _kind_of(parts[0]), nullable=True)


class UnfitLookup(InvalidInput, TypeError):
    """Records were looked up by a value of a type that none of them has."""


class Projection:
    """Reads some columns of a record as a tuple of values, converted where a column has a conversion.

    None is not converted, unless `nones` is true.
    """

    def __init__(
        self, columns: Sequence[Column], converts: Sequence[Convert | None] = (), *, nones: bool = False
    ) -> None:
        self._columns, self._nones = columns, nones
        self._converts = {at: convert for at, convert in enumerate(converts) if convert is not None}
        self.raw: Callable[[object], tuple[Any, ...]] = _reader(*[column.name for column in columns])
        self._conversions: dict[tuple[type, ...], Conversion] = {}
        self._admitted: set[tuple[int, type]] = set()

    def of(self, record: object) -> tuple[Any, ...]:
        """Return the converted values of a record that has been checked before."""
        return self.converted(self.raw(record))

    def converted(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Convert values that have been checked before."""
        return self._conversion(values)(values) if self._converts else values

    def admitted(self, record: object) -> tuple[Any, ...]:
        """Return the raw values of a record. Raises `TypeError` if the type of a value does not fit its column."""
        values = self.raw(record)
        self._conversion(values)
        return values

    @cached_property
    def checked(self) -> Callable[[object], tuple[Any, ...]]:
        """The function from a record to its converted values; it raises what `convert` raises."""
        return conversions.record_conversion(self._fields(), self._converts, self.convert)

    def copying(self, make: Callable[..., Any]) -> Callable[[Any, object], Any]:
        """Return the function from a record and one more value to what `make` makes of its converted values and that.

        It raises what `convert` raises.
        """
        return conversions.record_copy(self._fields(), self._converts, self.convert, make)

    def unchanged(self, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function that returns a record that needs no conversion, or else what `otherwise` returns."""
        return conversions.record_check(self._fields(), self._converts, otherwise)

    @cached_property
    def changes(self) -> Callable[[Any, Any], tuple[dict[int, Any], bool]]:
        """The function from a new record and an old one to the converted values that differ, by position.

        It returns as well whether the values of the new record are what `load` would return. It raises what
        `convert_one` raises.
        """
        return conversions.record_changes(self._fields(), self._converts, self.convert_one)

    def _fields(self) -> conversions.Fields:
        return [(column.name, column.kind.usual, column.nullable) for column in self._columns]

    @cached_property
    def accept(self) -> Conversion:
        """The function that converts values of a lookup. It raises `UnfitLookup` for one of a wrong type."""
        if self._nones:
            return self._looked_up
        return conversions.values_conversion(self._fields(), self._converts, self._looked_up)

    def _looked_up(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for column, value in zip(self._columns, values, strict=True) if len(values) == len(self._columns) else ():
            if not column.admits(type(value)):
                raise UnfitLookup.at(column.name, msg=f"cannot be of type {type(value).__name__}")
        return self.convert(values)

    def convert(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Convert the given values; return the same tuple object if nothing changes.

        Raises `TypeError` or `ValueError` for a value that its column cannot hold.
        """
        return self._conversion(values)(values)

    def convert_one(self, at: int, value: Any) -> Any:
        """Convert one value for its column. Raises `TypeError` or `ValueError` for one that it cannot hold."""
        if (at, type(value)) not in self._admitted:
            column, type_ = self._columns[at], type(value)
            if not column.admits(type_):
                raise TypeError(f"{column.name} cannot be of type {type_.__name__}")
            self._admitted.add((at, type_))
        convert = None if value is None and not self._nones else self._converts.get(at)
        return value if convert is None else convert(value)

    def _conversion(self, values: tuple[Any, ...]) -> Conversion:
        """Return the conversion for values of these types; a class of records has few combinations."""
        types = tuple(map(type, values))
        return self._conversions.get(types) or self._admit(types)

    def _admit(self, types: tuple[type, ...]) -> Conversion:
        """Cache the conversion for this combination of types, unless it does not fit the columns."""
        if len(types) != len(self._columns):
            raise TypeError(f"expected {len(self._columns)} values, got {len(types)}")
        for column, type_ in zip(self._columns, types, strict=True):
            if not column.admits(type_):
                raise TypeError(f"{column.name} cannot be of type {type_.__name__}")
        apply = {at: c for at, c in self._converts.items() if self._nones or types[at] is not NoneType}
        self._conversions[types] = conversion = conversions.conversion_of(len(types), apply)
        return conversion


@cache
def _reader(*names: str) -> Callable[[object], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda record: ()
    return eval(f"lambda record: (record.{names[0]},)")  # type: ignore[no-any-return]  # noqa: S307 - a field
