"""Convert records to rows by written-out functions: without it, a training step takes 59 % more instructions."""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any

from modelyard.domain.record import EMPTY, WrittenMapping
from modelyard.stores import json_values

Convert = Callable[[Any], Any]
Conversion = Callable[[tuple[Any, ...]], tuple[Any, ...]]

MAX_INDEXED = 1000
"""Bytes of UTF-8 that a string in a key or an index may have: what the index of any database can hold."""

_SHORT = MAX_INDEXED // 4
"""Characters of a string that cannot have more bytes than that."""


def number(value: float) -> float:
    """Return a number as a float. Raises `ValueError` if that changes it."""
    if abs(value) > sys.float_info.max and type(value) is int:
        raise ValueError("the integer is too large for a float")
    kept = float(value)
    if kept != value:
        raise ValueError(f"{value!r} cannot be kept as a float")
    return kept


def decimal(value: Decimal) -> Decimal:
    """Return an amount unchanged. Raises `ValueError` if it is not finite."""
    if not value.is_finite():
        raise ValueError(f"{value!r} cannot be kept")
    return value


def dump_decimal(value: Decimal) -> str:
    """Return the text of an amount. Raises `ValueError` if it is not finite."""
    return str(decimal(value))


def utc(value: datetime) -> datetime:
    """Return a time in UTC. Raises `ValueError` if it has no time zone."""
    if value.tzinfo is UTC:
        return value
    if value.utcoffset() is None:
        raise ValueError(f"{value!r} has no time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{value!r} has no equal in UTC") from error


@lru_cache(maxsize=1024)
def utc_text(value: datetime) -> str:
    """Format with a fixed width, so that it sorts. Cached because most records of one step carry the same time."""
    return value.isoformat("T", "microseconds")


def dump_time(value: datetime) -> str:
    """Return the text of a time, in UTC. Raises `ValueError` if it has no time zone."""
    return utc_text(utc(value))


def within_index(text: str) -> str:
    """Return `text` unchanged. Raises `ValueError` if it is too long for an index, or contains a lone surrogate."""
    if len(text) > _SHORT and len(text.encode()) > MAX_INDEXED:
        raise ValueError(f"a string of more than {MAX_INDEXED} bytes cannot be part of a key or an index")
    return json_values.encodable(text)


def conversion_of(width: int, converts: Mapping[int, Convert]) -> Conversion:
    """Make the function that converts so many values of known types; it returns the same tuple if nothing changes.

    Every record that is stored passes one, so its source is written out: what most values need is done in place, and
    checked for all of them together.
    """
    if not converts:
        return lambda values: values
    names = [f"v{at}" for at in range(width)]
    checks = [at for at, convert in converts.items() if convert in _USUAL]
    changes = {at: convert for at, convert in converts.items() if convert not in _USUAL}
    lines = ["def convert(values):", f" {', '.join(names)}, = values"]
    if checks:
        usual = [
            condition([names[at] for at in checks if converts[at] is check])
            for check, condition in _USUAL.items()
            if check in converts.values()
        ]
        lines += [f" if not ({' and '.join(usual)}):", *(f"  convert{at}(v{at})" for at in checks)]
    for at, convert in changes.items():
        names[at] = f"c{at}"
        condition, result = _in_place(convert, f"v{at}", called := f"convert{at}(v{at})")
        lines.append(f" c{at} = {f'{result} if True{condition} else {called}' if condition else called}")
    same = " and ".join([f"c{at} is v{at}" for at in changes]) or "True"
    lines.append(f" return values if {same} else ({', '.join(names)},)")
    known: dict[str, Any] = {**_NAMED}
    known |= {f"convert{at}": convert for at, convert in converts.items()}
    exec(_compiled("\n".join(lines)), known)  # noqa: S102 - of positions alone
    return known["convert"]  # type: ignore[no-any-return]


Fields = Sequence[tuple[str, type, bool]]
"""The fields of a record: name, the type that nearly all values have, and whether it may be None."""


def record_conversion(
    fields: Fields, converts: Mapping[int, Convert], accept: Conversion
) -> Callable[[object], tuple[Any, ...]]:
    """Make the function from a record to its values, converted by position.

    Every record that is stored passes the function, so its source is written out: usual values are read, checked and
    converted in place, and only others by `accept`.
    """
    return _Usual(fields, converts).function("record", "{results},", "accept(({values},))", accept=accept)


def values_conversion(fields: Fields, converts: Mapping[int, Convert], accept: Conversion) -> Conversion:
    """Make the function that converts the values of such fields, such as a key.

    It returns the same tuple if nothing changes, and leaves what is not usual to `accept`.
    """
    if not fields:
        return accept
    usual = _Usual(fields, converts)
    usual.reads = [f" if len(values) != {len(fields)}: return accept(values)", f" {', '.join(usual.names)}, = values"]
    converted = "values" if usual.names == usual.results else "{results},"
    return usual.function("values", converted, "accept(values)", accept=accept)


def record_copy(
    fields: Fields, converts: Mapping[int, Convert], accept: Conversion, make: Callable[..., Any]
) -> Callable[[Any, object], Any]:
    """Make the function from a record, and the value of the field after these, to what `make` makes of all.

    It converts as `record_conversion` does.
    """
    used = {"accept": accept, "make": make}
    return _Usual(fields, converts).function(
        "record, last", "make({results}, last)", "make(*accept(({values},)), last)", **used
    )


def record_check(
    fields: Fields, converts: Mapping[int, Convert], otherwise: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Make the function that returns a record whose values are usual ones that a conversion would leave as they are.

    For any other it returns what `otherwise` returns.
    """
    usual = _Usual(fields, converts)
    usual.conditions += [
        f"({result}) is {name}" for name, result in zip(usual.names, usual.results, strict=True) if name != result
    ]
    return usual.function("record", "record", "otherwise(record)", otherwise=otherwise)


def record_changes(
    fields: Fields, converts: Mapping[int, Convert], convert_one: Callable[[int, Any], Any]
) -> Callable[[Any, Any], tuple[dict[int, Any], bool]]:
    """Make the function from a new record and an old one to the converted values that differ, by position.

    It returns as well whether the values of the new record are those that reading gives back. Most values are the same
    objects, which is quick to see. The others are compared in their converted form, since values that are equal may
    differ there: unusual ones are converted by `convert_one`.
    """
    known: dict[str, Any] = {**_NAMED, "convert_one": convert_one}
    lines = ["def changes(new, old):", " changed, as_given = {}, True"]
    for at, (field, usual, nullable) in enumerate(fields):
        convert = converts.get(at)
        known |= {f"type{at}": usual, f"convert{at}": convert}
        condition, result = _usual_value(at, convert, nullable)
        converted = f"({result} if {condition} else convert_one({at}, {{0}}))" if convert else "{0}"
        lines += [
            f" if new.{field} is not old.{field}:",
            f"  value, before = new.{field}, old.{field}",
            f"  if {condition.format('value')}: value = {result.format('value')}",
            f"  else: value, as_given = convert_one({at}, value), False",
            f"  if value != {converted.format('before')}: changed[{at}] = value",
        ]
    exec(_compiled("\n".join([*lines, " return changed, as_given"])), known)  # noqa: S102 - of the names of fields
    return known["changes"]  # type: ignore[no-any-return]


def _usual_value(at: int, convert: Convert | None, nullable: bool) -> tuple[str, str]:
    """Return two expressions of a value `{0}`: whether reading gives it back as it is, and what it is converted to."""
    further, result = _in_place(convert, "{0}", f"convert{at}({{0}})")
    if convert is not None and convert in _USUAL:
        further, result = f" and {_USUAL[convert](['{0}'])}", "{0}"
    condition = f"type({{0}}) is type{at}{further}"
    if convert is json_values.dump:
        condition = "False"  # it takes a walk through the value to see
    if nullable:
        return f"({{0}} is None or {condition})", f"(None if {{0}} is None else {result})"
    return condition, result


class _Usual:
    """The source that reads fields: the conditions under which all values are usual, and what they are converted to."""

    def __init__(self, fields: Fields, converts: Mapping[int, Convert]) -> None:
        self.names: list[str] = [f"v{at}" for at in range(len(fields))]
        self.conditions: list[str] = []
        self.results: list[str] = []
        self.reads: list[str] = [f" {name} = record.{field[0]}" for name, field in zip(self.names, fields, strict=True)]
        self._known: dict[str, Any] = {**_NAMED}
        together = dict[Convert, list[str]]()
        for at, (name, (_, usual, nullable)) in enumerate(zip(self.names, fields, strict=True)):
            convert = converts.get(at)
            self._known |= {f"type{at}": usual, f"convert{at}": convert}
            further, result = _in_place(convert, name, f"convert{at}({name})")
            if convert is not None and convert in _USUAL and not nullable:
                together.setdefault(convert, []).append(name)
                result = name
            mapping = f" or type({name}) is written" if usual is MappingProxyType else ""
            condition = f"(type({name}) is type{at}{mapping}){further}"
            self.conditions.append(f"({name} is None or {condition})" if nullable else condition)
            self.results.append(f"None if {name} is None else {result}" if nullable and result != name else result)
        self.conditions += [_USUAL[convert](checked) for convert, checked in together.items()]

    def function(self, arguments: str, usual: str, other: str, **used: object) -> Callable[..., Any]:
        """Make a function of a record: two expressions of `values` and `results` say what it returns."""
        parts = {"values": ", ".join(self.names), "results": ", ".join(self.results)}
        lines = [
            f"def convert({arguments}):",
            *self.reads,
            f" if {' and '.join(self.conditions)}: return {usual.format(**parts)}",
            f" return {other.format(**parts)}",
        ]
        known = self._known | used
        exec(_compiled("\n".join(lines)), known)  # noqa: S102 - of the names of fields, as attrs does
        return known["convert"]  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _compiled(source: str) -> CodeType:
    """Compile a conversion: once for all the stores of a process."""
    return compile(source, "<conversion>", "exec")


def _in_place(convert: Convert | None, name: str, called: str) -> tuple[str, str]:
    """Return a further condition under which a value can be converted in place, and the expression that does so."""
    condition, result = _IN_PLACE.get(convert, ("", name if convert is None else called))
    return condition.format(name), result.format(name)


def _joined(names: Sequence[str]) -> str:
    return f"''.join(({', '.join(names)},))" if len(names) > 1 else names[0]


def _all_ascii(names: Sequence[str]) -> str:
    return f"{_joined(names)}.isascii()"


def _all_short(names: Sequence[str]) -> str:
    return f"len(text := {_joined(names)}) <= {_SHORT} and text.isascii()"


def _all_in_range(names: Sequence[str]) -> str:
    return f"0 <= ({' | '.join(names)}) < {json_values.MAX_INT}"  # as large as each, and negative where one is


_USUAL: Mapping[Convert, Callable[[Sequence[str]], str]] = {
    json_values.encodable: _all_ascii,
    within_index: _all_short,
    json_values.within_63_bits: _all_in_range,
}
"""Conversions that return the value as it is, or raise; and a condition under which none of them raises."""

_NAMED: Mapping[str, Any] = {
    "utc": UTC,
    "utc_text": utc_text,
    "written": WrittenMapping,
    "empty": EMPTY,
    "json": json_values,
}
_IN_PLACE: Mapping[Convert | None, tuple[str, str]] = {
    number: (" and type({0}) is float and {0} == {0}", "{0}"),
    decimal: (" and {}.is_finite()", "{}"),
    dump_decimal: (" and {}.is_finite()", "str({})"),
    utc: (" and {}.tzinfo is utc", "{}"),
    dump_time: (" and {}.tzinfo is utc", "utc_text({})"),
    json_values.frozen: ("", "({0} if {0} is empty or type({0}) is written else json.frozen({0}))"),
    json_values.dump: ("", "({0}.text if type({0}) is written else json.dump({0}))"),
}
"""Conversions as expressions, each with the condition under which it holds."""
