"""JSON of strangers, parsed under guard: UTF-8 only, bounded depth and width, no value that a store could not keep. The
standard library's parser accepts NaN, 1e400, lone surrogates, numbers of any size and doubled keys, dies of deep
nesting, and turns a byte into up to 24 bytes of objects. Each guard is a linear scan that is left out if a count proves
it needless, so an ordinary body pays very little for all of them."""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from types import MappingProxyType, NoneType
from typing import Any, Never, cast

from modelyard.domain.canonical import json_encoder
from modelyard.errors import InvalidInput
from modelyard.lazy import hashlib

MAX_DEPTH = 64
MAX_STRUCTURE = 200_000
INT64 = range(-(2**63), 2**63)

_FEW = 2_000
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTED = re.compile(rb'"[^"]*"?')
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{},:'))
_ALL_BUT_NESTING = bytes(set(range(256)) - set(b"[]{}"))
_BRACES_ALIKE = bytes.maketrans(b"{}", b"[]")
_LEVELS_AT_ONCE = 8
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


_MANY, _PIECE = 20_000, 2**18
_ESCAPES = re.compile(rb'(?:[^"\\]+|(?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\u[0-9a-fA-F]{4}|\\.){1,%d}' % _MANY, re.DOTALL)
"""A part of a string, without half of an escape."""


class _Refused(ValueError):
    """The reason why a JSON text is refused."""


class _RefusedNumber(_Refused):
    """The reason why a number is refused, whose place is then looked for."""


def loads(
    raw: bytes, *, at: tuple[str | int, ...] = (), max_depth: int = MAX_DEPTH, max_structure: int = MAX_STRUCTURE
) -> object:
    """Parse one JSON text. Raises `InvalidInput` at the place `at`; its message never repeats the input. `max_depth`
    bounds the nesting, `max_structure` the number of structural characters `[]{},:` outside of strings. Refused as
    well: a byte order mark, other encodings than UTF-8, lone surrogates, NaN and infinities, also as 1e400, integers
    beyond 64 bits, and a key that occurs twice in an object."""
    try:
        if len(raw) > max_structure or _openings(raw) > max_depth:
            _check_structure(raw, max_depth, max_structure)
        if b"\\" in raw:
            _check_escapes(raw)
        decoder = _CAREFUL if len(raw) < _FEW or has_suspicious_number(raw) else _PLAIN
        if len(raw) > _MANY and raw.count(b"\\") > _MANY:
            return _decoded_in_pieces(raw, decoder)
        text = _text(raw)
        try:  # what begins and ends without a space needs no more than the scanner
            value, end = decoder.scan_once(text, 0)  # type: ignore[attr-defined]
        except StopIteration:
            end = -1
        return value if end == len(text) else decoder.decode(text)
    except _RefusedNumber as error:
        raise InvalidInput.at(*at, *_place_of_mark(raw), msg=str(error), type="json_invalid") from None
    except _Refused as error:
        raise InvalidInput.at(*at, msg=str(error), type="json_invalid") from None
    except json.JSONDecodeError as error:
        message = f"is not valid JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        raise InvalidInput.at(*at, msg=message, type="json_invalid") from None
    except (RecursionError, MemoryError):
        raise InvalidInput.at(*at, msg="is too large to be parsed", type="json_invalid") from None


def check_size(raw: bytes, *, at: tuple[str | int, ...], max_depth: int, max_structure: int) -> None:
    """Raise `InvalidInput` for a JSON text that is too deep or too wide, as `loads` does."""
    try:
        if len(raw) > max_structure or _openings(raw) > max_depth:
            _check_structure(raw, max_depth, max_structure)
    except _Refused as error:
        raise InvalidInput.at(*at, msg=str(error), type="json_invalid") from None


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _Refused(f"is not UTF-8: byte {error.start} does not belong to any character") from None
    if text.startswith("\ufeff"):
        raise _Refused("must not begin with a byte order mark")
    return text


def _check_structure(raw: bytes, max_depth: int, max_structure: int) -> None:
    bare = _structure(raw, max_structure)
    if len(bare) > max_structure:
        raise _Refused(f"has more than {max_structure} structural characters; send smaller pieces")
    if _depth(bare, max_depth + 1) > max_depth:
        raise _Refused(f"is nested deeper than {max_depth} levels")


def _openings(raw: bytes) -> int:
    """Count the opening brackets. Removing a rare byte jumps from one to the next, four times as fast as `count`, which
    looks at every byte."""
    return 2 * len(raw) - len(raw.replace(b"[", b"")) - len(raw.replace(b"{", b""))


def _structure(raw: bytes, most: int) -> bytes:
    """Return the structural characters outside of strings. Two neighbouring quotes can go: what follows them stays
    inside of a string or outside."""
    plain = b"".join(_ESCAPED.sub(b"", piece) for piece in _pieces(raw)) if b"\\" in raw else raw
    structure = plain.translate(None, _ALL_BUT_STRUCTURE)
    if structure.count(b'"') > 2 * (most + 1):  # so many strings have more commas and colons between them
        raise _Refused(f"has more than {most} structural characters; send smaller pieces")
    return _QUOTED.sub(b"", structure.replace(b'""', b""))


def _depth(structure: bytes, enough: int) -> int:
    """Return the depth of the nesting, counted up to `enough`. Removing the innermost level from the whole text is fast
    while there are many pairs; a deeper rest is counted one by one."""
    nesting = structure.translate(_BRACES_ALIKE, _ALL_BUT_NESTING)
    if b"[" * enough in nesting:
        return enough
    levels = 0
    while b"[]" in nesting and levels < enough:
        if levels == _LEVELS_AT_ONCE:
            return levels + max(accumulate(memoryview(nesting.translate(_STEPS)).cast("b")))
        nesting = nesting.replace(b"[]", b"")
        levels += 1
    return levels + nesting.count(b"[")


def _check_escapes(raw: bytes) -> None:
    if (b"\\ud" in raw or b"\\uD" in raw) and any(escape[1] for escape in _ESCAPE.finditer(raw)):
        raise _Refused("has half of a surrogate pair, which is not a character")


def _pieces(raw: bytes) -> Iterator[bytes]:
    """Cut a text where no escape is cut, so that no pattern holds the interpreter for long."""
    at = 0
    while at < len(raw):
        end = at + _PIECE
        slashes = end - at - len(raw[at:end].rstrip(b"\\"))
        end += slashes % 2
        yield raw[at:end]
        at = end


def _decoded_in_pieces(raw: bytes, decoder: json.JSONDecoder) -> object:
    """Parse a text with very many escapes, for each of which the scanner makes an object while nobody else runs: decode
    long strings in pieces, with a mark in their place."""
    mark, kept, parts, begin, at = hashlib.sha256(raw).hexdigest(), list[str](), list[bytes](), 0, 0
    while (start := raw.find(b'"', at)) >= 0:
        pieces, end = list[bytes](), start + 1
        while (found := _ESCAPES.match(raw, end)) is not None and found.end() > end:
            pieces.append(found[0])
            end = found.end()
        if raw[end : end + 1] != b'"':
            raise _Refused("is not valid JSON: a string does not end")
        at = end + 1
        if len(pieces) > 1:
            parts += raw[begin:start], b'"%b %d"' % (mark.encode(), len(kept))
            kept.append("".join([_decoded_string(piece) for piece in pieces]))
            begin = at
    whole: object = decoder.decode(_text(b"".join((*parts, raw[begin:]))))
    return _unmarked(whole, mark, kept, _object) if kept else whole


def _decoded_string(piece: bytes) -> str:
    try:
        return str(json.loads(b'"%b"' % piece))
    except json.JSONDecodeError as error:
        raise _Refused(f"is not valid JSON: {error.msg.removesuffix(' at')} in a string") from None


def _unmarked(value: Any, mark: str, kept: Sequence[str], members: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return kept[int(value[len(mark) :])] if value.startswith(mark) else value
    if isinstance(value, list):
        return [_unmarked(one, mark, kept, members) for one in value]
    if isinstance(value, dict):
        return members([[_unmarked(one, mark, kept, members) for one in pair] for pair in value.items()])
    return value


def has_suspicious_number(raw: bytes) -> bool:
    """Return whether digits might make an integer beyond 64 bits or an infinite float: seldom true, never wrongly
    false."""
    zeros = raw.translate(_DIGITS_AS_ZEROS)
    return b"0" * 19 in zeros or b"e000" in zeros or b"e+000" in zeros


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused("has an object with the same key twice")
    return members


def _constant(_: str) -> Never:
    raise _RefusedNumber("has NaN or Infinity, which are not JSON; send null or a number")


def _constant_refused(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _RefusedNumber("has a number too large for a 64-bit float")
    return value


def int64(text: str) -> int:
    if len(text) > 18 and (len(text) > 20 or int(text) not in INT64):
        raise _RefusedNumber("has an integer beyond 64 bits")
    return int(text)


_MARK = object()


def _marked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except _Refused:
            return _MARK

    return parsed


def _place_of_mark(raw: bytes) -> tuple[str | int, ...]:
    try:
        return _place(_MARKING.decode(_text(raw)), lambda value: value is _MARK) or ()
    except (_Refused, json.JSONDecodeError):
        return ()


def _place(value: object, wanted: Callable[[object], bool]) -> tuple[str | int, ...] | None:
    if isinstance(value, Mapping):
        steps: Iterable[tuple[Any, object]] = value.items()
    elif isinstance(value, list | tuple):
        steps = enumerate(value)
    else:
        return () if wanted(value) else None
    found = ((step, _place(part, wanted)) for step, part in steps)
    return next(((step, *rest) for step, rest in found if rest is not None), None)


_PLAIN = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=finite, parse_int=int64)
_MARKING = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_marked(_constant),
    parse_float=_marked(finite),
    parse_int=_marked(int64),
)


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_encode = json_encoder(_plain, (",", ":"), ensure_ascii=True)


def dumps(value: object) -> bytes:
    """Return one compact JSON text in ASCII. Raises ValueError for NaN and infinities, TypeError for other values, and
    RecursionError for what contains itself."""
    return "".join(_encode(value, 0)).encode("ascii")


def kept_data(value: object) -> Any:
    """Return the JSON data of a value that a store has kept, which may be larger than what a client may send."""
    raw = dumps(value)
    return loads(raw, max_structure=len(raw))


def checked_dumps(value: object, *, at: tuple[str | int, ...] = ()) -> bytes:
    """Return what `dumps` does for a value of the host, after checking that `loads` can read it back. Raises
    `InvalidInput` at the place `at`."""
    return written(value, at)[0]


def as_json(value: Any, *, at: tuple[str | int, ...] = ()) -> Any:
    """Return the JSON data that `checked_dumps` writes for a value: the value itself, unless its types or the names of
    members are others, such as a subclass of `float` or numbers as names. Raises `InvalidInput`."""
    return written(value, at)[1]


def written(value: object, at: tuple[str | int, ...]) -> tuple[bytes, Any]:
    """Return what `checked_dumps` and `as_json` return."""
    try:
        raw = dumps(value)
        if len(raw) > MAX_STRUCTURE or _openings(raw) > MAX_DEPTH:
            _check_structure(raw, MAX_DEPTH, MAX_STRUCTURE)
        _check_escapes(raw)
    except (_Refused, TypeError, ValueError, RecursionError) as error:
        place = None
        with suppress(RecursionError):  # of a value that is in itself
            place = _place(value, _is_unfit)
        finite = place is not None and isinstance(error, ValueError) and not isinstance(error, _Refused)
        error = ValueError("too deep, or contains itself") if isinstance(error, RecursionError) else error
        says = "must be a finite number" if finite else f"cannot be kept as JSON: {error}"
        raise InvalidInput.at(*at, *(place or ()), msg=says, type="json_invalid") from None
    if not _is_plain(value):
        return raw, loads(raw, at=at)
    if has_suspicious_number(raw):
        loads(raw, at=at)
    return raw, value


def _is_unfit(value: object) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= one <= "\udfff" for one in value)
    return not (math.isfinite(value) if isinstance(value, float) else isinstance(value, int | NoneType))


def _is_plain(value: object) -> bool:
    kind, parts = type(value), cast("Any", value)
    if kind in (dict, MappingProxyType):
        return _NAMES.issuperset(map(type, parts)) and _all_plain(parts.values())
    return kind in _SCALARS or (kind in (list, tuple) and _all_plain(parts))


def _all_plain(values: Collection[object]) -> bool:
    return _SCALARS.issuperset(map(type, values)) or all(map(_is_plain, values))


_SCALARS = frozenset({str, int, float, bool, NoneType})
_NAMES = frozenset({str})


def without_nulls(row: Any) -> Any:
    """Drop null members; a required one is then reported as missing."""
    return {name: value for name, value in row.items() if value is not None} if isinstance(row, dict) else row
