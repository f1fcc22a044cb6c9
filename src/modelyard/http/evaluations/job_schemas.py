"""Evaluations that workers run, as the clients of the evaluation interface request and follow them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.references import EVALUATION_KINDS, MODEL_KINDS, RefKind, RefMode, reference_problem
from modelyard.domain.evaluation.run import RunState, RunStatus
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length, Matching
from modelyard.http.message import answering

_NAME = r"(?!\.+(?:/|$))[A-Za-z0-9._-]{1,128}"
_place = Matching(rf"{_NAME}/{_NAME}", "must be <entity>/<project>")
_id = Length(1, 128)


# ---- requests


@attrs.frozen
class EvaluateModel:
    """The body that requests the evaluation of a model by a published evaluation."""

    project_id: str = attrs.field(validator=_place)
    evaluation_ref: str
    model_ref: str


@attrs.frozen
class Rescore:
    """The body that requests that the outputs of a run are scored again."""

    project_id: str = attrs.field(validator=_place)
    source_evaluation_run_id: str = attrs.field(validator=_id)
    scorer_refs: tuple[str, ...] = attrs.field(validator=Length(1, 100))


@attrs.frozen
class StatusOf:
    """The body that requests the status of a run."""

    project_id: str = attrs.field(validator=_place)
    call_id: str = attrs.field(validator=_id)


def check_references(body: EvaluateModel | Rescore) -> None:
    """Refuse members that are not references. Raises `InvalidInput` naming every one."""
    found = [
        Problem(("body", *loc), wrong.msg, wrong.type)
        for loc, text, kinds in _references(body)
        if (wrong := reference_problem("", text, kinds, RefMode.SYNTAX)) is not None
    ]
    if found:
        raise InvalidInput(found)


def _references(body: EvaluateModel | Rescore) -> list[tuple[tuple[str | int, ...], str, frozenset[RefKind]]]:
    if isinstance(body, Rescore):
        return [(("scorer_refs", at), text, MODEL_KINDS) for at, text in enumerate(body.scorer_refs)]
    return [
        (("evaluation_ref",), body.evaluation_ref, EVALUATION_KINDS),
        (("model_ref",), body.model_ref, MODEL_KINDS),
    ]


# ---- responses


@attrs.frozen
class EvaluationQueued:
    """The id of a run that waits for a worker."""

    call_id: str


@attrs.frozen
class RescoreQueued:
    """The id of a new run that waits for a worker, under both of its names."""

    call_id: str
    evaluation_run_id: str


@attrs.frozen
class EvaluationEventObject:
    """An event of a run that a worker runs. The data of an `evaluation_progress` are how far it has come."""

    id: str
    type: Literal["evaluation_started", "evaluation_progress", "evaluation_ended", "evaluation_failed"]
    data: Mapping[str, Any]
    created_at: datetime


show_event = answering(EvaluationEventObject)
"""Describes an event."""


@attrs.frozen
class StatusNotFound:
    """The run does not exist."""

    code: Literal["not_found"]


@attrs.frozen
class StatusRunning:
    """The run is under way, or waits for a worker."""

    code: Literal["running"]
    completed_rows: int
    total_rows: int


@attrs.frozen
class StatusFailed:
    """The run has failed or was cancelled."""

    code: Literal["failed"]
    error: str | None


@attrs.frozen
class StatusComplete:
    """The run has completed, with its summary."""

    code: Literal["complete"]
    output: Mapping[str, Any]


@attrs.frozen
class StatusAnswer:
    """How far a run has come."""

    status: StatusNotFound | StatusRunning | StatusFailed | StatusComplete


def status_answer(status: RunStatus) -> StatusAnswer:
    """Describe how far a run has come."""
    if status.run.state is RunState.RUNNING:
        return StatusAnswer(StatusRunning("running", status.completed_rows, status.total_rows))
    if status.run.state is RunState.COMPLETED:
        return StatusAnswer(StatusComplete("complete", status.run.summary or {}))
    return StatusAnswer(StatusFailed("failed", status.run.reason))
