"""How the values of a record become those of PostgreSQL, one by one and as arrays.

PostgreSQL's text holds no NUL. It is escaped so that the order by code point stays: NUL becomes 1 1, and 1 becomes 1 2.
Times travel as microseconds, so that the time zone of a session has no say.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from struct import Struct
from typing import Any

from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types.bool import BoolBinaryDumper
from psycopg.types.numeric import FloatBinaryDumper, Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

from modelyard.stores import json_values
from modelyard.stores.columns import Column, Projection
from modelyard.stores.conversions_fast import Convert

_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    bytes: "bytea",
    datetime: "timestamptz",
}

_COLLATION = ' COLLATE "C"'
TEXT = f"text{_COLLATION}"
"""Text that sorts by code point."""


SQL_TYPES: Mapping[type, str] = {**_TYPES, str: TEXT}
"""The types in SQL of the types that a change of tables may name."""


def sql_type(column: Column) -> str:
    """Return the type of a column in SQL."""
    return _TYPES.get(column.kind.types[0], TEXT)


def array_type(column: Column) -> str:
    """Return the type of an array of a column's values."""
    return f"{sql_type(column).removesuffix(_COLLATION)}[]"


def escape(value: str) -> str:
    """Return a string as it is kept: without NUL, in the same order."""
    if "\0" in value or "\1" in value:
        return value.replace("\1", "\1\2").replace("\0", "\1\1")
    return value


def _checked(check: Convert, value: str) -> str:
    check(value)
    return escape(value)


def _unescape(value: str) -> str:
    if "\1" in value:
        return value.replace("\1\1", "\0").replace("\1\2", "\1")
    return value


NEEDLESS: Mapping[Convert, str] = {_unescape: "'\\1' not in {}"}
"""Conditions under which a value `{}` is returned as it is by the function that `load_of` returns."""


def _dump_json(value: Any) -> str:
    return json_values.encodable(json_values.dump(value))


def _dump_of(column: Column) -> Convert | None:
    kind = column.kind
    if str in kind.types:
        return partial(_checked, kind.keep or json_values.encodable)
    if kind.types[0] in (int, datetime):
        return kind.keep
    return _dump_json if kind.load is json_values.load else kind.dump


def load_of(column: Column) -> Convert | None:
    """Return the function that makes a value of the column's type of what PostgreSQL returns; None if it is one."""
    if str in column.kind.types:
        return _unescape
    return None if column.kind.types[0] in (bool, datetime) else column.kind.load


def dumping(columns: Sequence[Column]) -> Projection:
    """Return what converts values of these columns to what SQL binds."""
    return Projection(columns, [_dump_of(column) for column in columns])


# ---- on the wire ---------------------------------------------------------------------------------------------------

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT4, _INT8, _FLOAT8, _HEADER = Struct(">i"), Struct(">q"), Struct(">d"), Struct(">iiIii")
_TIMESTAMPTZ_OID = 1184


def _dump_time(value: datetime) -> bytes:
    return _INT8.pack((value - _EPOCH) // _MICROSECOND)


class _TimeDumper(Dumper):
    format = Format.BINARY
    oid = _TIMESTAMPTZ_OID

    def dump(self, obj: datetime) -> bytes:
        return _dump_time(obj)


class _TimeLoader(Loader):
    format = Format.BINARY

    def load(self, data: Any) -> datetime:
        return _EPOCH + timedelta(microseconds=_INT8.unpack(data)[0])


class _Array(bytes):
    """The binary form of a one-dimensional array."""


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


def _array_type(element: int, oid: int, dump: Callable[[Any], bytes]) -> tuple[type[_Array], type[Dumper], Any]:
    array, dumper = type("Array", (_Array,), {}), type("ArrayDumper", (_ArrayDumper,), {"oid": oid})

    def pack(values: Sequence[Any]) -> _Array:
        parts = [_HEADER.pack(1, None in values, element, len(values), 1)]
        for value in values:
            if value is None:
                parts.append(b"\xff\xff\xff\xff")
            else:
                dumped = dump(value)
                parts += (_INT4.pack(len(dumped)), dumped)
        packed: _Array = array(b"".join(parts))
        return packed

    return array, dumper, pack


_ARRAYS: Mapping[str, tuple[type[_Array], type[Dumper], Any]] = {
    TEXT: _array_type(25, 1009, str.encode),
    "boolean": _array_type(16, 1000, lambda value: b"\1" if value else b"\0"),
    "bigint": _array_type(20, 1016, _INT8.pack),
    "double precision": _array_type(701, 1022, _FLOAT8.pack),
    "bytea": _array_type(17, 1001, bytes),
    "timestamptz": _array_type(_TIMESTAMPTZ_OID, 1185, _dump_time),
}
"""The class, the dumper and the packing function of the arrays of a type. The numbers are PostgreSQL's."""


array_of_integers: Callable[[Sequence[int]], bytes] = _ARRAYS["bigint"][2]
"""Return the array of integers that SQL binds."""


array_of_booleans: Callable[[Sequence[bool]], bytes] = _ARRAYS["boolean"][2]
"""Return the array of booleans that SQL binds."""


TEXTS = "text[]"
"""The type in SQL of what `array_of_texts` returns."""
array_of_texts: Callable[[Sequence[str]], bytes] = _ARRAYS[TEXT][2]
"""Return the array of strings that SQL binds."""


def packing(columns: Sequence[Column]) -> Callable[[Sequence[tuple[Any, ...]]], tuple[Any, ...]]:
    """Return a function that makes an array of each column of rows."""
    packs = [_ARRAYS[sql_type(column)][2] for column in columns]
    return lambda rows: tuple([pack(values) for pack, values in zip(packs, zip(*rows, strict=True), strict=True)])


def adapt(adapters: Any) -> None:
    """Have a connection bind and return values in binary form, with one type of SQL for each type of Python."""
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(str, StrBinaryDumper)
    adapters.register_dumper(float, FloatBinaryDumper)
    adapters.register_dumper(bool, BoolBinaryDumper)
    adapters.register_dumper(bytes, BytesBinaryDumper)
    adapters.register_dumper(datetime, _TimeDumper)
    adapters.register_loader("timestamptz", _TimeLoader)
    for array, dumper, _ in _ARRAYS.values():
        adapters.register_dumper(array, dumper)
