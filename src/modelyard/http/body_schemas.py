"""JSON Schemas of the classes of bodies, as the OpenAPI document shows them."""

import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import attrs

from modelyard.domain.evaluation.objects import EVALUATION_KINDS, MAX_REF, MODEL_KINDS, reference_pattern
from modelyard.domain.worker import MOST, Resources, check_resources
from modelyard.formats.constraints import Length, Matching, Only, Unsupported, Within

JsonSchema = dict[str, Any]


@attrs.frozen
class NeedsBody:
    """What a job is to have for itself: accelerators, and GiB of main memory. A worker that has less leaves it. Of the
    jobs of an entity, that with the highest `priority` is first."""

    accelerators: int | None = attrs.field(default=None, validator=Within(0, MOST))
    memory: int | None = attrs.field(default=None, validator=Within(0, MOST))
    priority: int | None = attrs.field(default=None, validator=Within(-1000, 1000))


def resources_of(body: NeedsBody) -> Resources:
    named = {name: amount for name, amount in attrs.asdict(body).items() if amount is not None}
    check_resources(named)
    return cast(Resources, named)


_PRIMITIVES: Mapping[Any, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    datetime: {"type": "string"},
    Any: {"description": "Any JSON value."},
    object: {"description": "Any JSON value."},
}
_EVERY_TYPE = ["object", "array", "string", "number", "boolean", "null"]


@attrs.frozen
class Reference:
    longest: int
    pattern: str

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"maxLength": self.longest, "pattern": self.pattern}

    @property
    def unchecked(self) -> Mapping[str, Any]:
        return {"maxLength": self.longest}


EvaluationRef = Annotated[str, Reference(MAX_REF, reference_pattern(EVALUATION_KINDS))]
ModelRef = Annotated[str, Reference(MAX_REF, reference_pattern(MODEL_KINDS))]


class Schemas:
    """JSON Schemas of types. Classes are collected as components and referred to. Without `check_references`, a
    reference may be any string, as `Settings.reference_mode` may allow."""

    def __init__(self, check_references: bool = True) -> None:
        self.components: dict[str, JsonSchema] = {}
        self._check_references = check_references
        self._classes: dict[str, type] = {}

    def of(self, kind: Any) -> JsonSchema:
        if kind in _PRIMITIVES:
            return dict(_PRIMITIVES[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is None and attrs.has(kind):
            return self._reference(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": "string", "enum": [member.value for member in kind]}
        if origin is Annotated:
            return self.of(arguments[0]) | {key: value for rule in arguments[1:] for key, value in self._rule(rule)}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (Union, types.UnionType):
            members = [self.of(argument) for argument in arguments]
            return _one_of(arguments, members) if all(map(_tag, arguments)) else {"anyOf": members}
        raise TypeError(f"{kind!r} has no JSON schema here")

    def _rule(self, rule: Any) -> Iterable[tuple[str, Any]]:
        schema: Mapping[str, Any] = rule.schema
        if isinstance(rule, Reference) and not self._check_references:
            schema = rule.unchecked
        return schema.items()

    def _reference(self, cls: type) -> JsonSchema:
        name = cls.__name__
        if self._classes.setdefault(name, cls) is not cls:
            raise TypeError(f"two classes of bodies are called {name}")
        if name not in self.components:
            self.components[name] = {}
            self.components[name] = self._object(cls)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, cls: type) -> JsonSchema:
        fields = [field for field in attrs.fields(attrs.resolve_types(cls)) if field.init]
        schema: JsonSchema = {
            "type": "object",
            "description": inspect.cleandoc(cls.__doc__ or ""),
            "properties": {field.name: self._field(field) for field in fields},
        }
        if tag := _tag(cls):
            own = {"type": {"type": "string", "enum": [tag]}, "name": {"type": ["string", "null"]}}
            schema |= {"properties": own | schema["properties"], "additionalProperties": False}
        schema |= getattr(cls, "SCHEMA", {})
        required = required_members(cls)
        return {**schema, "required": required} if required else schema

    def _field(self, field: Any) -> JsonSchema:
        """Describe a field: its type with its constraints, and null if it has a default. Its metadata may replace its
        type (`described_as`), and add to its `schema`."""
        described = field.metadata.get("described_as", field.type)
        schema: JsonSchema = {**self.of(described), **field.metadata.get("schema", {})}
        for rule in getattr(field.validator, "_validators", (field.validator,)):
            if isinstance(rule, Unsupported | Only):
                return dict(rule.schema)
            if isinstance(rule, Within | Matching):
                schema.update(rule.schema)
            if isinstance(rule, Length):
                for type_ in _types(schema):
                    schema.update(rule.schema_of(type_))
        if field.default is attrs.NOTHING or "null" in _types(schema):
            return schema
        return {"anyOf": [schema, {"type": "null"}]}


def required_members(cls: type) -> list[str]:
    own = [field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING]
    return ["type", *own] if _tag(cls) else own


def _tag(cls: Any) -> str:
    tag = vars(cls).get("type") if isinstance(cls, type) else None
    return tag if isinstance(tag, str) else ""


def _one_of(classes: Sequence[type], members: Sequence[JsonSchema]) -> JsonSchema:
    mapping = {_tag(cls): member["$ref"] for cls, member in zip(classes, members, strict=True)}
    return {"oneOf": list(members), "discriminator": {"propertyName": "type", "mapping": mapping}}


def _types(schema: JsonSchema) -> list[str]:
    for members in ("anyOf", "oneOf"):
        if members in schema:
            return [type_ for member in schema[members] for type_ in _types(member)]
    if schema == _PRIMITIVES[Any]:
        return _EVERY_TYPE
    named = schema.get("type", "object" if "$ref" in schema else "string")
    return [str(named)]
