"""Named objects that have versions: datasets, scorers, models, evaluations, ops and others (specification 4.5). Equal
content is the same version, so publishing twice changes nothing."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.evaluation.references import ObjectRef, RefKind
from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping, sequence_field

LATEST = "latest"
_INDEX = re.compile(r"v(0|[1-9][0-9]{0,17})")


class ObjectKind(StrEnum):
    """The kind of an object. `OBJECT` is any value that a program published as it is (`platform.traces.objects`)."""

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
    ),
)
