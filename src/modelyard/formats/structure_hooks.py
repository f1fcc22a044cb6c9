"""The hooks by which cattrs structures JSON strictly: each takes the JSON types that fit, and coerces nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cache
from operator import attrgetter
from types import GenericAlias, NoneType, UnionType
from typing import Any, Literal, Never, Union, get_args, get_origin, get_type_hints

import attrs
from cattrs import Converter
from cattrs.cols import list_structure_factory, mapping_structure_factory
from cattrs.gen import make_dict_structure_fn, override

from modelyard.domain.frozen_fast import maker
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.converter_errors import FAULTS, UNKNOWN, problems_in

Hook = Callable[[Any, Any], Any]

_LIST, _OBJECT = ("a list", "list_type"), ("an object", "dict_type")
_WORDS: Mapping[type, tuple[str, str]] = {
    str: ("a string", "string_type"),
    int: ("a whole number", "int_type"),
    float: ("a number", "float_type"),
    bool: ("true or false", "bool_type"),
    list: _LIST,
    dict: _OBJECT,
}


def add_structure_hooks(converter: Converter) -> None:
    for kind, (word, type_) in _WORDS.items():
        converter.register_structure_hook(kind, _exactly(kind, f"must be {word}", type_))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(NoneType, _exactly(NoneType, "must be null", "none_type"))
    converter.register_structure_hook(Decimal, _parsed(Decimal, "must be a decimal number as a string"))
    converter.register_structure_hook(date, _parsed(date.fromisoformat, "must be a date in the form YYYY-MM-DD"))
    for enum in (Enum, StrEnum):  # the hook of `str` would take a StrEnum, whose members are strings
        converter.register_structure_hook(enum, lambda value, kind: _member(kind)(value, kind))
    converter.register_structure_hook_func(is_any, lambda value, _: value)
    converter.register_structure_hook_factory(attrs.has, _instance)
    converter.register_structure_hook_factory(
        is_of(Literal), lambda kind: _choice({one: one for one in get_args(kind)})
    )
    converter.register_structure_hook_factory(is_of(list, tuple, Sequence, frozenset), _list)
    converter.register_structure_hook_factory(is_of(dict, Mapping), _mapping)
    converter.register_structure_hook_factory(is_of(Union, UnionType), _union)


def is_of(*origins: Any) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) in origins


def is_any(kind: Any) -> bool:
    return kind is Any or kind is object


# ---- plain values ------------------------------------------------------------------------------------------------


def _refuse(msg: str, type_: str, *loc: str) -> Never:
    raise InvalidInput.at(*loc, msg=msg, type=type_)


def _exactly(kind: type, msg: str, type_: str) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            _refuse(msg, type_)
        return value

    return hook


def _number(value: Any, _: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    _refuse("must be a number", "float_type")


def either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _choice(choices: Mapping[Any, Any]) -> Hook:
    msg = f"must be {either([repr(choice) for choice in choices])}"

    def hook(value: Any, _: Any) -> Any:
        if type(value) in (str, int) and value in choices:
            return choices[value]
        _refuse(msg, "literal_error")

    return hook


@cache
def _member(kind: type[Enum]) -> Hook:
    return _choice({member.value: member for member in kind})


def _parsed(parse: Callable[[str], Any], msg: str) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        try:
            return parse(value)
        except (TypeError, ValueError, ArithmeticError):
            _refuse(msg, "value_error")

    return hook


# ---- lists and objects -------------------------------------------------------------------------------------------


def _container(kind: type, structured: Hook, word: str, type_: str) -> Hook:
    def hook(value: Any, to: Any) -> Any:
        if type(value) is not kind:
            _refuse(f"must be {word}", type_)
        return structured(value, to)

    return hook


def _list(kind: Any, converter: Converter) -> Hook:
    origin, item = get_origin(kind), get_args(kind)[0]
    hook = converter.get_structure_hook(item)

    def in_detail(value: Any, _: Any) -> list[Any]:
        return _each(hook, item, enumerate(value))

    alias: Any = GenericAlias(list, item)
    items = in_detail if converter.detailed_validation else list_structure_factory(alias, converter)
    to = origin if origin in (list, frozenset) else tuple
    return _container(list, items if to is list else lambda value, kind: to(items(value, kind)), *_LIST)


def _mapping(kind: Any, converter: Converter) -> Hook:
    key, item = get_args(kind)
    hook = converter.get_structure_hook(item)

    def in_detail(value: Any, _: Any) -> dict[str, Any]:
        return dict(zip(value, _each(hook, item, value.items()), strict=True))

    alias: Any = GenericAlias(dict, (Any, item))
    made: Hook = in_detail if converter.detailed_validation else mapping_structure_factory(alias, converter)
    keyed = made if key is str else lambda value, to: {key(name): member for name, member in made(value, to).items()}
    return _container(dict, keyed, *_OBJECT)


def _each(hook: Hook, to: Any, members: Iterable[tuple[str | int, Any]]) -> list[Any]:
    """Structure members in detail. Exceptions are not kept as cattrs keeps them: there may be one for each member."""
    made: list[Any] = []
    problems: list[Problem] = []
    for step, raw in members:
        try:
            made.append(hook(raw, to))
        except FAULTS as error:
            problems += problems_in(error, raw, (step,))
    if problems:
        raise InvalidInput(problems)
    return made


# ---- unions ------------------------------------------------------------------------------------------------------


def _union(kind: Any, converter: Converter) -> Hook:
    hooks: dict[type, tuple[Hook, Any]] = {}
    classes = [member for member in get_args(kind) if get_origin(member) is None and attrs.has(member)]
    for member in get_args(kind):
        if member not in classes:
            hooks.update(dict.fromkeys(_json_types(member), (converter.get_structure_hook(member), member)))
    if classes:
        taken = converter.get_structure_hook(classes[0]) if len(classes) == 1 else _one_of(classes, converter)
        hooks[dict] = taken, classes[0]
    kinds = [json for json in hooks if json in _WORDS and not (json is int and float in hooks)]
    msg = f"must be {either([_WORDS[json][0] for json in kinds])}"
    type_ = _WORDS[kinds[0]][1] if len(kinds) == 1 else "union_type"

    def hook(value: Any, _: Any) -> Any:
        found = hooks.get(type(value))
        if found is None:
            _refuse(msg, type_)
        return found[0](value, found[1])

    return hook


def _json_types(kind: Any) -> tuple[type, ...]:
    if kind is float:
        return (float, int)
    if is_any(kind):
        return (str, int, float, bool, list, dict, NoneType)
    if kind in (*_WORDS, NoneType):
        return (kind,)
    origin = get_origin(kind)
    if origin is Literal:
        return tuple({type(value) for value in get_args(kind)})
    if origin is None:
        return (str,)
    return (dict,) if origin in (dict, Mapping) else (list,)


def _one_of(classes: Sequence[type], converter: Converter) -> Hook:
    """Dispatch by the field that tells classes apart, or else by the required fields that one class has alone."""
    try:
        return _tagged(tag_of(classes), classes, converter)
    except TypeError:
        required = [_required(cls) for cls in classes]
        alone = [names.difference(*required[:at], *required[at + 1 :]) for at, names in enumerate(required)]
        if not all(alone):
            raise
    hooks = [(names, converter.get_structure_hook(cls), cls) for names, cls in zip(alone, classes, strict=True)]

    def hook(value: Any, _: Any) -> Any:
        found = next((one for one in hooks if not one[0].isdisjoint(value)), hooks[-1])
        return found[1](value, found[2])

    return hook


def _required(cls: Any) -> set[str]:
    return {field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING}


def _tagged(tag: str, classes: Sequence[type], converter: Converter) -> Hook:
    named = {value: cls for cls in classes for value in get_args(get_type_hints(cls)[tag])}
    hooks = {value: (converter.get_structure_hook(cls), cls) for value, cls in named.items()}
    msg = f"must be {either([repr(value) for value in hooks])}"

    def hook(value: Any, _: Any) -> Any:
        if tag not in value:
            _refuse("is required", "missing", tag)
        found = hooks.get(value[tag]) if type(value[tag]) is str else None
        if found is None:
            _refuse(msg, "literal_error", tag)
        return found[0](value, found[1])

    return hook


def tag_of(classes: Sequence[type]) -> str:
    """Return the field that tells these classes apart: the first that is a Literal in all of them."""
    hints = [get_type_hints(cls) for cls in classes]
    for name in hints[0]:
        if all(get_origin(hint.get(name)) is Literal for hint in hints):
            return name
    raise TypeError(f"no Literal field tells {', '.join(cls.__name__ for cls in classes)} apart")


# ---- classes -----------------------------------------------------------------------------------------------------


def _instance(cls: Any, converter: Converter) -> Hook:
    known, made = frozenset(field.name for field in attrs.fields(cls) if field.init), list[Hook]()
    ignored = getattr(cls, "IGNORED", ())
    exact = converter.forbid_extra_keys and ignored is not ...

    def hook(value: Any, to: Any) -> Any:
        if type(value) is not dict:
            _refuse("must be an object", "dict_type")
        if not made:  # not before: a class may have fields of its own kind
            made.append(_fields(cls, converter, exact))
        if exact and not known.issuperset(value):
            value = {n: one for n, one in value.items() if n in known or not (one is None or n in ignored)}
            if not (converter.detailed_validation or value.keys() <= known):
                _refuse("has an unknown member", UNKNOWN)
        return made[0](value, to)

    return hook


def _fields(cls: Any, converter: Converter, exact: bool) -> Hook:
    fields = [field for field in attrs.fields(attrs.resolve_types(cls)) if field.init]
    if not (converter.detailed_validation or any(getattr(field.default, "takes_self", False) for field in fields)):
        return _written_out(cls, fields, converter)
    hooks: dict[str, Any] = {field.name: override(struct_hook=_field(field, converter)) for field in fields}
    named = exact and converter.detailed_validation
    return make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=named, **hooks)


def _written_out(cls: Any, fields: "Sequence[attrs.Attribute[Any]]", converter: Converter) -> Hook:
    """Make the function that structures a class, field by field, with null for a default. The class validates."""
    make: Any = maker(cls)
    known: dict[str, Any] = {"make": make}
    lines, given = ["def read(value, _):"], []
    for at, field in enumerate(sorted(fields, key=attrgetter("kw_only"))):
        default, usual = field.default, field.type in (str, bool, int) and "parser" not in field.metadata
        known |= {f"hook{at}": _own(field, converter), f"type{at}": field.type, f"default{at}": default}
        hooked = f"if {f'type(v{at}) is not type{at}' if usual else True}: v{at} = hook{at}(v{at}, type{at})"
        if default is attrs.NOTHING:
            lines += [f" v{at} = value[{field.name!r}]", f" {hooked}"]
        else:
            made = f"default{at}.factory()" if isinstance(default, _FACTORY) else f"default{at}"
            lines += [f" v{at} = value.get({field.name!r})", f" if v{at} is None: v{at} = {made}", f" el{hooked}"]
        named = field.alias if make is cls else field.name
        given.append(f"{named}=v{at}" if field.kw_only else f"v{at}")
    exec("\n".join([*lines, f" return make({', '.join(given)})"]), known)  # noqa: S102 - of the names of fields
    return known["read"]  # type: ignore[no-any-return]


def _own(field: Any, converter: Converter) -> Hook:
    parse = field.metadata.get("parser")
    return converter.get_structure_hook(field.type) if parse is None else lambda value, _: parse(value)


def _field(field: Any, converter: Converter) -> Hook:
    """Return a field's hook, its own or its type's, with null for its default, and with its validator."""
    hook, default = _own(field, converter), field.default
    if field.validator is not None:
        hook = _validated(hook, field)
    if default is attrs.NOTHING:
        return hook
    return _optional(hook, default.factory if isinstance(default, _FACTORY) else lambda: default)


_FACTORY: Any = attrs.Factory


def _validated(hook: Hook, field: Any) -> Hook:
    def validated(value: Any, to: Any) -> Any:
        made = hook(value, to)
        field.validator(None, field, made)
        return made

    return validated


def _optional(hook: Hook, default: Callable[[], Any]) -> Hook:
    return lambda value, to: default() if value is None else hook(value, to)
