"""The first page: what runs, what failed last, what is in production, what it costs, and whether all is well."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate, islice

from modelyard.domain.events import CALLER_LEFT
from modelyard.domain.job import JobStatus, JobSummary
from modelyard.domain.models import Model
from modelyard.domain.promotion import Alias
from modelyard.parts.dashboard.pages.jobs import running_line, subject
from modelyard.parts.dashboard.pages.usage import budget_bar
from modelyard.parts.dashboard.view import (
    LONGEST_MESSAGE,
    HtmlPage,
    View,
    begun,
    empty,
    money,
    name_text,
    verdict_chip,
    when,
)
from modelyard.parts.reports.html import Html, chip, facts, joined, section, shortened, table, tag
from modelyard.platform.meters import BOUNDS
from modelyard.report.numbers import NONE, count_text, id_text

LEAD = "What runs, what failed, what is in production, and what it costs."

MOST = 10
"""How many rows of a kind are shown."""

LOOKED_AT = 200
"""How many of the newest jobs and models are looked at."""


def home(view: View) -> HtmlPage:
    newest = list(islice(view.platform.jobs.list(order="desc"), LOOKED_AT))
    running = list(islice(view.platform.jobs.list(status=JobStatus.RUNNING), MOST))
    if not newest and not running and _is_new(view):
        steps = _first_steps() if view.host else _first_links(view)
        return HtmlPage("Home", joined([steps, _answers(view), _health(view)]), live=True, lead=LEAD)
    parts = [
        _running(view, running),
        _queue(view, [job for job in newest if job.status is JobStatus.QUEUED]),
        _failed(view, [job for job in newest if job.status is JobStatus.FAILED][: MOST // 2]),
        _production(view),
        _spent(view),
        _answers(view),
        _slowest(view),
        _health(view),
    ]
    return HtmlPage("Home", joined(parts), live=True, lead=LEAD)


def _is_new(view: View) -> bool:
    models, usage = view.platform.models, view.platform.usage
    if models.list().page(1).items or usage.list().page(1).items:
        return False
    return not usage.total()[0].requests  # what was asked when there are rows no more


def _first_steps() -> Html:
    """Say how to begin where nothing was done yet, each step as a command to copy."""
    steps = (
        ("Ask a model.", 'modelyard ask echo "Good morning"'),
        ("Make a key for an application, and serve it.", "modelyard keys create --entity acme && modelyard serve"),
        ("Train, evaluate and promote a small model, in the folder quickstart.", "modelyard quickstart"),
    )
    shown = (
        joined([tag("p", f"{at}. {words}"), tag("pre", tag("code", line))]) for at, (words, line) in enumerate(steps, 1)
    )
    more = ("For another store than yard.db in their folder, add --store. ", " lists what to read next.")
    docs = tag("code", "modelyard docs")
    return section("Begin here", *shown, tag("p", more[0], docs, more[1], kind="quiet"))


def _first_links(view: View) -> Html:
    """Say how to begin to somebody who has a key and no machine."""
    call = tag("p", "1. Call a model: choose one in the ", view.link("catalogue", "catalogue"), ", which shows how.")
    train = tag("p", "2. Train one of your own: ", view.link("models", "models"), " shows the line that makes it.")
    look = tag("p", "3. Evaluate it: ", view.link("runs", "runs"), " shows the line, and then how it scored.")
    return section("Begin here", call, train, look)


def _running(view: View, jobs: Sequence[JobSummary]) -> Html:
    columns = [("job", ""), ("works on", ""), ("curve", ""), ("progress", ""), ("time left", ""), ("started", "")]
    shown = table(columns, [running_line(view, job) for job in jobs]) if jobs else empty("No job is running.")
    return section("Running now", shown)


def _queue(view: View, jobs: Sequence[JobSummary]) -> Html:
    if not jobs:
        return Html("")
    reasons = sorted({job.waiting_for for job in jobs if job.waiting_for})
    link = view.link(f"{count_text(len(jobs))} queued", "jobs", status="queued")
    return section("Queue", tag("p", link), *(tag("p", f"waiting for {reason}") for reason in reasons))


def _failed(view: View, jobs: Sequence[JobSummary]) -> Html:
    lines = [
        (
            view.link(job.kind, "jobs", job.id),
            subject(view, job),
            when(job.ended_at),
            begun(job.error_message or "", LONGEST_MESSAGE),
        )
        for job in jobs
    ]
    return (
        section(
            "Failed last",
            table([("job", "brief"), ("works on", "brief"), ("ended", "brief"), ("reason", "text")], lines),
        )
        if lines
        else Html("")
    )


def _production(view: View) -> Html:
    models = islice(view.platform.models.list(order="desc"), LOOKED_AT)
    promoted = [(model, alias) for model in models for alias in view.platform.models.aliases(model)]
    lines = [_alias_line(view, model, alias) for model, alias in promoted[:MOST]]
    columns = [("model", ""), ("alias", "brief"), ("step", "number"), ("verdict", "brief"), ("since", "brief")]
    return section("In production", table(columns, lines)) if lines else Html("")


def _alias_line(view: View, model: Model, alias: Alias) -> Sequence[object]:
    last = next(iter(view.platform.models.promotions(model, alias.name, order="desc")), None)
    name = view.link(name_text(f"{model.project}/{model.name}"), "models", model.id)
    return (name, alias.name, alias.step, verdict_chip(last.verdict if last else {}), when(alias.updated_at))


def _spent(view: View) -> Html:
    usage, today = view.platform.usage, view.now.replace(hour=0, minute=0, second=0, microsecond=0)
    pairs: list[tuple[str, object]] = [
        ("today", _cost(view, today)),
        ("this month", _cost(view, today.replace(day=1))),
        ("last 30 days", _cost(view, today - timedelta(days=29))),
    ]
    budget = usage.get_budget() if view.principal.entity else None
    if budget is not None:
        pairs.append((joined(["budget of ", name_text(budget.entity)]), budget_bar(budget)))
    return section("Spend", facts(pairs), tag("p", view.link("By model, key and day", "usage")))


def _cost(view: View, since: datetime) -> str:
    (total,) = view.platform.usage.total(since=since)
    return f"{money(total.cost)} for {count_text(total.requests)} requests"


def _answers(view: View) -> Html:
    """Show how many requests failed in this process, and how long whole answers took, by the buckets of the metrics."""
    metrics = getattr(view.platform, "metrics", None) if view.host else None
    if metrics is None:
        return Html("")
    meters = metrics.count()
    with meters.lock:
        models = [*meters.models.values()]
        statuses = sum((Counter(meter.requests) for meter in models), Counter[int]())
        counts = [sum(bucket) for bucket in zip(*(meter.seconds.counts for meter in models), strict=True)]
    ended = statuses.total()
    failed = sum(count for status, count in statuses.items() if status >= 400 and status != CALLER_LEFT)
    if not ended:
        return Html("")
    pairs: list[tuple[str, object]] = [
        ("requests", count_text(ended)),
        ("failed", f"{count_text(failed)} ({failed / ended * 100:.1f} %)"),
        ("half of the answers within", _within(counts, 0.5)),
        ("95 % within", _within(counts, 0.95)),
    ]
    words = "Answers of the process that shows this page, since it began to count; /metrics of each process has more."
    return section("Answers", facts(pairs), tag("p", words, kind="quiet"))


def _slowest(view: View) -> Html:
    """Show the slowest answers of a day, of all processes."""
    metrics = getattr(view.platform, "metrics", None) if view.host else None
    slowest = metrics.slowest(MOST // 2, since=view.now - timedelta(days=1)) if metrics is not None else ()
    columns = [("took", "number"), ("model", ""), ("project", ""), ("tokens", "number"), ("at", ""), ("id", "")]
    lines = [
        (
            f"{one.seconds:.3g} s",
            name_text(one.model),
            name_text(f"{one.entity}/{one.project}"),
            f"{count_text(one.prompt_tokens)} + {count_text(one.completion_tokens)}",
            when(one.ended_at),
            shortened(id_text(one.id), one.id),
        )
        for one in slowest
    ]
    return section("Slowest answers of 24 hours", table(columns, lines)) if lines else Html("")


def _within(counts: Sequence[int], part: float) -> str:
    """Return the upper bound of the bucket that this part of the times ends in."""
    total = sum(counts)
    below = list(accumulate(counts))
    if not total:
        return NONE
    bucket = next(at for at, count in enumerate(below) if count >= part * total)
    return f"{BOUNDS[bucket]:g} s" if bucket < len(BOUNDS) else f"more than {BOUNDS[-1]:g} s"


def _health(view: View) -> Html:
    if not view.host:
        return Html("")
    check = view.platform.health.system_check()
    parts = [("store", check.store), ("artifacts", check.artifacts), ("worker", check.worker), ("queue", check.queue)]
    pairs: list[tuple[str, object]] = [
        (name, joined([chip("ok", "better") if part.success else chip("fault", "worse"), f" {part.error or ''}"]))
        for name, part in parts
        if not (name == "worker" and check.idle)
    ]
    pairs += [("workers alive", count_text(check.workers)), ("version", check.version)]
    pairs.append(("stored in", f"{check.store_engine or NONE} {check.store_version or ''}"))
    return section("Health", facts(pairs))
