"""Frozen values that cost little to make."""

from typing import Any, TypeVar

import attrs

T = TypeVar("T", bound=type)

_set_class = object.__dict__["__class__"].__set__


def quick_init(cls: T) -> T:
    """Give a class made by `attrs.frozen(weakref_slot=False)` an `__init__` that takes a third of the time.

    Nothing else about the class changes. While its attributes are set, the instance is of an open class with the same
    layout; then it becomes one of the frozen class. A subclass gets the `__init__` that attrs made. Raises TypeError
    for a class with validators, factories or keyword-only fields.
    """
    made: Any = cls
    fields = attrs.fields(cls)
    for field in fields:
        if field.validator or field.kw_only or isinstance(field.default, _FACTORY):
            raise TypeError(f"{cls.__name__}.{field.name} needs the __init__ that attrs makes")
    opened = type(f"{cls.__name__}BeingMade", (), {"__slots__": [field.name for field in fields]})
    known = {"made": cls, "opened": opened, "set_class": _set_class, "attrs_init": made.__init__}
    known |= {f"convert_{field.name}": field.converter for field in fields}
    known |= {f"default_{field.name}": _converted_default(field) for field in fields}
    exec(_source(fields), known)  # noqa: S102 - of the names of fields, as attrs makes its own
    init: Any = known["__init__"]
    init.__annotations__, init.__qualname__ = made.__init__.__annotations__, made.__init__.__qualname__
    made.__init__ = init
    return cls


_FACTORY: Any = attrs.Factory


def _converted_default(field: "attrs.Attribute[Any]") -> Any:
    convert: Any = field.converter
    return field.default if convert is None or field.default is attrs.NOTHING else convert(field.default)


def _source(fields: "tuple[attrs.Attribute[Any], ...]") -> str:
    names = ", ".join(field.name for field in fields)
    taken = ", ".join(
        field.name if field.default is attrs.NOTHING else f"{field.name}=default_{field.name}" for field in fields
    )
    lines = [
        f"def __init__(self, {taken}):",
        f" if self.__class__ is not made: return attrs_init(self, {names})",
        *(_conversion(field) for field in fields if field.converter),
        " set_class(self, opened)",
        *(f" self.{field.name} = {field.name}" for field in fields),
        " self.__class__ = made",
    ]
    return "\n".join(lines)


def _conversion(field: "attrs.Attribute[Any]") -> str:
    """Return the line that converts a field, unless it has its default, which is converted already."""
    name = field.name
    unless = "" if field.default is attrs.NOTHING else f" if {name} is not default_{name}:"
    return f"{unless} {name} = convert_{name}({name})"
