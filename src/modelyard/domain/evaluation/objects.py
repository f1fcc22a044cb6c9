"""Named objects that have versions, references to them, and the digests that name content (specification 4.5)."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

import attrs

from modelyard.domain.record import EMPTY, KEPT, Index, Record, frozen_mapping, sequence_field
from modelyard.errors import Problem


class RefKind(StrEnum):
    OBJECT = "object"
    OP = "op"
    CALL = "call"
    TABLE = "table"


_NAME = r"(?!\.+/)[A-Za-z0-9._-]{1,128}"
_OBJECT = r"[\w.-]{1,128}"
_VERSION = r"[\w-]{1,128}"
_EXTRA = r"(?:/(?:attr|key|index|id)/(?:[\w.~-]|%[0-9A-Fa-f]{2}){1,512}){0,32}"
_REF = re.compile(
    rf"(?:weave|modelyard):///(?P<entity>{_NAME})/(?P<project>{_NAME})/"
    rf"(?P<kind>object|op|call|table)/(?P<name>{_OBJECT})(?::(?P<version>{_VERSION}))?(?P<extra>{_EXTRA})"
)


@attrs.frozen
class ObjectRef:
    """`weave:///<entity>/<project>/<kind>/<name>[:<version>]` and any path into the object, taken apart. `str()` of it
    is the reference again, with the scheme `weave`."""

    entity: str
    project: str
    kind: RefKind
    name: str
    version: str | None = None
    path: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "ObjectRef | None":
        """Return the parts of a reference, or None for a string that is not one."""
        found = _REF.fullmatch(text)
        if found is None or (found["kind"] in ("call", "table") and found["version"]):
            return None
        words = found["extra"].split("/")[1:]
        try:
            path = tuple((words[at], unquote(words[at + 1], errors="strict")) for at in range(0, len(words), 2))
        except UnicodeDecodeError:
            return None
        return cls(found["entity"], found["project"], RefKind(found["kind"]), found["name"], found["version"], path)

    def __str__(self) -> str:
        version = f":{self.version}" if self.version else ""
        path = "".join(f"/{step}/{quote(value, safe='')}" for step, value in self.path)
        return f"weave:///{self.entity}/{self.project}/{self.kind}/{self.name}{version}{path}"


def reference_pattern(kinds: Iterable[RefKind]) -> str:
    words = "|".join(sorted(kinds))
    return f"^(?:weave|modelyard):///{_NAME}/{_NAME}/(?:{words})/{_OBJECT}(?::{_VERSION})?{_EXTRA}$"


def same_scheme(text: str) -> str:
    return "weave" + text.removeprefix("modelyard") if text.startswith("modelyard:///") else text


def object_id(name: str) -> str:
    """Return the id that references use for `name`: lower case, at most 128 characters. Spaces and slashes become `_`;
    other characters than word characters, `.` and `-` are left out."""
    return re.sub(r"[^\w.-]", "", re.sub(r"[\s/]", "_", name.lower()))[:128]


class RefMode(StrEnum):
    """How strictly a reference is checked: not at all; it must parse and be of the right kind; it must exist."""

    LENIENT = "lenient"
    SYNTAX = "syntax"
    RESOLVE = "resolve"


EVALUATION_KINDS = frozenset({RefKind.OBJECT})
MODEL_KINDS = frozenset({RefKind.OBJECT, RefKind.OP})
MAX_REF = 20_000


def reference_problem(field: str, text: str, kinds: frozenset[RefKind], mode: RefMode) -> Problem | None:
    """Return what is wrong with a reference, whether or not its object exists."""
    if len(text) > MAX_REF or "\0" in text:
        return Problem((field,), f"must be at most {MAX_REF} characters, none of them NUL")
    if mode is RefMode.LENIENT:
        return None
    ref = ObjectRef.parse(text)
    if ref is not None and ref.kind in kinds:
        return None
    shapes = " or ".join(f"modelyard:///<entity>/<project>/{kind}/<name>[:<version>]" for kind in sorted(kinds))
    return Problem((field,), f"must be a reference such as {shapes}", "reference")


LATEST = "latest"
_INDEX = re.compile(r"v(0|[1-9][0-9]{0,17})")


class ObjectKind(StrEnum):
    """The kind of an object. `OBJECT` is any value that a program published (`platform.compat.traces.objects`)."""

    DATASET = "dataset"
    SCORER = "scorer"
    MODEL = "model"
    EVALUATION = "evaluation"
    OP = "op"
    OBJECT = "object"


@attrs.frozen
class ObjectVersion:
    """One version of a named object.

    Versions of an `object_id` count from 0 in `index`, also over deleted ones. `content` is what was published, without
    rows: the rows of a dataset are in the artifact `rows_artifact`, as JSON Lines, `rows` of them, and `table_digest`
    is the digest of their table. A deleted version keeps its `index` and loses its content.
    """

    id: str
    entity: str
    project: str
    kind: ObjectKind
    object_id: str
    index: int
    digest: str
    created_at: datetime
    content: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    rows: int | None = None
    rows_artifact: str | None = None
    table_digest: str | None = None
    deleted_at: datetime | None = None
    seq: int = sequence_field()

    @property
    def ref(self) -> ObjectRef:
        kind = RefKind.OP if self.kind is ObjectKind.OP else RefKind.OBJECT
        return ObjectRef(self.entity, self.project, kind, self.object_id, self.digest)

    @property
    def rows_ref(self) -> ObjectRef | None:
        if self.table_digest is None:
            return None
        return ObjectRef(self.entity, self.project, RefKind.TABLE, self.table_digest)

    def deleted(self, at: datetime) -> "ObjectVersion":
        """Return this version as it remains when it is deleted: without content."""
        return attrs.evolve(self, content=EMPTY, rows=None, rows_artifact=None, table_digest=None, deleted_at=at)


def version_index(version: str) -> int | None:
    found = _INDEX.fullmatch(version)
    return int(found[1]) if found else None


@attrs.frozen
class ObjectAlias:
    entity: str
    project: str
    kind: ObjectKind
    object_id: str
    alias: str
    index: int


OneObject = str | ObjectRef | ObjectVersion
"""How one object may be named: by its name (`quiz`, `quiz:v0`), by a reference, or by the version itself."""

RECORDS = (
    Record(
        ObjectAlias,
        "object_aliases",
        ("entity", "project", "kind", "object_id", "alias"),
        indexes={"by_entity": Index(("entity",))},
    ),
    Record(
        ObjectVersion,
        "object_versions",
        ("id",),
        unique={"version": ("entity", "project", "kind", "object_id", "index")},
        indexes={
            "all": Index(()),
            "by_object": Index(("entity", "project", "kind", "object_id"), ("index",)),
            "by_digest": Index(("entity", "project", "kind", "object_id", "digest"), ("index",)),
            "by_kind": Index(("entity", "project", "kind")),
            "by_entity": Index(("entity",)),
            "by_table": Index(("entity", "project", "table_digest")),
        },
        sequence="seq",
        artifacts=lambda version: () if version.rows_artifact is None else (version.rows_artifact,),
        texts=KEPT,
    ),
)
