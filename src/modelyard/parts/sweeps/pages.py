"""The pages of sweeps: all of them, and one with its trials."""

from functools import partial
from itertools import islice

from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, dataset_link, empty, name_text, when
from modelyard.parts.reports.html import Html, joined, table
from modelyard.parts.sweeps.drawing import sweep_content
from modelyard.parts.sweeps.handle import SweepHandle
from modelyard.parts.sweeps.records import number
from modelyard.parts.sweeps.results import best_trial
from modelyard.parts.sweeps.service import Sweeps

SHOWN = 50


def has_sweep(view: View) -> bool:
    return next(iter(view.platform.part(Sweeps).list()), None) is not None


def listed(view: View) -> HtmlPage:
    found = [_line(view, one) for one in islice(view.platform.part(Sweeps).list(), SHOWN)]
    columns = [("sweep", ""), ("trials", "number"), ("ended", "number"), ("best held-out loss", "number"), ("made", "")]
    start = 'platform.training.sweep("desk/support", "answers.jsonl", learning_rate=[1e-5, 1e-4], epochs=[1, 2])'
    shown = table(columns, found) if found else empty("No sweep yet. Start one:", start)
    lead = "One training for each combination of options: which trains best."
    return HtmlPage("Sweeps", joined([shown]), live=True, lead=lead)


def _line(view: View, sweep: SweepHandle) -> tuple[object, ...]:
    record, trials = sweep.record, sweep.table()
    best = best_trial(record, trials)
    ended = sum(one.status not in ("queued", "running") for one in trials)
    link = view.link(name_text(f"{record.project}/{record.name}"), "sweeps", record.id)
    return link, len(trials), ended, number(best.score if best else None), when(record.created_at)


def shown(view: View) -> HtmlPage:
    sweep = view.platform.part(Sweeps).get(view.params["sweep"])
    record, trials = sweep.record, sweep.table()
    running = any(one.status in ("queued", "running") for one in trials)
    best = best_trial(record, trials)
    shown = sweep_content(record, trials, best, partial(_model, view), partial(dataset_link, view))
    stop = view.action("Cancel", "sweeps", record.id, "cancel", confirm="Cancel every trial?") if running else ""
    return HtmlPage(
        f"{record.project}/{record.name}",
        joined([shown, stop]),
        live=True,
        lead="A training for each combination of options, the best first: that with the lowest held-out loss.",
    )


def _model(view: View, name: str) -> Html:
    return view.link(name_text(name if view.host else name.partition("/")[2]), "models", name)


def cancel(view: View) -> Redirect:
    view.platform.part(Sweeps).get(view.params["sweep"]).cancel()
    return Redirect(view.url("sweeps", view.params["sweep"]))
