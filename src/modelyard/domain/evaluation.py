"""Evaluation runs and the references that tie them to what was judged (specification 2.3, 4.5)."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

import attrs

from modelyard.domain.record import Index, Record, frozen_mapping
from modelyard.errors import RunAlreadyFinished


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# A failed run goes on under the same id when it is resumed.
RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset({RunState.RUNNING}),
    RunState.CANCELLED: frozenset(),
}


def check_run_transition(now: RunState, then: RunState) -> None:
    """Raise `RunAlreadyFinished` unless a run may go from `now` to `then`."""
    if then not in RUN_TRANSITIONS[now]:
        raise RunAlreadyFinished(f"the evaluation run is {now} and takes no more; rescore it to make a new run")


class RefKind(StrEnum):
    """What a reference points to."""

    OBJECT = "object"
    OP = "op"
    CALL = "call"
    TABLE = "table"


_REF = re.compile(
    r"(?:weave|modelyard):///(?P<entity>[A-Za-z0-9._-]{1,128})/(?P<project>[A-Za-z0-9._-]{1,128})/"
    r"(?P<kind>object|op|call|table)/(?P<name>[\w.-]{1,128})(?::(?P<version>[\w-]{1,128}))?"
    r"(?P<extra>(?:/(?:attr|key|index|id)/(?:[\w.~-]|%[0-9A-Fa-f]{2}){1,512}){0,32})"
)


@attrs.frozen
class ObjectRef:
    """`weave:///<entity>/<project>/<kind>/<name>[:<version>]` and any path into the object, taken apart."""

    entity: str
    project: str
    kind: RefKind
    name: str
    version: str | None = None
    path: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "ObjectRef | None":
        """The reference's parts, or None when it is no reference."""
        found = _REF.fullmatch(text)
        if found is None or (found["kind"] in ("call", "table") and found["version"]):
            return None
        words = found["extra"].split("/")[1:]
        path = tuple((words[at], unquote(words[at + 1])) for at in range(0, len(words), 2))
        return cls(found["entity"], found["project"], RefKind(found["kind"]), found["name"], found["version"], path)


class RefMode(StrEnum):
    """How strictly a reference is taken: any text; it must parse and be of the right kind; it must exist here."""

    LENIENT = "lenient"
    SYNTAX = "syntax"
    RESOLVE = "resolve"


@attrs.frozen
class EvaluationRun:
    """One judging of one model. `source_evaluation_run_id` is its provenance when it was made by rescoring."""

    id: str
    entity: str
    project: str
    evaluation: str
    model: str
    started_at: datetime
    state: RunState = RunState.RUNNING
    finished_at: datetime | None = None
    summary: Mapping[str, Any] | None = attrs.field(converter=attrs.converters.optional(frozen_mapping), default=None)
    source_evaluation_run_id: str | None = None
    source_known: bool | None = None
    reason: str | None = None

    @property
    def status(self) -> str:
        """The wire's word: a cancelled run reads as failed, with its reason."""
        return RunState.FAILED.value if self.state is RunState.CANCELLED else self.state.value


RECORDS = (
    Record(
        EvaluationRun,
        "evaluation_runs",
        ("id",),
        indexes={
            "by_entity": Index(("entity",), ("started_at",)),
            "by_project": Index(("entity", "project"), ("started_at",)),
        },
    ),
)
