"""Going on with a run: the job that does, and the functions that it needs again."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from modelyard.domain.job import Job, JobKind
from modelyard.errors import Conflict, InvalidInput, Problem
from modelyard.service.engine_row import check_takes
from modelyard.service.evaluation_job import Crew
from modelyard.service.evaluation_order import ModelFunction, crew_of
from modelyard.service.scorers import NamedScorer


def again(job: Job, job_id: str, asker: Mapping[str, Any], now: datetime) -> Job:
    """A new job that goes on, for an asker, where one that failed has ended.

    One that failed by its error budget had brought what was under way to its end, and its failures are forgiven.
    """
    spec = {**job.spec, **job.result, "asker": asker, "resumed": True, "drained": "forgiven" in job.result}
    return Job(job_id, job.kind, job.entity, job.project, job.lane, now, spec)


def check_portable(job: Job) -> None:
    """Raise `Conflict` for a job that needs functions, which no worker has."""
    if needs_model(job) or any(plain["rule"] is None for plain in job.spec["scorers"]):
        msg = "was begun with functions, which no worker has; resume it in Python, with the functions"
        raise Conflict(f"evaluation run {job.lane} {msg}")


def needs_model(job: Job) -> bool:
    """Whether the model of a job is a function."""
    return job.kind is JobKind.EVALUATE and job.spec["model"] is None


def functions_for(job: Job, model: ModelFunction | None, scorers: Sequence[NamedScorer]) -> Crew:
    """The functions that a job needs, out of those given. Raises `InvalidInput` for one that is missing or changed."""
    given = {scorer.name: scorer for scorer in scorers}
    problems, place = [], (job.entity, job.project)
    for plain in job.spec["scorers"]:
        scorer = given.get(plain["name"])
        if scorer is None and plain["rule"] is None:
            problems.append(Problem(("scorers", plain["name"]), "the run was begun with this function; give it again"))
        elif scorer is not None and str(scorer.ref(place)) != plain["ref"]:
            problems.append(
                Problem(("scorers", plain["name"]), "has changed since the run began; rescore the run instead")
            )
    if needs_model(job) and model is None:
        problems.append(Problem(("model",), "the run was begun with a function as its model; give it again"))
    if model is not None and not needs_model(job):
        problems.append(Problem(("model",), "the run needs no function: it goes on with the model that it names"))
    if problems:
        raise InvalidInput(problems)
    if model is not None:
        check_takes(model, ("row",), "model")
    return crew_of(model, scorers)
