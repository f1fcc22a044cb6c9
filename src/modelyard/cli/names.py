"""Names instead of ids: how the commands find a key, a run, and the subject of a job."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import click

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import ApiKey
from modelyard.domain.job import JobKind, JobSummary
from modelyard.errors import ModelyardError
from modelyard.platform.platform import Platform
from modelyard.report.numbers import id_text, ref_text

SEARCHED = 5000
SHORTEST = 6
EVALUATIONS = frozenset({JobKind.EVALUATE, JobKind.RESCORE})

RUN_HELP = "RUN is an id, its last characters, an evaluation whose newest run it is, or EVALUATION@MODEL."


def key_named(platform: Platform, text: str) -> ApiKey:
    found = [key for key in platform.keys.list() if text in (key.id, key.prefix, key.name)]
    alive = [key for key in found if key.revoked_at is None] or found
    if len(alive) != 1:
        many = f"{len(alive)} keys have" if alive else "no key has"
        raise click.ClickException(f"{many} the id, the name or the beginning {text}; modelyard keys list shows all")
    return alive[0]


def run_named(platform: Platform, text: str) -> EvaluationRun:
    evaluation, _, model = text.partition("@")
    end = text.removeprefix("…")  # as tables show it
    for run in islice(platform.evaluations.runs.list_all(order="desc"), SEARCHED):
        if text == run.id or (len(end) >= SHORTEST and run.id.endswith(end)):
            return run
        if _is(evaluation, run.evaluation) and (not model or _is(model, run.model)):
            return run
    raise click.ClickException(f"there is no run {text}; modelyard runs list shows them")


def _is(name: str, reference: str) -> bool:
    shown = ref_text(reference)
    return name in (reference, shown, shown.partition(":")[0])


def run_title(run: EvaluationRun) -> str:
    return f"{ref_text(run.evaluation)}@{ref_text(run.model)}"


def own_name(platform: Platform, one: Any) -> str:
    """Return the name of a model or a sweep as commands take it: with its entity unless it is the caller's own."""
    entity = "" if one.entity == platform.principal.entity else f"{one.entity}/"
    return f"{entity}{one.project}/{one.name}"


def subject_names(platform: Platform, jobs: Iterable[JobSummary]) -> Mapping[str, str]:
    """Return the names of what jobs work on, by their ids: the runs of a project are read at once, each model once."""
    runs = defaultdict[tuple[str, str], set[str]](set)
    for job in jobs:
        if job.kind in EVALUATIONS:
            runs[job.entity, job.project].add(job.subject)
    names: dict[str, str] = {}
    for (entity, project), ids in runs.items():
        names |= {
            run.id: run_title(run) for run in platform.evaluations.runs.list(entity=entity, project=project, ids=ids)
        }
    for subject in {job.subject for job in jobs}.difference(*runs.values()):
        try:
            model = platform.models.get(subject)
        except ModelyardError:
            continue
        names[subject] = own_name(platform, model)
    return {job.subject: names.get(job.subject) or id_text(job.subject) for job in jobs}
