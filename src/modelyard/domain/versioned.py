"""Named objects that have versions: datasets, scorers, models, evaluations and ops (specification 4.5).

Equal content is the same version, so whoever publishes twice changes nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.record import Index, Record, frozen_mapping


class ObjectKind(StrEnum):
    """What an object is."""

    DATASET = "dataset"
    SCORER = "scorer"
    MODEL = "model"
    EVALUATION = "evaluation"
    OP = "op"


@attrs.frozen
class ObjectVersion:
    """One version of a named object. Versions of an `object_id` count from 0 in `index`, also over deleted ones.

    `content` is what was published, without rows: those of a dataset lie in the artifact `rows_artifact`, as JSON
    Lines, `rows` of them, and `table_digest` is the digest of their table. A deleted version keeps its place and loses
    its content.
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


RECORDS = (
    Record(
        ObjectVersion,
        "object_versions",
        ("id",),
        unique={"version": ("entity", "project", "kind", "object_id", "index")},
        indexes={
            "by_object": Index(("entity", "project", "kind", "object_id"), ("index",)),
            "by_digest": Index(("entity", "project", "kind", "object_id", "digest"), ("index",)),
            "by_kind": Index(("entity", "project", "kind"), ("created_at",)),
            "by_entity": Index(("entity",), ("created_at",)),
            "by_table": Index(("entity", "project", "table_digest"), ("created_at",)),
        },
    ),
)
