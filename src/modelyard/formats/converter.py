"""JSON data into attrs classes, strictly, and back: cattrs with hooks that coerce nothing and name every problem. Two
cattrs converters share the hooks. A fast one structures what fits. When it fails, a detailed one, which also runs the
validators of fields, collects every fault in a tree of exceptions, and `structure` turns that tree into problems.
Fields may be of the types `str int float bool object Any None Decimal date`, Literal, enums, `X | Y`, `list[X]`,
`tuple[X, ...]`, `Sequence[X]`, `frozenset[X]`, `dict[str, X]`, `Mapping[str, X]` (or with int for str) and attrs
classes. Of several classes in a union, the Literal field (`type`, `role`, ...) chooses one. Constraints are attrs
validators that raise ValueError. Rules on several fields are checked in `__attrs_post_init__`, which may also raise
`InvalidInput` with a place. A field may bring its own hook: `metadata={"parser": function of the value}`."""

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from json.encoder import encode_basestring as quoted
from operator import attrgetter
from types import UnionType
from typing import Any, Never, TypeVar, Union, get_args

import attrs
from cattrs import Converter
from cattrs.cols import is_mapping, mapping_unstructure_factory
from cattrs.fns import identity

from modelyard.domain.canonical import json_encoder
from modelyard.domain.record import MAX_DEPTH
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.converter_errors import FAULTS, UNKNOWN, Unknown, problems_in
from modelyard.formats.json import check_size, has_suspicious_number, loads
from modelyard.formats.structure_hooks import add_structure_hooks, either, is_any, is_of

__all__ = ["MAX_PROBLEMS", "UNKNOWN", "either", "filled_text", "structure", "structure_exactly", "unstructure"]

T = TypeVar("T")

MAX_PROBLEMS = 100


def structure(cls: type[T], value: object, *loc: str | int) -> T:
    """Return the instance of a class (or the value of another type) that JSON data describe. Null is as good as absent
    for a field with a default; unknown members are ignored. Raises `InvalidInput` naming the first 100 problems, each
    located below `loc`; the last says how many more there are."""
    return _structured(_LENIENT, cls, value, loc)


def structure_exactly(cls: type[T], value: object, *loc: str | int) -> T:
    """Return what `structure` does. An unknown member is refused, unless it is null, or in the `IGNORED` of its class:
    the names of members that change nothing, each with the reason, or `...` for any. A class may say what it is
    `CALLED` in such a refusal."""
    return _structured(_EXACT, cls, value, loc)


def _structured(converters: tuple[Converter, Converter], cls: type[T], value: object, loc: tuple[str | int, ...]) -> T:
    fast, detailed = converters
    try:
        return fast.structure(value, cls)
    except (KeyError, *FAULTS):
        pass  # the detailed converter finds every problem
    try:
        return detailed.structure(value, cls)
    except FAULTS as error:
        raise InvalidInput(_first(list(problems_in(error, value, loc)))) from None


def unstructure(value: Any) -> Any:
    """Return the JSON data of a value: dicts with its fields' names, lists and scalars, at every depth. A field without
    a default is always there, also when it is None. A field with a default is left out when it has that value, which
    `structure` restores. So an answer class declares `x: str | None` for a member that may be null, and
    `x: str | None = None` for one that is left out instead. Times are written in UTC with microseconds and a Z, dates
    as YYYY-MM-DD, Decimals as text, enums as their values, and frozensets as sorted lists."""
    try:
        return _LENIENT[0].unstructure(value)
    except RecursionError:
        raise InvalidInput.at(msg="is nested too deeply, or contains itself", type="json_invalid") from None


def filled_text(value: object) -> str:
    """Return the JSON text of a value as `unstructure` does, but with every field that is neither None nor empty. An
    empty field with the default None is there, too: it is not the same. Raises ValueError and `InvalidInput` for what
    no store keeps."""
    data: list[str] = []
    try:
        text = _WRITERS[type(value)](value, data)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels, or contains itself") from None
    raw = text.encode()
    if data:
        check: Any = loads if has_suspicious_number(raw) else check_size
        check(raw, at=(), max_depth=MAX_DEPTH + 1, max_structure=len(raw))
    return text


# ---- written as text: what a caller may have given of any depth and size is added to `data` ----------------------

_Writer = Callable[[Any, list[str]], str]


class _Writers(dict[type, _Writer]):
    """What writes the values of a class."""

    def __missing__(self, cls: type) -> _Writer:
        text: _Writer = lambda value, _: quoted(value)  # noqa: E731
        self[cls] = write = _fields_of(cls) if attrs.has(cls) else text if issubclass(cls, str) else _data
        return write


def _data(value: Any, data: list[str]) -> str:
    data.append(text := "".join(_write(value, 0)))
    return text


def _integer(value: int, data: list[str]) -> str:
    text = str(value)
    return text if len(text) < 19 else _data(value, data)


def _array(value: tuple[Any, ...], data: list[str]) -> str:
    if not value or not hasattr(value[0], "__attrs_attrs__"):
        return _data(value, data)
    write = _WRITERS[type(value[0])]
    return f"[{','.join([write(part, data) for part in value]) if len(value) > 1 else write(value[0], data)}]"


def _fields_of(cls: type) -> _Writer:
    """Make the function that writes the instances of a class, field by field."""
    known: dict[str, Any] = {"quoted": quoted, "writers": _WRITERS}
    members = ""
    for at, field in enumerate(attrs.fields(cls)):
        default = None if isinstance(field.default, _FACTORY) else field.default
        empty: tuple[Any, ...] = (None,) if field.default is None else (None, (), {})
        usual = "" if default is attrs.NOTHING or default in empty else _WRITERS[type(default)](default, [])
        known |= {f"name{at}": f',"{field.name}":', f"default{at}": default, f"empty{at}": empty}
        known[f"usual{at}"] = usual and f',"{field.name}":{usual}'
        given = f"name{at} + (quoted(v) if type(v) is str else writers[type(v)](v, data))"
        members += f"usual{at} if (v := value.{field.name}) is default{at} else "
        members += f"{given} if v or v not in empty{at} else '',"
    exec(f"def write(value, data): return '{{' + ''.join(({members}))[1:] + '}}'", known)  # noqa: S102 - names of fields
    return known["write"]  # type: ignore[no-any-return]


_FACTORY: Any = attrs.Factory
_WRITERS = _Writers({int: _integer, bool: lambda value, _: "true" if value else "false", tuple: _array})
_write = json_encoder(
    lambda value: json.loads(filled_text(value)) if attrs.has(type(value)) else _LENIENT[0].unstructure(value),
    (",", ":"),
)


def _first(problems: list[Problem]) -> list[Problem]:
    first, more = problems[:MAX_PROBLEMS], len(problems) - MAX_PROBLEMS
    first = [attrs.evolve(p, msg=p.msg.shown(p.loc[-1])) if isinstance(p.msg, Unknown) else p for p in first]
    if more > 0:
        first[-1] = attrs.evolve(first[-1], msg=f"{first[-1].msg} (and {more} more problems)")
    return first


# ---- the way back ------------------------------------------------------------------------------------------------


def _written_mapping(kind: Any, converter: Converter) -> Callable[[Any], Any]:
    names: Any = None if get_args(kind)[:1] == (str,) else str
    return mapping_unstructure_factory(kind, converter, dict, key_handler=names)


def _written_union(kind: Any, converter: Converter) -> Callable[[Any], Any]:
    hooks = [converter.get_unstructure_hook(member) for member in get_args(kind)]
    return identity if all(hook is identity for hook in hooks) else converter.unstructure


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# ---- the converters ----------------------------------------------------------------------------------------------


def _converter(*, detailed: bool, exact: bool = False) -> Converter:
    made = Converter(
        detailed_validation=detailed,
        forbid_extra_keys=exact,
        omit_if_default=True,
        unstruct_collection_overrides={frozenset: sorted},
        structure_fallback_factory=_unknown,
    )
    add_structure_hooks(made)
    _add_unstructure_hooks(made)
    return made


def _add_unstructure_hooks(made: Converter) -> None:
    made.register_unstructure_hook(Decimal, str)
    made.register_unstructure_hook(date, date.isoformat)
    made.register_unstructure_hook(datetime, _time)
    for enum in (Enum, StrEnum):
        made.register_unstructure_hook(enum, attrgetter("value"))
    made.register_unstructure_hook_func(
        is_any, lambda value: value if type(value) is object else made.unstructure(value)
    )
    made.register_unstructure_hook_factory(is_mapping, _written_mapping)
    made.register_unstructure_hook_factory(is_of(Union, UnionType), _written_union)


def _unknown(kind: Any) -> Never:
    raise TypeError(f"{kind!r} is not a type that JSON has")


_LENIENT: tuple[Converter, Converter] = _converter(detailed=False), _converter(detailed=True)
_EXACT = _converter(detailed=False, exact=True), _converter(detailed=True, exact=True)
