"""Where checkpoints come from, and what became of them: one checkpoint, and the data of a model."""

from collections import defaultdict
from collections.abc import Sequence

from modelyard.domain.models import Checkpoint, Model, Retention
from modelyard.domain.promotion import TrainedStep
from modelyard.parts.annotations.pages import notes
from modelyard.parts.dashboard.pages.training_facts import trained_facts
from modelyard.parts.dashboard.view import (
    HtmlPage,
    View,
    dataset_link,
    duration,
    name_text,
    short_id,
    status_chip,
    when,
    whole_number,
)
from modelyard.parts.reports.html import Html, chip, facts, html, joined, section, shortened, table
from modelyard.report.numbers import NONE, ref_text, score_text

MOST = 100
SHORT = 10


def checkpoint(view: View) -> HtmlPage:
    found = view.platform.models.lineage(view.params["model"], whole_number(view.params["step"], "step"))
    one, made = found.checkpoint, found.steps[0]
    pairs: list[tuple[str, object]] = [
        ("model", view.link(name_text(f"{found.model.project}/{found.model.name}"), "models", found.model.id)),
        ("base model", view.link(found.model.base_model, "catalogue", found.model.base_model)),
        ("made by", _job(view, made)),
        ("data", _data(view, made)),
        *trained_facts(view, made.job_id),
        ("trained from", NONE if found.parent_step is None else _step(view, found.model, found.parent_step)),
        ("aliases", joined(chip(name) for name in found.aliases) or NONE),
        ("offered as", joined(_entry(view, name) for name in found.entries) or NONE),
        ("created", when(one.created_at)),
        ("digest", shortened(one.digest[:SHORT], one.digest)),
    ]
    numbers = [(name, f"{value:.4g}") for name, value in one.metrics.items()]
    runs = [
        (view.link(ref_text(run.evaluation), "runs", run.id), status_chip(run.state), score_text(run))
        for run in found.runs[:MOST]
    ]
    parents = [
        (_step(view, found.model, step.step), _job(view, step), _data(view, step)) for step in found.steps[1 : MOST + 1]
    ]
    content = joined(
        [
            facts(pairs),
            notes(view, one.id, "models", "models", found.model.id, one.step),
            section(
                "Evaluated by", table([("evaluation", ""), ("state", ""), ("score", "number")], runs) if runs else ""
            ),
            section("Metrics of the last step", facts(sorted(numbers)) if numbers else ""),
            section(
                "Trained from", table([("checkpoint", ""), ("made by", ""), ("data", "")], parents) if parents else ""
            ),
        ]
    )
    lead = "A checkpoint: where it comes from, how it scores, and what uses it."
    return HtmlPage(f"{found.model.name}, step {one.step}", content, lead=lead)


def _step(view: View, model: Model, step: int) -> Html:
    return view.link(f"step {step}", "models", model.id, step)


def _entry(view: View, name: str) -> Html:
    return view.link(name, "catalogue", name)


def _job(view: View, made: TrainedStep) -> Html:
    if made.deleted:
        return html("a checkpoint that was deleted")
    if made.job_id is None:
        return html("untrained base model")
    return view.link(joined([made.kind or "job", " ", short_id(made.job_id)]), "jobs", made.job_id)


def _data(view: View, made: TrainedStep) -> Html:
    if made.data_digest is None:
        return html(NONE)
    if made.data_url is not None:
        return dataset_link(view, made.data_url)
    return shortened(f"sha256 {made.data_digest[:SHORT]}…", made.data_digest)


# ---- of a model


def data(view: View, model: Model, steps: Sequence[Checkpoint]) -> Html:
    if not steps:
        return Html("")
    made: defaultdict[str, list[TrainedStep]] = defaultdict(list)
    for step in view.platform.models.lineage(model, steps[-1].step).steps:
        if step.data_digest is not None:
            made[step.data_digest].append(step)
    lines = [(_data(view, found[0]), joined(_spaced(view, model, found))) for found in made.values()]
    return table([("data", ""), ("checkpoints made from it", "")], lines) if lines else Html("")


def _spaced(view: View, model: Model, found: Sequence[TrainedStep]) -> Sequence[object]:
    return [part for one in found for part in (_step(view, model, one.step), " ")]


def kept_by(rules: Retention | None) -> str:
    if rules is None:
        return "all checkpoints"
    best = "lowest" if rules.lower_is_better else "highest"
    parts = [
        f"the last {rules.keep_last}" if rules.keep_last is not None else "",
        f"the {rules.keep_best} with the {best} {rules.metric}" if rules.keep_best is not None else "",
        f"those younger than {duration(rules.ttl)}" if rules.ttl is not None else "",
    ]
    named = [part for part in parts if part]
    return f"{', '.join(named)}; and what is pinned, aliased, offered or in use" if named else "all checkpoints"
