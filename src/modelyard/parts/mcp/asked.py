"""What the tools are asked: a class of arguments for each, whose fields say what they mean."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.job import JobStatus
from modelyard.formats.constraints import Within
from modelyard.http.body_schemas import JsonSchema
from modelyard.platform.models.promotion import PROD


def _said(text: str, default: Any = None, **more: Any) -> Any:
    return attrs.field(default=default, metadata=_meant(text), **more)


def _meant(text: str) -> Mapping[str, JsonSchema]:
    return {"schema": {"description": text}}


def _needed(text: str, **more: Any) -> Any:
    return _said(text, attrs.NOTHING, **more)


_JOB = "The id of a job or a run, or a model, whose last training job it is."


@attrs.frozen(kw_only=True)
class Paged:
    """A page of a list."""

    after: str | None = _said("The `next` of the page before.")
    limit: int = _said("Items at most.", 20, validator=Within(1, 100))


@attrs.frozen(kw_only=True)
class AskModels(Paged):
    """Trainable models, of one project or all."""

    project: str | None = _said("The project.")


@attrs.frozen(kw_only=True)
class AskModel(Paged):
    """A trainable model, by its name."""

    model: str = _needed("project/name, entity/project/name, or an id.")


@attrs.frozen(kw_only=True)
class AskJobs(Paged):
    """Jobs of some kind, that stand in some way."""

    status: JobStatus | None = attrs.field(default=None, metadata=_meant("Only those that stand so."))
    kind: str | None = _said("Only of this kind, such as sft, rl or evaluate.")
    project: str | None = _said("The project.")


@attrs.frozen(kw_only=True)
class AskJob:
    """A job, however it is named."""

    job: str = _needed(_JOB)


@attrs.frozen(kw_only=True)
class AskEvents(Paged):
    """A page of what has happened to a job."""

    job: str = _needed(_JOB)


@attrs.frozen(kw_only=True)
class AskMetrics(AskJob):
    """Numbers of a job by its steps."""

    points: int = _said("Steps at most, evenly spaced.", 50, validator=Within(2, 500))


@attrs.frozen(kw_only=True)
class AskRun:
    """A run, however it is named."""

    run: str = _needed("An id, its last characters, an evaluation whose newest run it is, or EVALUATION@MODEL.")


@attrs.frozen(kw_only=True)
class AskRows(AskRun):
    """Rows of a run, from a place on."""

    after: str | None = _said("The `next` of the page before.")
    limit: int = _said("Rows at most.", 10, validator=Within(1, 100))
    errors: bool = _said("Only those on which the model or a scorer failed.", False)


@attrs.frozen(kw_only=True)
class AskComparison:
    """Runs to compare with each other."""

    runs: tuple[str, ...] = _needed("Two to twenty runs, each named as for `run`.")
    baseline: str | None = _said("Compare each with this run only.")
    lower_is_better: tuple[str, ...] = _said("Metrics of which less is better.", ())


@attrs.frozen(kw_only=True)
class AskImprovement:
    """An improvement, however it is named."""

    improvement: str = _needed("Its id, or project/name; `jobs` of the kind improve are all.")


@attrs.frozen(kw_only=True)
class AskUsage:
    """What was used, and when."""

    by: tuple[Literal["entity", "project", "model", "key", "day"], ...] = _said("Groups of the sums.", ("model",))
    since: datetime | None = attrs.field(default=None, metadata=_meant("From this time on, in ISO 8601 with a zone."))
    until: datetime | None = attrs.field(default=None, metadata=_meant("Before this time."))
    month: str | None = _said("A month in UTC, such as 2026-11.")
    after: str | None = _said("The `next` of the page before.")
    limit: int = _said("Sums at most.", 50, validator=Within(1, 100))


@attrs.frozen(kw_only=True)
class AskDocs:
    """A topic of the docs."""

    topic: str = _said("The name of a page, or a few words; all pages without one.", "")
    after: str | None = _said("The `next` of the part before.")


@attrs.frozen(kw_only=True)
class DoEvaluate:
    """A model, and what it is evaluated by."""

    evaluation: str = _needed("The name of a published evaluation; with rows, a name for this one.")
    model: str = _needed("The model, as completions name it.")
    rows: str | None = _said("A file of rows (.csv, else JSON Lines) or a dataset.")
    scorers: tuple[str, ...] = _said("Types of scorers, such as exact_match.", ())
    project: str | None = _said("The project.")
    trials: int | None = _said("How often each row is answered.")
    options: Mapping[str, Any] = _said("More of the run or its completions, such as temperature.", {})


@attrs.frozen(kw_only=True)
class DoSteer:
    """A run that workers evaluate, and what is asked of it."""

    run: str = _needed("An id, its last characters, an evaluation whose newest run it is, or EVALUATION@MODEL.")
    action: Literal["pause", "resume", "requeue", "limits", "rows"] = _needed("What to do.")
    indices: tuple[int, ...] | None = _said("To requeue these rows, not those that have failed.")
    limits: Mapping[str, Any] = _said("concurrency, scorer_concurrency, timeout, retries or error_budget.", {})
    rows: str | None = _said("A file of rows (.csv, else JSON Lines) or a dataset, to add.")


@attrs.frozen(kw_only=True)
class DoCreate:
    """A new model and its base."""

    model: str = _needed("project/name or entity/project/name.")
    base_model: str = _needed("The model that training starts from.")


@attrs.frozen(kw_only=True)
class DoTrain:
    """A model, data, and the method."""

    method: Literal["sft", "dpo", "distill", "rl"] = _needed("How it learns from the data.")
    model: str = _needed("project/name, entity/project/name, or an id.")
    data: str = _needed("A file of JSON Lines, or the URL of a dataset.")
    options: Mapping[str, Any] = _said("Settings of the method, such as learning_rate.", {})
    idempotency_key: str | None = _said("The same request with the same key makes one job only.")


@attrs.frozen(kw_only=True)
class DoImprove:
    """A variant, tasks, and the roads to try."""

    target: str = _needed("The variant, such as project/name@3.")
    tasks: str = _needed("A file of rows (.csv, else JSON Lines) or a dataset.")
    reward: str | Mapping[str, Any] = _needed("A scorer: its type, its reference, or as data.")
    roads: tuple[str | Mapping[str, Any], ...] = _needed(
        'Of sft, rl, {"road": "prompt", "reflection": MODEL} and {"road": "distil", "teacher": MODEL}, with options.'
    )
    budget: str | None = _said("USD that the roads may spend together.")
    name: str | None = _said("Its name.")
    idempotency_key: str | None = _said("The same request with the same key makes one only.")


@attrs.frozen(kw_only=True)
class DoPromote:
    """A checkpoint to serve, and its gate."""

    model: str = _needed("project/name, entity/project/name, or an id.")
    step: int = _needed("The step of the checkpoint.")
    evaluation: str = _needed("It must not be worse by its run of this than what the alias points to.")
    alias: str = _said("The alias that moves.", PROD)


@attrs.frozen(kw_only=True)
class DoRollOut:
    """A step that comes to users in stages."""

    model: str = _needed("project/name, or variants/project/name.")
    step: int = _needed("The step, or the version.")
    alias: str = _said("Whose users get it.", PROD)
    margin: float = _said("By how much thumbs may be worse.", 0.02)
    also: Mapping[str, float] = _said("The most of errors, p95 (seconds), cost (USD).", attrs.Factory(dict))
    shadow: str | None = _said("Mirror first, for so long, such as 1h.")


@attrs.frozen(kw_only=True)
class DoRollBack:
    """An alias that is to go back."""

    model: str = _needed("project/name, entity/project/name, or an id.")
    alias: str = _said("The alias that moves back.", PROD)
