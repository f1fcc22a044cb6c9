"""Runs that Tinker's clients drive: all of them, and one with its curves, its checkpoints and its client."""

from collections.abc import Iterator, Mapping, Sequence

from modelyard.domain.models import Model
from modelyard.domain.record import FOR_EVER
from modelyard.errors import NotFound
from modelyard.parts.dashboard.pages.jobs import POINTS, job_curves
from modelyard.parts.dashboard.view import HtmlPage, View, empty, lasted, name_text, short_id, when
from modelyard.parts.reports.html import Html, chip, facts, joined, section, table, tag
from modelyard.parts.reports.inline_chart import sparkline
from modelyard.parts.tinker.records import FutureStatus, RunCommand, RunWeights, TrainingRun, WeightsKind
from modelyard.platform.training.metrics import MetricRow
from modelyard.report.numbers import NONE, count_text

PAGE = 25
DRAWN = 40
"""About how many steps of each run are drawn in the list."""

MOST_COMMANDS = 25
"""How many of a run's commands are listed, the last of them."""

MOST_WEIGHTS = 100
"""How many of a run's checkpoints are listed, the last of them."""


def has_run(view: View) -> bool:
    return next(iter(view.platform.compat.training_runs.listing()), None) is not None


def listed(view: View) -> HtmlPage:
    page = view.platform.compat.training_runs.listing().page(PAGE, view.query.get("after"))
    columns = [("run", ""), ("model", ""), ("base model", "brief"), ("state", "brief"), ("steps", "number")]
    columns += [("loss", "choice"), ("last command", "choice"), ("created", "choice")]
    shown = table(columns, [_line(view, run) for run in page])
    more = view.link("Older runs", "tinker", after=page.items[-1].id) if page.has_more else ""
    content = joined([shown if page.items else _nothing(), tag("p", more)])
    lead = "Trainings that programs drive, step by step, with Tinker's client."
    return HtmlPage("Tinker runs", content, live=not view.query.get("after"), lead=lead)


def _nothing() -> Html:
    start = 'tinker.ServiceClient(base_url=..., api_key="tml-...").create_lora_training_client("tabular-mini")'
    return empty("No run yet. Begin one with Tinker's client:", start)


def _line(view: View, run: TrainingRun) -> Sequence[object]:
    return (
        view.link(short_id(run.id), "tinker", run.id),
        _model(view, run),
        run.base_model,
        _state(run),
        count_text(run.steps),
        _loss(view, run),
        when(view.platform.compat.training_runs.last_request(run)),
        when(run.created_at),
    )


def _state(run: TrainingRun) -> Html:
    return chip("ended") if run.ended else chip("open", "live")


def _loss(view: View, run: TrainingRun) -> Html:
    losses = [
        row.values["loss"] for row in view.platform.compat.training_runs.metrics(run, DRAWN) if "loss" in row.values
    ]
    return joined([Html(sparkline(losses)), tag("small", f"{losses[-1]:.4g}")]) if losses else Html(NONE)


def _model(view: View, run: TrainingRun) -> Html:
    try:
        model: Model = view.platform.models.get(run.model_id)
    except NotFound:
        return Html(NONE)
    return view.link(name_text(f"{model.project}/{model.name}"), "models", model.id)


# ---- one run -----------------------------------------------------------------------------------------------------


def run(view: View) -> HtmlPage:
    runs = view.platform.compat.training_runs
    found = runs.get(view.params["run"])
    steps = runs.metrics(found, POINTS)
    drawn = job_curves([("", steps)], "optimizer step")
    content = joined(
        [
            facts(_facts(view, found, steps)),
            section("Curves", drawn or tag("p", "No optimizer step has been made yet.")),
            section("Checkpoints", _weights(view, found, runs.weights.of_run(found.id))),
            section("Last commands", _commands(runs.last_commands(found, MOST_COMMANDS))),
            section("Metadata", _metadata(found.metadata)),
        ]
    )
    lead = "A training that a program drives: its curves, what it saved, and its last commands."
    return HtmlPage(f"Tinker run of {found.base_model}", content, live=not found.ended, lead=lead)


def _facts(view: View, run: TrainingRun, steps: Sequence[MetricRow]) -> Iterator[tuple[str, object]]:
    runs = view.platform.compat.training_runs
    session = runs.sessions.get(run.session_id).session
    yield "state", joined([_state(run), " ", run.ended])
    yield "model", _model(view, run)
    yield "base model", run.base_model
    layers = [name.removeprefix("train_") for name in ("train_attn", "train_mlp", "train_unembed") if run.adapter[name]]
    yield "adapter", f"rank {run.adapter['rank']}, on {', '.join(layers)}"
    yield "optimizer steps", count_text(run.steps)
    yield "trained tokens", _tokens(run, steps)
    yield "commands applied", count_text(run.applied + 1)
    yield "last command", when(runs.last_request(run))
    yield (
        "client",
        joined([tag("bdi", session.display_name), " ", session.sdk_version]) if session.sdk_version else NONE,
    )
    yield "client last seen", when(session.seen_at)
    yield "created", when(run.created_at)
    yield "job", view.link(short_id(run.job_id), "jobs", run.job_id)
    yield "id", run.id


def _tokens(run: TrainingRun, steps: Sequence[MetricRow]) -> str:
    """Return the tokens of all steps; about as many if only some of the steps were read."""
    tokens = [row.values.get("num_trainable_tokens", 0) for row in steps]
    if len(tokens) in (0, run.steps):
        return count_text(int(sum(tokens)))
    return f"about {count_text(round(sum(tokens) / len(tokens) * run.steps))}"


def _commands(commands: Sequence[RunCommand]) -> Html:
    columns = [
        ("", "number"),
        ("command", "brief"),
        ("status", "brief"),
        ("came", "brief"),
        ("took", "number"),
        ("error", "text"),
    ]
    lines = [
        (
            one.number,
            one.kind.replace("_", " "),
            chip(one.status, "live" if one.status is FutureStatus.PENDING else ""),
            when(one.created_at),
            lasted(one.created_at, one.ended_at),
            one.error,
        )
        for one in commands
    ]
    return table(columns, lines)


def _weights(view: View, run: TrainingRun, saved: Sequence[RunWeights]) -> Html:
    if not saved:
        return tag("p", "Nothing has been saved yet.")
    columns = [("path", ""), *((name, "choice") for name in ("for", "checkpoint", "size", "saved", "expires"))]
    lines = [
        (
            tag("code", one.path),
            "training" if one.kind is WeightsKind.STATE else "sampling",
            view.link(f"step {one.step}", "models", run.model_id, one.step),
            f"{count_text(one.size)} B",
            when(one.created_at),
            "never" if one.expires_at == FOR_EVER else when(one.expires_at),
        )
        for one in reversed(saved[-MOST_WEIGHTS:])
    ]
    return table(columns, lines)


def _metadata(metadata: Mapping[str, object]) -> Html:
    return facts(metadata.items()) if metadata else Html("")
