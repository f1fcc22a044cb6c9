"""Names instead of ids: how the commands find a key, a run, and the subject of a job."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import click

from modelyard.cli.terminal import C, names_once
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.job import JobKind, JobSummary
from modelyard.errors import ModelyardError, nearest
from modelyard.platform.platform import Platform
from modelyard.report.numbers import id_text, ref_text, run_title

SEARCHED = 5000
SHORTEST = 6
EVALUATIONS = frozenset({JobKind.EVALUATE, JobKind.RESCORE})

RUN_HELP = "RUN is an id, its last characters, an evaluation whose newest run it is, or EVALUATION@MODEL."


def parsed_option(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(f"{text!r} is not like learning_rate=1e-4")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def values_option(help: str) -> Callable[[C], C]:
    """Return the option `-o NAME=VALUE`, which may be given for several names."""
    more: Any = {"multiple": True, "type": parsed_option, "callback": names_once, "metavar": "NAME=VALUE"}
    return click.option("--option", "-o", "options", help=help, **more)


def run_named(platform: Platform, text: str) -> EvaluationRun:
    evaluation, _, model = text.partition("@")
    end = text.removeprefix("…")  # as tables show it
    known: set[str] = set()
    for run in islice(platform.evaluations.runs.list_all(order="desc"), SEARCHED):
        known.add(run_title(run))
        if text == run.id or (len(end) >= SHORTEST and run.id.endswith(end)):
            return run
        if _is(evaluation, run.evaluation) and (not model or _is(model, run.model)):
            return run
    raise click.ClickException(f"there is no run {text}{nearest(text, known)}; modelyard runs list shows them")


def _is(name: str, reference: str) -> bool:
    """Return whether a name is of a reference: alone, or after its project, or its entity and project."""
    shown, ref = ref_text(reference), ObjectRef.parse(reference)
    for place in ("",) if ref is None else ("", f"{ref.project}/", f"{ref.entity}/{ref.project}/"):
        if name in (f"{place}{shown}", f"{place}{shown.partition(':')[0]}"):
            return True
    return name == reference


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


def project_of(platform: Platform, models: Iterable[str]) -> str | None:
    """Return the project of these models if each is a trainable one, and all are of one project, else None."""
    projects: set[str | None] = set()
    for name in models:
        found = None
        with suppress(ModelyardError):
            found = platform.models.get(name.partition(":")[0]).project
        projects.add(found)
    return projects.pop() if len(projects) == 1 else None


def verdict_text(verdict: Mapping[str, Any]) -> str:
    return f": {verdict['outcome']}" if "outcome" in verdict else ""
