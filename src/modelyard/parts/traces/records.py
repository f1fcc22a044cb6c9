"""Calls that programs trace, the feedback on them, and the tables and files that their values refer to."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.domain.record import EMPTY, KEPT, Index, Record, frozen_mapping, sequence_field

ANSWERS = ("chat.completion", "chat.completion.chunk", "text_completion", "response")
"""What the member `object` of a model's answer says, in the formats whose `id` is that of a ledger entry."""


@attrs.frozen
class TracedCall:
    """One call of a traced function, the op: from its start, with its outcome once it has ended.

    Clients choose the `id`, so it names a call within its project only. Calls of one trace share `trace_id`;
    `parent_id` is the call that made this one. `op` is the name in `op_name`, which is a name or the reference of an
    op. `output` holds the output under "value", and is empty until the call ends. `exception` is what it raised.
    `completion_id` is the id of a model's answer in the output; the ledger has its usage under this id. `more` holds
    the members that a client sent beyond these. `outcome` is the status as it is stored, for its index.
    """

    entity: str
    project: str
    id: str
    trace_id: str
    op_name: str
    started_at: datetime
    parent_id: str | None = None
    op: str = ""
    display_name: str | None = None
    inputs: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    attributes: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    output: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    summary: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    exception: str | None = None
    ended_at: datetime | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    completion_id: str | None = None
    more: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    outcome: str = ""
    seq: int = sequence_field()

    @property
    def ref(self) -> str:
        """The reference of this call."""
        return str(ObjectRef(self.entity, self.project, RefKind.CALL, self.id))

    @property
    def status(self) -> str:
        """Whether it is "running", or ended with "success" or "error"."""
        if self.ended_at is None:
            return "running"
        return "success" if self.exception is None else "error"

    @property
    def latency(self) -> float | None:
        """How many seconds it took; None while it runs."""
        return None if self.ended_at is None else max((self.ended_at - self.started_at).total_seconds(), 0.0)

    def with_end(self, end: "CallEnd") -> "TracedCall":
        """Return this call with its outcome."""
        return attrs.evolve(
            self,
            output={"value": end.output},
            summary=end.summary,
            exception=end.exception,
            ended_at=end.ended_at,
            completion_id=completion_of(end.output, self.attributes),
        )

    def merged(self, known: "TracedCall") -> "TracedCall":
        """Return this value of a call that is known already: an outcome and a display name are not lost."""
        named = attrs.evolve(self, display_name=self.display_name or known.display_name)
        if self.ended_at is not None or known.ended_at is None:
            return named
        return attrs.evolve(
            named,
            output=known.output,
            summary=known.summary,
            exception=known.exception,
            ended_at=known.ended_at,
            completion_id=known.completion_id,
        )


@attrs.frozen
class CallEnd:
    """The outcome of a call. `trace_id` and `started_at`, if they are known, stand for a start that never came."""

    id: str
    ended_at: datetime
    output: Any = None
    exception: str | None = None
    summary: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    trace_id: str | None = None
    started_at: datetime | None = None

    def alone(self, entity: str, project: str) -> TracedCall:
        """Return a call with only its outcome known."""
        start = self.started_at or self.ended_at
        return TracedCall(entity, project, self.id, self.trace_id or self.id, "", start).with_end(self)


def op_of(op_name: str) -> str:
    """Return the name of the op that an `op_name` refers to: its own, or the name in the reference."""
    ref = ObjectRef.parse(op_name.removesuffix(":*"))
    return op_name if ref is None else ref.name


def completion_of(output: Any, attributes: Mapping[str, Any] = EMPTY) -> str | None:
    """Return the id of the completion in an output, as the clients of models return it, or in the attributes, by the
    conventions of OpenTelemetry; None if there is none.
    """
    is_answer = isinstance(output, Mapping) and output.get("object") in ANSWERS
    found = output.get("id") if is_answer else attributes.get("gen_ai.response.id")
    return found if isinstance(found, str) and 0 < len(found) <= 128 else None


@attrs.frozen
class Feedback:
    """A statement of a person or a program on a call or an object: `payload`, of some `type`.

    `ref` is the reference of its subject. `creator` is the name that its giver chose. `links` are further references
    and scores that came with it, under their names in the interface.
    """

    entity: str
    project: str
    id: str
    ref: str
    type: str
    created_at: datetime
    payload: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    creator: str | None = None
    links: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    seq: int = sequence_field()


@attrs.frozen
class TracedRow:
    """A row of tables, by its digest: `content` holds it under "value". Equal rows are stored once in a project."""

    entity: str
    project: str
    digest: str
    content: Mapping[str, Any] = attrs.field(converter=frozen_mapping)


@attrs.frozen
class TracedTable:
    """A table of rows by its digest. The artifact has the digests of the `rows`, each followed by a line feed."""

    entity: str
    project: str
    digest: str
    rows: int
    artifact: str
    created_at: datetime

    @property
    def id(self) -> str:
        """The digest, which names it in reports."""
        return self.digest


@attrs.frozen
class TracedFile:
    """A file that an object refers to, by the digest of its bytes."""

    entity: str
    project: str
    digest: str
    name: str
    size: int
    artifact: str
    created_at: datetime

    @property
    def id(self) -> str:
        """The digest, which names it in reports."""
        return self.digest


_BY_DIGEST = ("entity", "project", "digest")

RECORDS = (
    Record(
        TracedCall,
        "traced_calls",
        ("entity", "project", "id"),
        indexes={
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_start": Index(("entity", "project"), ("started_at",)),
            "by_trace": Index(("entity", "project", "trace_id"), ("started_at",)),
            "by_parent": Index(("entity", "project", "parent_id"), ("started_at",)),
            "by_op": Index(("entity", "project", "op"), ("started_at",)),
            "by_outcome": Index(("entity", "project", "outcome"), ("started_at",)),
            "by_completion": Index(("entity", "project", "completion_id")),
            "by_age": Index((), ("started_at",)),
        },
        sequence="seq",
        texts="started_at",
    ),
    Record(
        Feedback,
        "feedback",
        ("entity", "project", "id"),
        indexes={
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_ref": Index(("entity", "project", "ref")),
            "by_age": Index((), ("created_at",)),
        },
        sequence="seq",
        texts="created_at",
    ),
    Record(TracedRow, "traced_rows", _BY_DIGEST, indexes={"by_entity": Index(("entity",))}, texts=KEPT),
    *(
        Record(
            cls,
            table,
            _BY_DIGEST,
            indexes={"by_entity": Index(("entity",)), "all": Index(())},
            artifacts=lambda kept: (kept.artifact,),
            texts=KEPT,
        )
        for cls, table in ((TracedTable, "traced_tables"), (TracedFile, "traced_files"))
    ),
)
