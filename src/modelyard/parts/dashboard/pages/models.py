"""Models: all of them, and one with its checkpoints, aliases and where they come from."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import Page
from modelyard.parts.annotations.pages import annotated, annotated_cell, notes
from modelyard.parts.annotations.records import AnnotatedKind, Annotation
from modelyard.parts.dashboard.pages import lineage
from modelyard.parts.dashboard.pages.keys import key_text
from modelyard.parts.dashboard.view import (
    HtmlPage,
    Redirect,
    View,
    empty,
    name_text,
    requirement_fields,
    requirement_of,
    short_id,
    status_chip,
    verdict_chip,
    when,
    whole_number,
)
from modelyard.parts.reports.curves import curves
from modelyard.parts.reports.html import Html, chip, facts, folded, joined, section, table, tag
from modelyard.parts.reports.line_plot import Series
from modelyard.parts.reports.training_plots import metric_order
from modelyard.platform.lineage import runs_on
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot
from modelyard.report.numbers import NONE, ref_text, score_text

LEAD = "What is trained here. Each model has checkpoints; an alias such as prod says which one answers."

PAGE = 50
MOST_CHECKPOINTS = 200
MOST_RUNS = 20
SEARCHED = 2000
"""How many of the newest models are searched."""

SHOWN_METRICS = 4
CHUNK = 2**16


def listed(view: View) -> HtmlPage:
    query, models = view.query.get("q", ""), view.platform.models.list(order="desc")
    page = Page(_searched(view, models, query), False) if query else models.page(PAGE, view.query.get("after"))
    known = view.platform.annotations.of(model.id for model in page)
    lines = [_line(view, model, known.get(model.id)) for model in page]
    columns = [
        ("model", ""),
        ("base model", "brief"),
        ("last step", "number"),
        ("aliases", "brief"),
        ("created", "brief"),
    ]
    start = 'platform.models.create("support", project="bots", base_model="tabular-mini")'
    nothing = empty("No model found.") if query else empty("No model yet. Make one:", start)
    shown = table(columns, lines) if lines else nothing
    more = view.link("Older models", "models", after=page.items[-1].id) if page.has_more else ""
    return HtmlPage("Models", joined([_search(view, query), shown, tag("p", more)]), lead=LEAD)


def _search(view: View, query: str) -> Html:
    words, label = "name, tag or note", "Search models"
    field = tag("input", type="search", name="q", value=query, placeholder=words, size=28, aria_label=label)
    return tag("form", field, tag("button", "Search"), method="get", action=view.url("models"), role="search")


def _searched(view: View, models: Iterable[Model], query: str) -> tuple[Model, ...]:
    wanted, known = query.casefold(), annotated(view, AnnotatedKind.MODEL, query)
    return tuple(
        one for one in islice(models, SEARCHED) if one.id in known or wanted in f"{one.project}/{one.name}".casefold()
    )[:PAGE]


def _line(view: View, model: Model, known: Annotation | None) -> Sequence[object]:
    aliases = [chip(f"{one.name}: step {one.step}") for one in view.platform.models.aliases(model)]
    name = view.link(name_text(_name(model, view.host)), "models", model.id)
    cell = annotated_cell(view, name, known, "models")
    return (cell, model.base_model, model.last_step, joined(aliases), when(model.created_at))


def _name(model: Model, host: bool) -> str:
    return f"{model.entity}/{model.project}/{model.name}" if host else f"{model.project}/{model.name}"


# ---- one model


def model(view: View) -> HtmlPage:
    found = view.platform.models.get(view.params["model"])
    steps = [*islice(view.platform.models.checkpoints(found, order="desc"), MOST_CHECKPOINTS)][::-1]
    other = view.platform.models.get(view.query["with"]) if view.query.get("with") else None
    pairs = [
        ("base model", found.base_model),
        ("answers as", tag("code", f"{found.entity}/{found.project}/{found.name}")),
        ("created", when(found.created_at)),
        ("keeps", lineage.kept_by(view.platform.models.get_retention(found))),
        ("id", found.id),
    ]
    content = joined(
        [
            facts(pairs),
            notes(view, found.id, "models", "models", found.id),
            section("Evaluated by", _runs(view, found, steps)),
            section("Metrics by checkpoint", _overlay(view, found, steps, other), _compare_with(view, found)),
            section("Aliases", _aliases(view, found)),
            section("Checkpoints", _checkpoints(view, found, steps)),
            section("Data", lineage.data(view, found, steps)),
        ]
    )
    lead = f"A model trained from {found.base_model}: how it scores, how it was trained, and what answers for it."
    return HtmlPage(_name(found, view.host), content, live=True, lead=lead)


def _overlay(view: View, model: Model, steps: Sequence[Checkpoint], other: Model | None) -> Html:
    lines = [(model.name, steps)]
    if other is not None:
        lines.append((other.name, [*islice(view.platform.models.checkpoints(other), MOST_CHECKPOINTS)]))
    names = {name for _, found in lines for one in found for name in one.metrics}
    metrics = {name: [_series(label, name, found) for label, found in lines] for name in names}
    return curves(metrics, "checkpoint") or tag("p", "No checkpoint has metrics yet.")


def _series(label: str, name: str, steps: Sequence[Checkpoint]) -> Series:
    return Series(label, [(one.step, one.metrics[name]) for one in steps if name in one.metrics])


def _compare_with(view: View, model: Model) -> Html:
    others = [one for one in islice(view.platform.models.list(order="desc"), PAGE) if one.id != model.id]
    if not others:
        return Html("")
    options = [
        tag("option", _name(one, view.host), value=one.id, selected=one.id == view.query.get("with")) for one in others
    ]
    select = tag("select", tag("option", "no other", value=""), *options, name="with", id="with")
    label = tag("label", "Draw together with ", for_="with")
    return tag("form", label, select, tag("button", "Draw"), method="get", action=view.url("models", model.id))


def _aliases(view: View, model: Model) -> Html:
    lines = []
    for alias in view.platform.models.aliases(model):
        back = view.action("Roll back", "models", model.id, "rollback", alias=alias.name, confirm="Roll back?")
        shown = back if alias.previous_step is not None else ""
        lines.append((alias.name, f"step {alias.step}", when(alias.updated_at), shown))
    known = table([("alias", ""), ("points to", ""), ("since", ""), ("", "")], lines, "narrow") if lines else ""
    return joined([known or tag("p", "No alias yet."), _promote(view, model), _history(view, model)])


def _promote(view: View, model: Model) -> Html:
    if not view.token:
        return Html("")
    fields = [
        tag("label", "Point ", tag("input", name="alias", value="prod", required=True, size=10)),
        tag(
            "label", " at step ", tag("input", name="step", type="number", min=0, value=model.last_step, required=True)
        ),
        *requirement_fields(view),
        tag("button", "Promote", type="submit", kind="primary"),
    ]
    return view.form_to("models", model.id, "promote", content=fields)


def _history(view: View, model: Model) -> Html:
    lines = [
        (
            one.number,
            one.change,
            one.alias,
            NONE if one.step is None else one.step,
            verdict_chip(one.verdict),
            key_text(view, one.by),
            when(one.created_at),
        )
        for alias in view.platform.models.aliases(model)
        for one in islice(view.platform.models.promotions(model, alias.name, order="desc"), MOST_RUNS)
    ]
    columns = [
        ("", "number"),
        ("change", ""),
        ("alias", ""),
        ("to step", "number"),
        ("verdict", ""),
        ("by", ""),
        ("when", ""),
    ]
    return folded("History", table(columns, lines)) if lines else Html("")


def _checkpoints(view: View, model: Model, steps: Sequence[Checkpoint]) -> Html:
    names = metric_order({name for one in steps for name in one.metrics})[:SHOWN_METRICS]
    columns = [
        ("checkpoint", ""),
        *((name, "number") for name in names),
        ("made by", ""),
        ("files", ""),
        ("created", ""),
    ]
    return table(columns, [_checkpoint(view, model, one, names) for one in reversed(steps)])


def _checkpoint(view: View, model: Model, one: Checkpoint, names: Sequence[str]) -> Sequence[object]:
    values = [f"{one.metrics[name]:.4g}" if name in one.metrics else NONE for name in names]
    made_by = view.link(short_id(one.job_id), "jobs", one.job_id) if one.job_id else "untrained base model"
    files = [view.link(name, "models", model.id, one.step, name) for name in one.files]
    step = view.link(f"step {one.step}", "models", model.id, one.step)
    pinned = joined([" ", chip("pinned")]) if one.pinned else ""
    return (
        joined([step, pinned]),
        *values,
        made_by,
        joined(part for file in files for part in (file, " ")),
        when(one.created_at),
    )


def _evaluated(model: Model, runtime: Runtime, principal: Principal) -> list[tuple[int, EvaluationRun]]:
    """Return the runs on the newest steps of a model, of checkpoints that were deleted, too."""

    def query(snapshot: Snapshot) -> list[tuple[int, EvaluationRun]]:
        steps = range(model.last_step, max(model.last_step - MOST_RUNS, -1), -1)
        found = ((step, run) for step in steps for run in islice(runs_on(snapshot, model, step), MOST_RUNS))
        return [(step, run) for step, run in found if principal.scope.covers(run.entity, run.project)]

    return runtime.store.read(query)


def _runs(view: View, model: Model, steps: Sequence[Checkpoint]) -> Html:
    there = {one.step for one in steps}
    lines = [
        (
            f"step {step}" if step in there else f"step {step}, deleted",
            view.link(ref_text(run.evaluation), "runs", run.id),
            status_chip(run.state),
            score_text(run),
        )
        for step, run in view.platform.part(partial(_evaluated, model))
    ]
    return (
        table([("step", "brief"), ("evaluation", "brief"), ("state", "brief"), ("score", "number brief")], lines)
        if lines
        else Html("")
    )


# ---- actions


def promote(view: View) -> Redirect:
    step = whole_number(view.form.get("step", ""), "step")
    alias, require = view.form.get("alias", "prod"), requirement_of(view)
    view.platform.models.promote(view.params["model"], step, alias, require=require)
    return Redirect(view.url("models", view.params["model"]))


def roll_back(view: View) -> Redirect:
    view.platform.models.rollback(view.params["model"], view.form.get("alias", "prod"))
    return Redirect(view.url("models", view.params["model"]))


def download(view: View) -> Iterator[bytes]:
    return _chunks(view, whole_number(view.params["step"], "step"), view.params["file"])


def _chunks(view: View, step: int, name: str) -> Iterator[bytes]:
    with view.platform.models.open_file(view.params["model"], step, name) as file:
        while chunk := file.read(CHUNK):
            yield chunk
