"""Calls and feedback in the form that clients see, and the fields by which queries find them."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.evaluation.filters import Expression, value_at
from modelyard.formats.converter import unstructure
from modelyard.formats.filter_expressions import parse_query
from modelyard.http.message import problems_at
from modelyard.parts.traces.call_query import ALWAYS
from modelyard.parts.traces.feedback import Feedbacks
from modelyard.parts.traces.records import Feedback, TracedCall

ALWAYS_SHOWN = ("id", "project_id", "op_name", "trace_id", "started_at")
EMPTIED: Mapping[str, Any] = {"attributes": {}, "inputs": {}}
"""What a call has in the place of a member that was not asked for and must be there."""

Document = Mapping[str, Any]


# ---- what clients see --------------------------------------------------------------------------------------------


def time_text(moment: datetime | None) -> str | None:
    """Write a time in ISO 8601, in UTC."""
    return None if moment is None else str(unstructure(moment))


def call_document(call: TracedCall) -> dict[str, Any]:
    said = call.summary.get("weave")
    own = {"status": call.status, "trace_name": call.op}
    if call.latency is not None:
        own |= {"latency_ms": int(call.latency * 1000)}  # type: ignore[dict-item]
    return {
        "id": call.id,
        "project_id": f"{call.entity}/{call.project}",
        "op_name": call.op_name,
        "display_name": call.display_name,
        "trace_id": call.trace_id,
        "parent_id": call.parent_id,
        "thread_id": call.thread_id,
        "turn_id": call.turn_id,
        "started_at": time_text(call.started_at),
        "ended_at": time_text(call.ended_at),
        "attributes": call.attributes,
        "inputs": call.inputs,
        "output": call.output.get("value"),
        "exception": call.exception,
        "summary": {**call.summary, "weave": {**(said if isinstance(said, Mapping) else {}), **own}},
        "deleted_at": None,
        "wb_user_id": call.more.get("wb_user_id"),
        "wb_run_id": call.more.get("wb_run_id"),
        "wb_run_step": call.more.get("wb_run_step"),
    }


def feedback_document(said: Feedback) -> dict[str, Any]:
    return {
        "id": said.id,
        "project_id": f"{said.entity}/{said.project}",
        "weave_ref": said.ref,
        "feedback_type": said.type,
        "payload": said.payload,
        "creator": said.creator,
        "created_at": time_text(said.created_at),
        "wb_user_id": said.links.get("wb_user_id", ""),
        **said.links,
    }


def with_feedback(call: TracedCall, feedback: Feedbacks) -> dict[str, Any]:
    document = call_document(call)
    said = [feedback_document(one) for one in feedback.list(ref=call.ref, entity=call.entity, project=call.project)]
    summary = document["summary"]
    return {**document, "summary": {**summary, "weave": {**summary["weave"], "feedback": said}}}


def with_columns(document: Document, columns: Iterable[str] | None) -> Document:
    """Return the requested columns of a call, and those that every call has."""
    if not columns:
        return document
    wanted = {*ALWAYS_SHOWN, *(column.partition(".")[0] for column in columns)}
    return {**EMPTIED, **{name: value for name, value in document.items() if name in wanted}}


# ---- what queries ask ----------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class DocumentField(Expression):
    """A member of a document, and further names after dots. Times compare as seconds since 1970.

    `feedback.[<type>].<member>` is a member of the feedback of a type on a call, "" if there is none; `<type>` may end
    in `*`.
    """

    path: str

    def of(self, document: Any) -> Any:
        if self.path in ("started_at", "ended_at", "created_at"):
            text = document.get(self.path)
            return None if text is None else datetime.fromisoformat(text).timestamp()
        if self.needs_feedback:
            return self._feedback(document)
        return value_at(document, self.path)

    @property
    def needs_feedback(self) -> bool:
        """Whether it is a field of the feedback on a call."""
        return self.path.startswith("feedback.[")

    def _feedback(self, document: Any) -> Any:
        kind, _, rest = self.path.removeprefix("feedback.[").partition("]")
        for said in value_at(document, "summary.weave.feedback") or ():
            own = said["feedback_type"]
            if own == kind or (kind.endswith("*") and own.startswith(kind[:-1])):
                return value_at(said, rest.removeprefix("."))
        return ""


def condition_of(query: Mapping[str, Any] | None) -> tuple[Expression, bool]:
    if not query:
        return ALWAYS, False
    made: list[DocumentField] = []

    def field(path: str) -> DocumentField:
        made.append(DocumentField(path))
        return made[-1]

    with problems_at("body", "query"):
        condition = parse_query(query, field)
    return condition, any(one.needs_feedback for one in made)
