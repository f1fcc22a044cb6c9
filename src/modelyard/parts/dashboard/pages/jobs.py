"""Jobs: all of them, and one with its live curves."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from modelyard.domain.job import JobStatus, JobSummary
from modelyard.domain.record import Page
from modelyard.domain.training import STEPS, TrainingJob
from modelyard.errors import NotFound
from modelyard.parts.annotations.pages import annotated, annotated_cell, notes
from modelyard.parts.annotations.records import AnnotatedKind, Annotation
from modelyard.parts.batches.records import BATCH_JOB
from modelyard.parts.dashboard.pages.training_facts import trained_facts
from modelyard.parts.dashboard.view import (
    LONGEST_MESSAGE,
    HtmlPage,
    Redirect,
    View,
    bar,
    begun,
    dataset_link,
    duration,
    empty,
    lasted,
    name_text,
    short_id,
    status_chip,
    when,
)
from modelyard.parts.reports.curves import curves
from modelyard.parts.reports.html import Html, chip, facts, html, joined, section, shortened, table, tag
from modelyard.parts.reports.inline_chart import sparkline
from modelyard.parts.reports.line_plot import Series
from modelyard.parts.reports.training_plots import has_rounds, metric_order
from modelyard.parts.responses.records import RESPONSE_JOB
from modelyard.parts.tinker.records import COMMANDS_JOB
from modelyard.parts.traffic.records import COLLECT_JOB
from modelyard.platform.training.metrics import MetricRow
from modelyard.platform.training.trajectories import ShownTrajectory, TrajectorySummary
from modelyard.report.numbers import NONE, count_text, ref_text

LEAD = "What works in the background: trainings, evaluations, batches, and answers that nobody waits for."

PAGE = 50
SEARCHED = 1000
"""How many of the newest jobs are searched for words."""

POINTS = 600
"""About how many steps of a job are read for its curves."""

MOST_ROUNDS = 100
"""How many rounds of a loop are listed."""

_OF_ROUNDS = ("reward", "held_out", "checkpoint", "zero_variance_groups", "failed_rollouts")


def listed(view: View) -> HtmlPage:
    status = JobStatus(view.query["status"]) if view.query.get("status") in [*JobStatus] else None
    query, kind = view.query.get("q", ""), view.query.get("kind", "")
    kind = kind if kind in view.platform.job_types else ""
    jobs = view.platform.jobs.list(order="desc", status=status, kind=kind or None)
    page = Page(_searched(view, jobs, query), False) if query else jobs.page(PAGE, view.query.get("after"))
    known = view.platform.annotations.of(job.id if _trains(view, job) else job.subject for job in page)
    columns = [(name, "brief") for name in ("job", "works on", "status", "progress", "created")]
    lines = [_line(view, job, known.get(job.id) or known.get(job.subject)) for job in page]
    nothing = empty("No job found.") if query + kind else _nothing(status)
    shown = table([*columns, ("took", "number brief")], lines) if lines else nothing
    after = {"status": status, "kind": kind, "after": page.items[-1].id} if page.has_more else {}
    more = view.link("Older jobs", "jobs", **after) if after else ""
    among = tag("p", _order(query, kind), kind="quiet") if lines else ""
    content = joined([_search(view, query, kind, status), _filters(view, kind, status), among, shown, tag("p", more)])
    return HtmlPage("Jobs", content, live=not view.query.get("after"), lead=LEAD)


def _order(query: str, kind: str) -> str:
    found = f", found among the newest {count_text(SEARCHED)}{f' of {kind}' if kind else ''}" if query else ""
    return f"The newest first{found}."


def _filters(view: View, kind: str, status: JobStatus | None) -> Html:
    """Choose a status, and a kind of those that the platform knows."""
    kinds = sorted(view.platform.job_types)
    states = _choices(view, "status", [*JobStatus], status or "", lambda one: {"status": one, "kind": kind})
    return joined([states, _choices(view, "kind", kinds, kind, lambda one: {"status": status, "kind": one})])


def _choices(
    view: View, name: str, known: Iterable[str], chosen: str, query: Callable[[str], Mapping[str, object]]
) -> Html:
    links = [
        tag("b", one or "all") if one == chosen else view.link(one or "all", "jobs", **query(one))
        for one in ("", *known)
    ]
    return tag("p", f"{name}: ", *(part for link in links for part in (link, " ")), kind="filters")


def _search(view: View, query: str, kind: str, status: JobStatus | None) -> Html:
    words = "tag, note, model or message"
    field = tag("input", type="search", name="q", value=query, placeholder=words, size=28, aria_label="Search jobs")
    kept = [
        tag("input", type="hidden", name=name, value=one) for name, one in (("kind", kind), ("status", status)) if one
    ]
    return tag("form", field, *kept, tag("button", "Search"), method="get", action=view.url("jobs"), role="search")


def _searched(view: View, jobs: Iterable[JobSummary], query: str) -> tuple[JobSummary, ...]:
    wanted, newest = query.casefold(), islice(jobs, SEARCHED)
    known = annotated(view, AnnotatedKind.JOB, query) | annotated(view, AnnotatedKind.RUN, query)
    models = islice(view.platform.models.list(order="desc"), SEARCHED)
    named = {one.id for one in models if wanted in f"{one.project}/{one.name}".casefold()}

    def fits(job: JobSummary) -> bool:
        said = f"{job.kind} {job.error_message or ''}".casefold()
        return job.id in known or job.subject in known or job.subject in named or wanted in said

    return tuple(islice(filter(fits, newest), PAGE))


def _nothing(status: JobStatus | None) -> Html:
    if status is not None:
        return empty(f"No {status} job.")
    return empty("No job yet. Start one:", 'platform.training.sft("bots/support", "examples.jsonl")')


def _line(view: View, job: JobSummary, known: Annotation | None) -> Sequence[object]:
    message = job.error_message or (f"waiting for {job.waiting_for}" if job.waiting_for else "")
    return (
        _name(view, job),
        annotated_cell(view, subject(view, job), known, "jobs", begun(message, LONGEST_MESSAGE)),
        status_chip(job.status),
        progress(job.progress, job.total),
        when(job.created_at),
        lasted(job.started_at, job.ended_at),
    )


def _name(view: View, job: JobSummary) -> Html:
    return view.link(joined([job.kind, " ", tag("small", short_id(job.id))]), "jobs", job.id)


def _trains(view: View, job: JobSummary) -> bool:
    return view.platform.job_types[job.kind].trains


def subject(view: View, job: JobSummary) -> Html:
    """Return a link to what a job works on."""
    if job.subject == job.id:
        return html(NONE)
    if job.kind in (BATCH_JOB, COLLECT_JOB, RESPONSE_JOB):
        return short_id(job.subject)
    if not (_trains(view, job) or job.kind == COMMANDS_JOB):
        return _run(view, job.subject)
    try:
        model = view.platform.models.get(job.subject)
    except NotFound:
        return short_id(job.subject)
    return view.link(name_text(f"{model.project}/{model.name}"), "models", model.id)


def _run(view: View, id: str) -> Html:
    try:
        run = view.platform.evaluations.runs.get(id)
    except NotFound:
        return short_id(id)
    return view.link(
        joined([name_text(ref_text(run.evaluation)), " ", tag("small", name_text(ref_text(run.model)))]), "runs", id
    )


def progress(step: int, total: int | None) -> Html:
    return bar(step, total, f"{count_text(step)} of {count_text(total)}") if total else html(NONE)


def running_line(view: View, job: JobSummary) -> Sequence[object]:
    rows = view.platform.training.job(job.id).metrics(60) if _trains(view, job) else []
    shown = next(iter(metric_order(rows[-1].values)), None) if rows else None
    values = [row.values[shown] for row in rows if shown in row.values] if shown else []
    last = f"{shown} {values[-1]:.4g}" if values else NONE
    left = _left(view.platform.training.get(job.id), view) if _trains(view, job) else NONE
    drawing = joined([Html(sparkline(values)), tag("small", last)])
    return (
        _name(view, job),
        subject(view, job),
        drawing,
        progress(job.progress, job.total),
        left,
        when(job.started_at),
    )


def _left(job: TrainingJob, view: View) -> str:
    return NONE if job.estimated_end is None else duration((job.estimated_end - view.now).total_seconds())


# ---- one job


def job(view: View) -> HtmlPage:
    found = view.platform.jobs.get(view.params["job"])
    if found.kind == COLLECT_JOB:
        content = _summary(view, found, _collected(view, found.id))
        return HtmlPage("Collection", content, live=found.ended_at is None, lead=_LEADS[found.kind])
    if not _trains(view, found):
        return _other(view, found)
    training = view.platform.training.get(found.id)
    rows, loop = view.platform.training.job(found.id).metrics(POINTS), has_rounds(training)
    drawn = job_curves([("", rows)], "round" if loop else "optimizer step")
    content = joined(
        [
            _summary(view, found, [*_training_facts(view, training), *trained_facts(view, found.id)]),
            notes(view, found.id, "jobs", "jobs", found.id),
            section("Curves", drawn or tag("p", _silence(found))),
            section("Rounds", _rounds(view, training, rows)) if loop else "",
            section("Trajectories", trajectories(view.platform.training.job(found.id).trajectories())),
            section("Configuration", facts(_settings(training.config))),
            section("Last events", _events(view, found.id)),
        ]
    )
    title = " of ".join([_NAMES.get(found.kind, f"{found.kind.upper()} job"), *_model_names(view, found)])
    return HtmlPage(title, content, live=found.ended_at is None, lead=_LEADS.get(found.kind, ""))


_NAMES: Mapping[str, str] = {"distill": "Distillation", "loop": "Training loop"}

_LEADS: Mapping[str, str] = {
    "sft": "A training on examples of good answers.",
    "rl": "A training on answers with rewards: what earned more than the others of its group becomes likelier.",
    "distill": "A training on answers that a teacher has read: each token as likely as the teacher finds it.",
    "dpo": "A training on pairs of a better and a worse answer.",
    "loop": "A training in rounds: the model is asked, its answers are rewarded, and it learns from them.",
    "prompt": "Texts are tried on tasks, and a model that reads the answers writes the next one.",
    "improve": "Several roads to better answers are gone, and compared on rows that none of them has seen.",
    "evaluate": "A model answers the rows of an evaluation, and its answers are scored.",
    "rescore": "Another scorer looks at the answers that an evaluation run has.",
    COLLECT_JOB: "A dataset is made of answers that are stored.",
    BATCH_JOB: "The requests of a file are answered, line by line.",
    RESPONSE_JOB: "A request is answered, and nobody waits for it.",
    COMMANDS_JOB: "What Tinker's client sends is applied, step by step.",
    "what_if": "Requests that are stored are asked again, of another model.",
}
"""What a job of a kind is."""


def _other(view: View, found: JobSummary) -> HtmlPage:
    """Return the page of a job that trains nothing, with a link to what it makes if that has a page."""
    to: Sequence[object] = ()
    title = f"{found.kind.capitalize().replace('_', ' ')} job"
    if found.kind == COMMANDS_JOB:
        title = " of ".join([title, *_model_names(view, found)])
        to = ("tinker", view.platform.compat.training_runs.of_job(found.id).id)
    elif found.kind == "improve":
        to = ("improvements", found.id)
    elif found.kind not in (BATCH_JOB, RESPONSE_JOB) and found.subject != found.id:
        to = ("runs", found.subject)
        title = _run_name(view, found) or title
    link = tag("p", view.link("To the improvement" if found.kind == "improve" else "To the run", *to)) if to else ""
    content = joined([_summary(view, found, []), link])
    return HtmlPage(title, content, live=found.ended_at is None, lead=_LEADS.get(found.kind, ""))


def _run_name(view: View, job: JobSummary) -> str:
    """Return what an evaluation job does, by the names of the model and the evaluation; "" if its run was deleted."""
    with suppress(NotFound):
        run = view.platform.evaluations.runs.get(job.subject)
        done = "Rescoring" if job.kind == "rescore" else "Evaluation"
        return f"{done} of {ref_text(run.model)} on {ref_text(run.evaluation)}"
    return ""


def _model_names(view: View, job: JobSummary) -> Iterator[str]:
    """Yield the name of the model of a training, unless it was deleted."""
    with suppress(NotFound):
        model = view.platform.models.get(job.subject)
        yield f"{model.project}/{model.name}"


def _collected(view: View, job_id: str) -> Iterator[tuple[str, object]]:
    """Yield what a collection has made, and the job that trains on it."""
    made = view.platform.traffic.job(job_id).refresh()
    yield "dataset", f"{made.entity}/{made.project}/{made.name}"
    for name, side in (("to train on", made.train), ("held out", made.held_out)):
        if side is not None:
            yield (
                name,
                joined([dataset_link(view, side.url), f", {count_text(side.rows)} row{'' if side.rows == 1 else 's'}"]),
            )
    if made.left_out:
        yield "left out", ", ".join(f"{reason} {count_text(count)}" for reason, count in made.left_out.items())
    if made.training_job_id is not None:
        trained = joined(["job ", short_id(made.training_job_id)])
        yield "trained by", view.link(trained, "jobs", made.training_job_id)


def _settings(config: Mapping[str, object], within: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings of a job that are not None, nested settings under the names of both."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{within}{name}.")
        elif value is not None:
            yield f"{within}{name}", value


def _silence(job: JobSummary) -> str:
    if job.status is JobStatus.QUEUED:
        return f"The job is queued, and waits for {job.waiting_for or 'its turn'}."
    return "No step has been recorded yet." if job.ended_at is None else "The job ended without a step."


def _summary(view: View, job: JobSummary, more: Iterable[tuple[str, object]]) -> Html:
    status = [status_chip(job.status), " ", job.error_message or ""]
    pairs: list[tuple[str, object]] = [
        ("status", joined(status)),
        ("works on", subject(view, job)),
        ("progress", progress(job.progress, job.total)),
        ("created", when(job.created_at)),
        ("started", when(job.started_at)),
        ("ended", when(job.ended_at)),
        ("took", lasted(job.started_at, job.ended_at)),
        ("attempts", job.attempts),
        *more,
        ("id", job.id),
    ]
    stop = view.action("Cancel the job", "jobs", job.id, "cancel", confirm="Cancel this job?", kind="danger")
    return joined([facts(pairs), "" if job.ended_at else stop])


def _training_facts(view: View, job: TrainingJob) -> list[tuple[str, object]]:
    checkpoint = NONE if job.step is None else view.link(f"step {job.step}", "models", job.model_id)
    pairs: list[tuple[str, object]] = [("best checkpoint" if has_rounds(job) else "checkpoint", checkpoint)]
    if job.loop_id is not None:
        pairs.append(("round of", view.link(joined(["loop ", short_id(job.loop_id)]), "jobs", job.loop_id)))
    if job.stop_reason is not None and job.error_message is None:
        pairs.append(("stopped by", job.stop_reason))
    if job.status is JobStatus.RUNNING:
        pairs += [("time left", _left(job, view)), ("last heartbeat", when(job.last_heartbeat))]
    if job.queue_position is not None:
        pairs.append(("jobs ahead of it", job.queue_position))
    return pairs


def job_curves(jobs: Sequence[tuple[str, Sequence[MetricRow]]], x_label: str) -> Html:
    """Draw the metrics of jobs, each of which is a label and its rows."""
    names = {name for _, rows in jobs for row in rows for name in row.values} - {"checkpoint"}
    metrics = {
        name: [
            Series(label or name, [(row.step, row.values[name]) for row in rows if name in row.values])
            for label, rows in jobs
        ]
        for name in names
    }
    return curves(metrics, x_label)


def _rounds(view: View, loop: TrainingJob, rows: Sequence[MetricRow]) -> Html:
    newest = islice(view.platform.training.list(model=loop.model_id, order="desc"), MOST_ROUNDS)
    jobs = {one.step: one for one in newest if one.loop_id == loop.id}
    columns = [("round", "number"), *((name, "number") for name in _OF_ROUNDS), ("trained by", "")]
    lines = []
    for row in reversed(rows[-MOST_ROUNDS:]):
        job = jobs.get(row.values.get("checkpoint"))
        by = NONE if job is None else view.link(short_id(job.id), "jobs", job.id)
        numbers = (f"{row.values[name]:.4g}" if name in row.values else NONE for name in _OF_ROUNDS)
        lines.append((row.step or "start", *numbers, by))
    return table([(name.replace("_", " "), kind) for name, kind in columns], lines) if lines else Html("")


def trajectories(found: TrajectorySummary | None) -> Html:
    """Return the best and the worst trajectories of a job, and how many of its groups teach nothing."""
    if found is None:
        return Html("")
    flat = found.zero_variance
    groups = "1 group" if found.groups == 1 else f"{count_text(found.groups)} groups"
    text = f"{groups}; in {count_text(flat)} of them every reward is the same"
    mark = joined([" ", chip("nothing to learn", "worse")]) if flat else ""
    numbers = ", ".join(map(str, found.zero_variance_groups))
    more = "" if len(found.zero_variance_groups) == flat else " and others"
    named = tag("p", f"Groups without a difference: {numbers}{more}", kind="quiet") if flat else ""
    columns = [("", ""), ("reward", "number"), ("group", ""), ("asked", "text"), ("answered", "text")]
    said = any(one.logs for one in (*found.best, *found.worst))
    columns += [("logs", "text")] if said else []
    lines = [_trajectory(name, one, found, said) for name in ("best", "worst") for one in getattr(found, name)]
    shown = table(columns, lines) if lines else ""
    return joined([tag("p", text, mark), named, shown])


def _trajectory(name: str, one: ShownTrajectory, found: TrajectorySummary, said: bool) -> Sequence[object]:
    flat = chip("no difference", "worse") if one.group in found.zero_variance_groups else ""
    group = joined([one.group, " ", flat])
    logs = ["\n".join(one.logs)] if said else []
    which = chip(name, "better" if name == "best" else "")
    return (which, f"{one.reward:.4g}", group, tag("pre", one.asked), tag("pre", one.answered), *logs)


def _events(view: View, job_id: str) -> Html:
    events = [*islice(view.platform.training.events(job_id, order="desc"), 15)]
    lines = [(when(one.created_at), one.type, _numbers(one.data) if one.type in STEPS else one.data) for one in events]
    columns = [("time", ""), ("event", ""), ("data", "text")]
    return table(columns, [(a, b, _data(c)) for a, b, c in lines]) if lines else Html("")


def _numbers(data: object) -> object:
    assert isinstance(data, dict) or hasattr(data, "items")
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in data.items()}


def _data(data: object) -> Html:
    text = _pairs(data) if isinstance(data, Mapping) else ""
    return shortened(text if len(text) <= 300 else f"{text[:300]}…", text)


def _pairs(data: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in data.items())


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"({_pairs(value)})"
    return ", ".join(map(_value, value)) if isinstance(value, list | tuple) else str(value)


def cancel(view: View) -> Redirect:
    view.platform.jobs.cancel(view.params["job"])
    return Redirect(view.url("jobs", view.params["job"]))
