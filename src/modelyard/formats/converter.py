"""JSON data into attrs classes, strictly: nothing is coerced, and every problem is named at its place.

A class is compiled once into a parser made of its fields' parsers. A parser returns the value or raises `Wrong`, whose
locations begin at itself; whoever called it puts its own step in front. So a body that fits pays nothing for knowing
where it might not.

Fields may be of the types `str int float bool object Any None`, Literal, enums, `X | Y`, `list[X]`, `tuple[X, ...]`,
`Sequence[X]`, `dict[str, X]`, `Mapping[str, X]` and attrs classes. Of several classes in a union, the one is taken
whose Literal field (`type`, `role`, ...) agrees. Constraints are attrs validators that raise ValueError; what concerns
several fields is checked in `__attrs_post_init__`, which may also raise `InvalidInput` to say where.
"""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from modelyard.errors import InvalidInput, Problem

T = TypeVar("T")
Parser = Callable[[Any], Any]

MAX_PROBLEMS = 100


class Wrong(Exception):
    """Problems of one value, located from there."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems


def structure(cls: type[T], value: object, *loc: str | int) -> T:
    """The instance of an attrs class that `value` describes.

    Null is as good as absent for a field with a default; unknown members are ignored. Raises `InvalidInput` naming the
    problems, each located below `loc`: the first 100, the last of them saying how many more there are.
    """
    try:
        return parser(cls)(value)  # type: ignore[no-any-return]
    except Wrong as wrong:
        raise InvalidInput(_first(below(loc, wrong.problems))) from None


def structure_members(cls: type, value: object, *loc: str | int) -> dict[str, Any]:
    """What `structure` would give to the class, without making an instance: only the fields that were sent.

    For a class with many fields of which few are ever sent. Raises as `structure` does.
    """
    try:
        take, rules = members_parser(cls)
        given, problems = take(value)
        problems += _violations(rules, given)
    except Wrong as wrong:
        problems = [*wrong.problems]
    if problems:
        raise InvalidInput(_first(below(loc, problems)))
    return given


def below(loc: tuple[str | int, ...], problems: Iterable[Problem]) -> list[Problem]:
    """The same problems, seen from above `loc`."""
    return [Problem((*loc, *problem.loc), problem.msg, problem.type) for problem in problems]


def _first(problems: list[Problem]) -> list[Problem]:
    more = len(problems) - MAX_PROBLEMS
    if more <= 0:
        return problems
    last = problems[MAX_PROBLEMS - 1]
    return [*problems[: MAX_PROBLEMS - 1], Problem(last.loc, f"{last.msg} (and {more} more problems)", last.type)]


def _parser_of(kind: Any) -> Parser:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None and attrs.has(kind):
        return _class_parser(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice_parser({member.value: member for member in kind})
    if origin is Literal:
        return _choice_parser({value: value for value in arguments})
    if origin in (list, tuple, Sequence):
        return _list_parser(parser(arguments[0]), list if origin is list else tuple)
    if origin in (dict, Mapping):
        return _mapping_parser(parser(arguments[1]))
    if origin in (Union, types.UnionType):
        return _union_parser(arguments)
    raise TypeError(f"{kind!r} is no type of a wire field")


parser: Callable[[Any], Parser] = cache(_parser_of)
"""The parser of a type. Raises TypeError for one that JSON cannot say."""


# ---- plain values ------------------------------------------------------------------------------------------------


def _wrong(msg: str, type_: str) -> Wrong:
    return Wrong(Problem((), msg, type_))


def _exactly(kind: type, says: str, type_: str) -> Parser:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(says, type_)
        return value

    return parse


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise _wrong("must be a number", "float_type")


def _anything(value: Any) -> Any:
    return value


_nothing = _exactly(type(None), "must be null", "none_type")
_PRIMITIVES: Mapping[Any, Parser] = {
    str: _exactly(str, "must be a string", "string_type"),
    int: _exactly(int, "must be a whole number", "int_type"),
    float: _number,
    bool: _exactly(bool, "must be true or false", "bool_type"),
    type(None): _nothing,
    None: _nothing,
    Any: _anything,
    object: _anything,
}


def _choice_parser(choices: Mapping[Any, Any]) -> Parser:
    says = f"must be {either([repr(choice) for choice in choices])}"

    def parse(value: Any) -> Any:
        if type(value) in (str, int) and value in choices:
            return choices[value]
        raise _wrong(says, "literal_error")

    return parse


def either(words: Sequence[str]) -> str:
    """The words joined for reading: "a, b or c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


# ---- lists and mappings ------------------------------------------------------------------------------------------


def _list_parser(item: Parser, make: Callable[[list[Any]], Any]) -> Parser:
    def parse(value: Any) -> Any:
        if type(value) is not list:
            raise _wrong("must be a list", "list_type")
        try:
            return make([item(raw) for raw in value])
        except Wrong:
            raise _wrong_items(item, enumerate(value)) from None

    return parse


def _mapping_parser(item: Parser) -> Parser:
    def parse(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("must be an object", "dict_type")
        try:
            return {name: item(raw) for name, raw in value.items()}
        except Wrong:
            raise _wrong_items(item, value.items()) from None

    return parse


def _wrong_items(item: Parser, pairs: Iterable[tuple[str | int, Any]]) -> Wrong:
    problems: list[Problem] = []
    for step, raw in pairs:
        try:
            item(raw)
        except Wrong as wrong:
            problems += below((step,), wrong.problems)
    return Wrong(*problems)


# ---- unions ------------------------------------------------------------------------------------------------------

_WORDS: Mapping[type, tuple[str, str]] = {
    str: ("a string", "string_type"),
    int: ("a whole number", "int_type"),
    float: ("a number", "float_type"),
    bool: ("true or false", "bool_type"),
    list: ("a list", "list_type"),
    dict: ("an object", "dict_type"),
}


def _union_parser(members: Sequence[Any]) -> Parser:
    """Dispatch by the JSON type of the value, of which it has one."""
    by_type: dict[type, Parser] = {}
    classes = [member for member in members if get_origin(member) is None and attrs.has(member)]
    for member in members:
        if member not in classes:
            by_type.update(dict.fromkeys(_json_types(member), parser(member)))
    if classes:
        by_type[dict] = parser(classes[0]) if len(classes) == 1 else _tagged_parser(classes)
    kinds = [kind for kind in by_type if kind in _WORDS and not (kind is int and float in by_type)]
    says = f"must be {either([_WORDS[kind][0] for kind in kinds])}"
    type_ = _WORDS[kinds[0]][1] if len(kinds) == 1 else "union_type"

    def parse(value: Any) -> Any:
        take = by_type.get(type(value))
        if take is None:
            raise _wrong(says, type_)
        return take(value)

    return parse


def _json_types(kind: Any) -> tuple[type, ...]:
    """The Python types of the JSON values that a type can take."""
    if kind is float:
        return (float, int)
    if kind in (Any, object):
        return (str, int, float, bool, list, dict, type(None))
    if kind is None or kind in _PRIMITIVES:
        return (kind or type(None),)
    origin = get_origin(kind)
    if origin is Literal:
        return tuple({type(value) for value in get_args(kind)})
    if origin is None:
        return (str,)
    return (dict,) if origin in (dict, Mapping) else (list,)


def _tagged_parser(classes: Sequence[type]) -> Parser:
    tag = tag_of(classes)
    by_value = {value: parser(cls) for cls in classes for value in get_args(get_type_hints(cls)[tag])}
    says = f"must be {either([repr(value) for value in by_value])}"

    def parse(value: Any) -> Any:
        if tag not in value:
            raise Wrong(Problem((tag,), "is required", "missing"))
        named = value[tag]
        take = by_value.get(named) if type(named) is str else None
        if take is None:
            raise Wrong(Problem((tag,), says, "literal_error"))
        return take(value)

    return parse


def tag_of(classes: Sequence[type]) -> str:
    """The field that tells these classes apart: the first that is a Literal in all of them."""
    hints = [get_type_hints(cls) for cls in classes]
    for name in hints[0]:
        if all(get_origin(hint.get(name)) is Literal for hint in hints):
            return name
    raise TypeError(f"no Literal field tells {', '.join(cls.__name__ for cls in classes)} apart")


# ---- classes -----------------------------------------------------------------------------------------------------


def _class_parser(cls: type) -> Parser:
    take, rules = members_parser(cls)

    def parse(value: Any) -> Any:
        given, problems = take(value)
        if problems:
            raise Wrong(*problems, *_violations(rules, given))
        try:
            return cls(**given)
        except ValueError as error:
            raise Wrong(*_violations(rules, given) or [Problem((), str(error))]) from None
        except InvalidInput as wrong:
            raise Wrong(*wrong.problems) from None

    return parse


def _field_parser(field: Any) -> Parser:
    """The parser of the field's type, unless it brings one of its own (`metadata={"parser": ...}`)."""
    own: Parser | None = field.metadata.get("parser")
    return parser(field.type) if own is None else own


MembersParser = Callable[[Any], tuple[dict[str, Any], list[Problem]]]


def _members_parser(cls: type) -> tuple[MembersParser, Mapping[str, Any]]:
    fields = [field for field in attrs.fields(attrs.resolve_types(cls)) if field.init]
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    parsers = {field.name: (field.alias, _field_parser(field), field.name in required) for field in fields}

    def take(value: Any) -> tuple[dict[str, Any], list[Problem]]:
        if type(value) is not dict:
            raise _wrong("must be an object", "dict_type")
        given: dict[str, Any] = {}
        problems = [Problem((name,), "is required", "missing") for name in required if name not in value]
        for name, raw in value.items():
            known = parsers.get(name)
            if known is None or (raw is None and not known[2]):
                continue
            try:
                given[known[0]] = known[1](raw)
            except Wrong as wrong:
                problems += below((name,), wrong.problems)
        return given, problems

    return take, {field.alias: field for field in fields if field.validator is not None}


members_parser: Callable[[Any], tuple[MembersParser, Mapping[str, Any]]] = cache(_members_parser)
"""For an attrs class: what parses the members that are there, and the fields that have a constraint, by init name."""


def _violations(rules: Mapping[str, Any], given: Mapping[str, Any]) -> list[Problem]:
    """Every constraint that a given value breaks."""
    problems = []
    for alias, value in given.items():
        field = rules.get(alias)
        if field is not None:
            try:
                field.validator(None, field, value)
            except ValueError as error:
                problems.append(Problem((field.name,), str(error)))
    return problems
