"""What is stored of variants: their versions, what points to one of these, and each change of that."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

import attrs

from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.domain.promotion import Change
from modelyard.domain.record import EMPTY, KEPT, Index, Record, frozen_mapping, sequence_field
from modelyard.parts.variants.content import VariantContent

REF_PREFIX = "variants."


@attrs.frozen
class Variant:
    """A name for what one serves, in versions that count from 1. `last_number` is that of the newest."""

    id: str
    entity: str
    project: str
    name: str
    created_at: datetime
    last_number: int = 0
    seq: int = sequence_field()
    word: ClassVar[str] = "version"

    def ref_of(self, number: int) -> ObjectRef:
        """Return the reference under which a version is evaluated."""
        return ObjectRef(self.entity, self.project, RefKind.OBJECT, REF_PREFIX + self.name, f"v{number}")

    def served_as(self, number: int) -> str:
        """Return the name under which a version is served."""
        return f"variants/{self.entity}/{self.project}/{self.name}@{number}"


@attrs.frozen
class VariantVersion:
    """A version of a variant, which never changes. `digest` is that of its `body`, which is its content as JSON data.
    `parent` is the version that it was made from, None for the first. `by` is the id of the key that published it, or
    "host"."""

    id: str
    variant_id: str
    entity: str
    project: str
    number: int
    digest: str
    body: Mapping[str, Any] = attrs.field(converter=frozen_mapping, repr=False)
    parent: int | None
    note: str
    by: str
    created_at: datetime

    @property
    def content(self) -> VariantContent:
        """The model, the prompt and the parameters."""
        return VariantContent.of(self.body)


@attrs.frozen
class VariantAlias:
    """A name of one version. `change` is the number of the move in force; a rollback leads to the version `previous`,
    None for nowhere."""

    variant_id: str
    name: str
    entity: str
    project: str
    number: int
    change: int
    previous: int | None
    updated_at: datetime


@attrs.frozen
class VariantMove:
    """One change of what an alias points to: from the version `before` to `number`, None for nothing.

    `count` counts the changes of one alias from 1. `verdict` holds the numbers by which a requirement was met. A
    rollback of this change leads to the result of the change with the count `below`.
    """

    id: str
    variant_id: str
    entity: str
    project: str
    alias: str
    count: int
    change: Change
    number: int | None
    before: int | None
    by: str
    created_at: datetime
    below: int | None = None
    verdict: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)


RECORDS = (
    Record(
        Variant,
        "variants",
        ("id",),
        unique={"name": ("entity", "project", "name")},
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
        },
        sequence="seq",
        settings=("entity", "project", "name", "last_number"),
        domain=("entity", "entity"),
    ),
    Record(
        VariantVersion,
        "variant_versions",
        ("id",),
        unique={"number": ("variant_id", "number")},
        indexes={"by_variant": Index(("variant_id",), ("number",)), "by_entity": Index(("entity",))},
        domain=("entity", "entity"),
        erased_with={Variant: "by_variant"},
        texts=KEPT,
    ),
    Record(
        VariantAlias,
        "variant_aliases",
        ("variant_id", "name"),
        indexes={"by_variant": Index(("variant_id",), ("name",)), "by_entity": Index(("entity",))},
        settings=("number",),
        domain=("entity", "entity"),
        erased_with={Variant: "by_variant"},
    ),
    Record(
        VariantMove,
        "variant_moves",
        ("id",),
        unique={"count": ("variant_id", "alias", "count")},
        indexes={
            "by_variant": Index(("variant_id",), ("alias", "count")),
            "by_alias": Index(("variant_id", "alias"), ("count",)),
            "by_entity": Index(("entity",)),
        },
        domain=("entity", "entity"),
        erased_with={Variant: "by_variant"},
    ),
)
