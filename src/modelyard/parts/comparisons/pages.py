"""Pages of comparisons: the models of an evaluation with each other, and a run by its slices."""

from itertools import islice

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.errors import InvalidInput
from modelyard.parts.comparisons.service import MOST_RUNS
from modelyard.parts.comparisons.several import RunsComparison
from modelyard.parts.comparisons.sheet import Sheet, content
from modelyard.parts.comparisons.slices import run_slices
from modelyard.parts.dashboard.pages.rows import short_fields
from modelyard.parts.dashboard.view import HtmlPage, View, empty
from modelyard.parts.reports.headline import asked_of, labels_of
from modelyard.parts.reports.html import Html, joined, table, tag
from modelyard.report.numbers import model_text, ref_text

SEARCHED = 2000
_OF_ALL = "The newest run of each model, compared with those of the others."


def has_runs(view: View) -> bool:
    return len([*islice(view.platform.evaluations.runs.list_all(), 2)]) == 2


def listed(view: View) -> HtmlPage:
    found = [
        (view.link(ref_text(name), "comparisons", "evaluation", name=name), len(runs))
        for name, runs in _newest(view).items()
        if len(runs) > 1
    ]
    start = 'platform.evaluations.run_each("quiz", ["echo", "tabular-mini"], "rows.jsonl")'
    shown = table([("evaluation", ""), ("models", "number")], found, "narrow")
    content = shown if found else empty("No evaluation has runs of two models yet. Make them:", start)
    return HtmlPage("Comparisons", content, lead="Evaluations that several models have run: who is better than whom.")


def shown(view: View) -> HtmlPage:
    name = view.query.get("name", "")
    runs = list(_newest(view).get(name, {}).values())[:MOST_RUNS]
    if len(runs) < 2:
        nothing = empty("This evaluation has no two completed runs of different models.")
        return HtmlPage(f"Comparison on {ref_text(name)}" if name else "Comparison", nothing, lead=_OF_ALL)
    chosen = next((run for run in runs if run.id == view.query.get("baseline")), None)
    found = view.platform.evaluations.compare_all(runs, chosen)
    title = f"{ref_text(name)}: {found.sheet.title}"
    return HtmlPage(title, joined([_baselines(view, name, runs), content(_linked(view, found))]), lead=_OF_ALL)


def _linked(view: View, found: RunsComparison) -> Sheet:
    """Return the sheet of a comparison in which runs, and verdicts on pairs, lead to their pages."""
    runs, *pairs = found.sheet.tables
    names = [(view.link(label, "runs", found.runs[str(label)].id), *rest) for label, *rest in runs.lines]
    tables = [attrs.evolve(runs, lines=names)]
    for one in pairs:
        lines = [(*line[:-1], _compared(view, found, *map(str, (line[1], line[2], line[-1])))) for line in one.lines]
        tables.append(attrs.evolve(one, lines=lines))
    return attrs.evolve(found.sheet, tables=tables)


def _compared(view: View, found: RunsComparison, candidate: str, baseline: str, verdict: str) -> Html:
    return view.link(verdict, "compare", baseline=found.runs[baseline].id, candidate=found.runs[candidate].id)


def _baselines(view: View, name: str, runs: list[EvaluationRun]) -> Html:
    named = zip(labels_of(runs), runs, strict=True)
    links = [view.link(label, "comparisons", "evaluation", name=name, baseline=run.id) for label, run in named]
    every = view.link("all pairs", "comparisons", "evaluation", name=name)
    return tag("p", "Compare ", every, " or with ", *(part for link in links for part in (link, " ")))


def _newest(view: View) -> dict[str, dict[tuple[object, ...], EvaluationRun]]:
    """Return the newest completed run of each model by evaluations; rescorings by other scorers are runs of their own
    kind, and only those of the newest run's scorer are compared."""
    found: dict[str, dict[tuple[object, ...], EvaluationRun]] = {}
    scorers: dict[str, str] = {}
    for run in islice(view.platform.evaluations.runs.list_all(order="desc"), SEARCHED):
        scorer = str((run.summary or {}).get("scorer"))
        if run.state is RunState.COMPLETED and scorers.setdefault(run.evaluation, scorer) == scorer:
            found.setdefault(run.evaluation, {}).setdefault(asked_of(run), run)
    return found


def sliced(view: View) -> HtmlPage:
    run = view.platform.evaluations.runs.get(view.params["run"])
    field = view.query.get("field", "")
    fields = short_fields(view.platform.evaluations.result(run.id).rows)
    links = [view.link(name, "runs", run.id, "by", field=name) for name in fields]
    offered = tag("p", *(part for link in links for part in (link, " ")), kind="filters") if links else ""
    form = tag(
        "form",
        tag("input", name="field", value=field, placeholder="a field of the rows", aria_label="Field"),
        tag("button", "Show its slices"),
        method="get",
    )
    back = joined([tag("p", view.link("The run", "runs", run.id)), offered])
    name = f"Slices of {model_text(run)} on {ref_text(run.evaluation)}"
    lead = "The scores of a run by the values of a field of its rows."
    if not field:
        return HtmlPage(name, joined([back, form]), lead=lead)
    try:
        found = run_slices(view.platform.evaluations.report(run), field)
    except InvalidInput as error:
        problem = tag("p", str(error), kind="problem", role="alert")
        return HtmlPage(name, joined([back, form, problem]), status=error.status, lead=lead)
    return HtmlPage(found.sheet.title, joined([back, form, content(found.sheet)]), lead=lead)
