"""Jobs: all of them, and one with its live curves."""

from collections.abc import Iterable, Sequence
from itertools import islice

from modelyard.dashboard.view import HtmlPage, Redirect, View, bar, duration, empty, lasted, short_id, status_chip, when
from modelyard.domain.job import JobKind, JobStatus
from modelyard.domain.job_summary import JobSummary
from modelyard.domain.training import GRADIENT_STEP, TrainingJob
from modelyard.errors import NotFound
from modelyard.platform.training.metrics import MetricRow
from modelyard.report.html import Html, facts, html, joined, plots, section, shortened, table, tag
from modelyard.report.inline_chart import sparkline
from modelyard.report.line_plot import Panel, Plot, Series
from modelyard.report.numbers import NONE, count_text

PAGE = 50
POINTS = 600
"""About how many steps of a job are read for its curves."""

FIRST_CURVES = ("reward", "loss", "accuracy", "margin")
"""The curves that come first; the others follow by name."""

_TRAINING = frozenset({JobKind.SFT, JobKind.RL, JobKind.DPO})


def listed(view: View) -> HtmlPage:
    """Show jobs, the newest first."""
    status = JobStatus(view.query["status"]) if view.query.get("status") in [*JobStatus] else None
    page = view.platform.jobs.list(order="desc", status=status).page(PAGE, view.query.get("after"))
    chosen = [view.link("all", "jobs", kind="") if status else tag("b", "all")]
    chosen += [tag("b", one) if one is status else view.link(one, "jobs", status=one) for one in JobStatus]
    filters = tag("p", *(part for one in chosen for part in (one, " ")), kind="filters")
    columns = [("job", ""), ("works on", ""), ("status", ""), ("progress", ""), ("created", ""), ("took", "number")]
    lines = [_line(view, job) for job in page]
    shown = table([*columns, ("message", "text")], lines) if lines else _nothing(status)
    more = view.link("Older jobs", "jobs", status=status, after=page.items[-1].id) if page.has_more else ""
    return HtmlPage("Jobs", joined([filters, shown, tag("p", more)]), live=not view.query.get("after"))


def _nothing(status: JobStatus | None) -> Html:
    if status is not None:
        return empty(f"No job is {status}.")
    return empty("No job yet. Start one:", 'platform.training.sft("bots/support", "examples.jsonl")')


def _line(view: View, job: JobSummary) -> Sequence[object]:
    message = job.error_message or (f"waiting for {job.waiting_for}" if job.waiting_for else "")
    return (
        _name(view, job),
        subject(view, job),
        status_chip(job.status),
        progress(job.progress, job.total),
        when(job.created_at),
        lasted(job.started_at, job.ended_at),
        message,
    )


def _name(view: View, job: JobSummary) -> Html:
    return view.link(joined([job.kind, " ", tag("small", short_id(job.id))]), "jobs", job.id)


def subject(view: View, job: JobSummary) -> Html:
    """Return a link to what a job works on."""
    if job.kind not in _TRAINING:
        return view.link(joined(["run ", short_id(job.subject)]), "runs", job.subject)
    try:
        model = view.platform.models.get(job.subject)
    except NotFound:
        return short_id(job.subject)
    return view.link(f"{model.project}/{model.name}", "models", model.id)


def progress(step: int, total: int | None) -> Html:
    """Return how far a job has come."""
    return bar(step, total, f"{count_text(step)} of {count_text(total)}") if total else html(NONE)


def running_line(view: View, job: JobSummary) -> Sequence[object]:
    """Return what the first page shows of a running job."""
    rows = view.platform.training.job(job.id).metrics(60) if job.kind in _TRAINING else []
    shown = next((name for name in FIRST_CURVES if rows and name in rows[-1].values), None)
    values = [row.values[shown] for row in rows if shown in row.values] if shown else []
    last = f"{shown} {values[-1]:.4g}" if values else NONE
    left = _left(view.platform.training.get(job.id), view) if job.kind in _TRAINING else NONE
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
    """Show one job: its curves, how it stands, its configuration and its events."""
    found = view.platform.jobs.get(view.params["job"])
    if found.kind not in _TRAINING:
        content = joined([_summary(view, found, []), tag("p", view.link("To the run", "runs", found.subject))])
        return HtmlPage(f"{found.kind} job", content, live=found.ended_at is None)
    training = view.platform.training.get(found.id)
    rows = view.platform.training.job(found.id).metrics(POINTS)
    content = joined(
        [
            _summary(view, found, _training_facts(view, training)),
            section("Curves", curves([("", rows)]) or tag("p", _silence(found))),
            section(
                "Configuration", facts((name, value) for name, value in training.config.items() if value is not None)
            ),
            section("Last events", _events(view, found.id)),
        ]
    )
    return HtmlPage(f"{found.kind.upper()} job", content, live=found.ended_at is None)


def _silence(job: JobSummary) -> str:
    if job.status is JobStatus.QUEUED:
        return f"The job is queued, and waits for {job.waiting_for or 'its turn'}."
    return "No step has been recorded yet."


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
    pairs: list[tuple[str, object]] = [("checkpoint", checkpoint)]
    if job.status is JobStatus.RUNNING:
        pairs += [("time left", _left(job, view)), ("last heartbeat", when(job.last_heartbeat))]
    if job.queue_position is not None:
        pairs.append(("jobs ahead of it", job.queue_position))
    return pairs


def curves(jobs: Sequence[tuple[str, Sequence[MetricRow]]]) -> Html:
    """Draw every metric of the jobs, each in a plot, with a line for each job."""
    names = {name for _, rows in jobs for row in rows for name in row.values}
    ordered = [name for name in FIRST_CURVES if name in names] + sorted(names - {*FIRST_CURVES})
    drawings = []
    for name in ordered:
        lines = tuple(
            Series(label or name, [(row.step, row.values[name]) for row in rows if name in row.values])
            for label, rows in jobs
        )
        drawings.append(Plot(name, "optimizer step", (Panel("", lines),))._repr_html_())
    return plots(drawings)


def _events(view: View, job_id: str) -> Html:
    events = [*islice(view.platform.training.events(job_id, order="desc"), 15)]
    lines = [
        (when(one.created_at), one.type, _numbers(one.data) if one.type == GRADIENT_STEP else one.data)
        for one in events
    ]
    return table([("time", ""), ("event", ""), ("data", "text")], [(a, b, _data(c)) for a, b, c in lines])


def _numbers(data: object) -> object:
    assert isinstance(data, dict) or hasattr(data, "items")
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in data.items()}


def _data(data: object) -> Html:
    pairs = data.items() if hasattr(data, "items") else ()
    text = ", ".join(f"{name} {value}" for name, value in pairs)
    return shortened(text if len(text) <= 300 else f"{text[:300]}…", text)


def cancel(view: View) -> Redirect:
    """Cancel a job."""
    view.platform.jobs.cancel(view.params["job"])
    return Redirect(view.url("jobs", view.params["job"]))
