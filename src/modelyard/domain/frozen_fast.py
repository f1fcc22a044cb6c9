"""Make and copy frozen values: without it, attrs does, and a completion over HTTP takes 41 % more instructions.

Without it, `quick_init` and `maker` return the class as it is, and what is marked with `copies` calls `attrs.evolve`.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, cast

import attrs

T = TypeVar("T", bound=type)
P = ParamSpec("P")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

_set_class = object.__dict__["__class__"].__set__
_OPEN = {
    "__slots__": (),
    "__setattr__": object.__setattr__,
    "__delattr__": object.__delattr__,
    "__init__": object.__init__,
}
"""The members of a subclass that makes empty instances which can be changed."""


def quick_init(cls: T) -> T:
    """Give a class made by `attrs.frozen(weakref_slot=False)` an `__init__` that takes a third of the time. Nothing
    else about the class changes. While its attributes are set, the instance belongs to an open subclass with the same
    layout; then it becomes one of the frozen class. Any other subclass gets the `__init__` that attrs made. Methods
    that are marked with `copies` are generated in the same manner. Raises `TypeError` for a class with
    `__attrs_post_init__`, with a field that is no argument, or with a default that takes the instance."""
    made: Any = cls
    wrong = [field.name for field in attrs.fields(cls) if not field.init or getattr(field.default, "takes_self", False)]
    if wrong or hasattr(cls, "__attrs_post_init__"):
        raise TypeError(f"{cls.__name__} cannot have a quick __init__: {', '.join(wrong) or '__attrs_post_init__'}")
    fields = sorted(attrs.fields(cls), key=attrgetter("kw_only"))
    opened = type(f"{cls.__name__}BeingMade", (cls,), _OPEN)
    known = {"made": cls, "opened": opened, "set_class": _set_class, "attrs_init": made.__init__}
    for field in fields:
        known[f"convert_{field.name}"], known[f"check_{field.name}"] = field.converter, field.validator
        known[f"field_{field.name}"] = field
    known |= {f"default_{field.name}": _converted_default(field) for field in fields}
    marked = [method for method in vars(made).values() if hasattr(method, "is_copying")]
    lines = [*_source(fields), *(line for method in marked for line in _copy_source(method, fields))]
    exec("\n".join(lines), known)  # noqa: S102 - of the names of fields, as attrs makes its own
    _MAKERS[cls] = known["make"]
    for method in (made.__init__, *marked):
        written: Any = known[method.__name__]
        written.__annotations__, written.__qualname__ = method.__annotations__, method.__qualname__
        written.__doc__, written.__module__ = method.__doc__, method.__module__
        setattr(made, method.__name__, written)
    return cls


def maker(cls: Callable[P, V]) -> Callable[P, V]:
    """Return a function that makes instances of a class with `quick_init`, in two thirds of the time; of any other
    class, the class itself."""
    return cast("Callable[P, V]", _MAKERS.get(cls, cls))


_MAKERS: dict[Any, Any] = {}


def copies(method: F) -> F:
    """Mark a method of a class with `quick_init` that returns a copy with other values of the fields it takes. These
    have neither converters nor validators. The method needs no body: it is generated."""
    method.is_copying = True  # type: ignore[attr-defined]
    return method


_FACTORY: Any = attrs.Factory


def _converted_default(field: "attrs.Attribute[Any]") -> Any:
    if isinstance(field.default, _FACTORY):
        return attrs.NOTHING
    convert: Any = field.converter
    return field.default if convert is None or field.default is attrs.NOTHING else convert(field.default)


def _source(fields: "Sequence[attrs.Attribute[Any]]") -> list[str]:
    names = ", ".join(f"{field.name}={field.name}" if field.kw_only else field.name for field in fields)
    taken = [field.name if field.default is attrs.NOTHING else f"{field.name}=default_{field.name}" for field in fields]
    if named := [at for at, field in enumerate(fields) if field.kw_only]:
        taken.insert(named[0], "*")
    prepared = [line for field in fields for line in _conversion(field)]
    checks = [f"check_{field.name}({{}}, field_{field.name}, {{}}.{field.name})" for field in fields if field.validator]
    return [
        f"def __init__(self, {', '.join(taken)}):",
        f" if self.__class__ is not made: return attrs_init(self, {names})",
        *prepared,
        " set_class(self, opened)",
        *(f" self.{field.name} = {field.name}" for field in fields),
        " self.__class__ = made",
        *(f" {check.format('self', 'self')}" for check in checks),
        f"def make({', '.join(taken)}):",
        *prepared,
        " new = opened()",
        *(f" new.{field.name} = {field.name}" for field in fields),
        " new.__class__ = made",
        *(f" {check.format('new', 'new')}" for check in checks),
        " return new",
    ]


def _copy_source(method: Any, fields: "Sequence[attrs.Attribute[Any]]") -> list[str]:
    code = method.__code__
    changed = code.co_varnames[1 : code.co_argcount]
    if any(field.converter or field.validator for field in fields if field.name in changed):
        raise TypeError(f"{method.__qualname__} changes a field that is converted or validated")
    return [
        f"def {method.__name__}(self, {', '.join(changed)}):",
        " copy = opened()",
        *(f" copy.{field.name} = {'' if field.name in changed else 'self.'}{field.name}" for field in fields),
        " copy.__class__ = made",
        " return copy",
    ]


def _conversion(field: "attrs.Attribute[Any]") -> list[str]:
    name, makes = field.name, isinstance(field.default, _FACTORY)
    made = [f" if {name} is default_{name}: {name} = field_{name}.default.factory()"] if makes else []
    unless = "" if makes or field.default is attrs.NOTHING else f" if {name} is not default_{name}:"
    return [*made, f"{unless} {name} = convert_{name}({name})"] if field.converter else made
