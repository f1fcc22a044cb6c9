"""Constraints of fields: attrs validators that also have a form in JSON Schema. A field declares
`attrs.field(default=None, validator=Within(0, 2))`; the converter reports what a validator raises, and the OpenAPI
document takes over its `schema`. None passes every one of them."""

import re
from collections.abc import Mapping, Sized
from functools import cache
from typing import Any

import attrs

_compiled = cache(re.compile)


@attrs.frozen
class Within:
    """A number from `least` to `most`; with `above`, greater than `least`."""

    least: float | None = None
    most: float | None = None
    above: bool = False

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        if value is None:
            return
        # Written so that NaN does not pass.
        if self.least is not None and not (value > self.least if self.above else value >= self.least):
            raise ValueError(f"must be {'greater than' if self.above else 'at least'} {self.least}")
        if self.most is not None and not value <= self.most:
            raise ValueError(f"must be at most {self.most}")

    @property
    def schema(self) -> Mapping[str, Any]:
        lower = "exclusiveMinimum" if self.above else "minimum"
        return {key: value for key, value in ((lower, self.least), ("maximum", self.most)) if value is not None}


@attrs.frozen
class Length:
    """A string, list or object of `least` to `most` characters, items or members."""

    least: int = 0
    most: int | None = None

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        if value is None:
            return
        if len(value) < self.least:
            raise ValueError(
                "must not be empty" if self.least == 1 else f"must have at least {self.least} {_unit(value)}"
            )
        if self.most is not None and len(value) > self.most:
            raise ValueError(f"must have at most {self.most} {_unit(value)}")

    def schema_of(self, type_: str) -> Mapping[str, Any]:
        noun = {"string": "Length", "array": "Items", "object": "Properties"}.get(type_)
        if noun is None:
            return {}
        bounds = ((f"min{noun}", self.least or None), (f"max{noun}", self.most))
        return {key: value for key, value in bounds if value is not None}


def _unit(value: Sized) -> str:
    return "characters" if isinstance(value, str) else "members" if isinstance(value, Mapping) else "items"


@attrs.frozen
class Matching:
    """A string that matches `pattern` as a whole; `says` is the error message."""

    pattern: str
    says: str

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        if value is not None and not _compiled(self.pattern).fullmatch(value):
            raise ValueError(self.says)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"pattern": f"^(?:{self.pattern})$"}


@attrs.frozen
class Unsupported:
    """Nothing but null: for a parameter of other servers that must not be ignored, because the answer would differ."""

    says: str

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        if value is not None:
            raise ValueError(self.says)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"type": "null"}


@attrs.frozen
class Only:
    """One of these `values`: for a parameter of other servers that changes the answer in an unsupported manner."""

    values: tuple[Any, ...]
    says: str

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        if value is not None and not any(value == one and type(value) is type(one) for one in self.values):
            raise ValueError(self.says)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"anyOf": [*map(_constant, self.values), {"type": "null"}]}


def _constant(value: Any) -> Mapping[str, Any]:
    """Return the schema of one value; makers of clients read no constant that is a list."""
    if not isinstance(value, list):
        return {"const": value}
    items = {"type": "string", **({"enum": value} if value else {})}
    return {"type": "array", "items": items, "minItems": len(value), "maxItems": len(value)}


def hint(reason: str) -> Mapping[str, str]:
    """Return the metadata of a field that is checked, and changes nothing for this reason."""
    return {"without_effect": reason}


NAME = Matching(r"(?!\.+$)[A-Za-z0-9._-]{1,128}", "must be 1 to 128 characters of A-Z a-z 0-9 . _ - and not dots only")
ID = Matching(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "must be an id, as the creation returned it")
