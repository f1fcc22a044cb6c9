"""Evaluation runs: all of them, the report of one, its rows, and two compared."""

from collections.abc import Mapping, Sequence
from itertools import islice

from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.parts.annotations.pages import annotated, annotated_cell, notes
from modelyard.parts.annotations.records import AnnotatedKind, Annotation
from modelyard.parts.dashboard.view import (
    HtmlPage,
    View,
    bar,
    begun,
    empty,
    lasted,
    name_text,
    short_id,
    status_chip,
    when,
)
from modelyard.parts.reports.comparison_page import comparison_content
from modelyard.parts.reports.headline import asked_of, labels_of
from modelyard.parts.reports.html import Html, facts, joined, section, shortened, table, tag
from modelyard.parts.reports.run_page import prompted, remarks_of, run_content, short_ref
from modelyard.report.numbers import (
    NONE,
    count_text,
    interval_text,
    model_text,
    primary_first,
    ref_text,
    score_text,
    scorer_text,
    stored_mean_text,
)

LEAD = "How models answered the rows of evaluations, and what their answers scored. Choose two runs to compare them."
_OF_RUN = "How a model did on an evaluation, and the rows on which it did worst."
_OF_TWO = "What the candidate does better or worse than the baseline, row by row."

PAGE = 50
SEARCHED = 2000
"""How many of the newest runs are searched."""

MOST_TRIALS = 2000
"""How many trials a run may have for the matrix to show the interval of its score."""


LONGEST_PROJECT = 24
"""How many characters of a project a heading of the matrix has."""

MOST_MEASURED = 6
"""How many evaluations the matrix shows, which fit side by side."""


def listed(view: View) -> HtmlPage:
    query, by_score = view.query.get("q", ""), view.query.get("sort") == "score"
    runs = view.platform.evaluations.runs.list_all(order="desc")
    if query or by_score:
        tagged = annotated(view, AnnotatedKind.RUN, query) if query else ()
        found = [
            run
            for run in islice(runs, SEARCHED)
            if run.id in tagged or query.lower() in f"{run.model} {run.evaluation}".lower()
        ]
        if by_score:
            found.sort(key=_best_first)
        shown, more = found[:PAGE], ""
    else:
        page = runs.page(PAGE, view.query.get("after"))
        shown, more = list(page), view.link("Older runs", "runs", after=page.items[-1].id) if page.has_more else ""
    start = 'platform.evaluations.run("quiz", "echo", "rows.jsonl", project="demo")'
    content = (
        _choice(view, shown)
        if shown
        else empty("No run found." if query else "No run yet. Make one:", *([] if query else [start]))
    )
    parts = [_search(view, query, by_score), content, tag("p", more), _matrix(view, shown)]
    return HtmlPage("Runs", joined(parts), lead=LEAD)


def _best_first(run: EvaluationRun) -> tuple[object, ...]:
    """Scores of one evaluation and one scorer come together: others say nothing beside them."""
    score = score_of(run)
    return score is None, run.evaluation, scorer_text(run), -(score or 0.0)


def _search(view: View, query: str, by_score: bool) -> Html:
    fields = [
        tag(
            "input",
            type="search",
            name="q",
            value=query,
            placeholder="model, evaluation, tag or note",
            size=28,
            aria_label="Search runs",
        ),
        tag("label", tag("input", type="checkbox", name="sort", value="score", checked=by_score), " best score first"),
        tag("button", "Search"),
    ]
    return tag("form", *fields, method="get", action=view.url("runs"), role="search")


def _choice(view: View, runs: Sequence[EvaluationRun]) -> Html:
    columns = [
        ("baseline", "choice"),
        ("candidate", "choice"),
        ("evaluation", "brief"),
        ("model", "brief"),
        ("state", "brief"),
        ("scorer", "brief"),
        ("score", "number brief"),
    ]
    known = view.platform.annotations.of(run.id for run in runs)
    lines = [_line(view, run, known.get(run.id)) for run in runs]
    shown = table([*columns, ("started", "brief"), ("took", "number brief"), ("run", "brief")], lines)
    button = tag("p", tag("button", "Compare", type="submit", kind="primary"), kind="always")
    return tag("form", shown, button, method="get", action=view.url("compare"))


def _line(view: View, run: EvaluationRun, known: Annotation | None) -> Sequence[object]:
    pick = [
        tag("input", type="radio", name=name, value=run.id, required=True, aria_label=f"{model_text(run)} as {name}")
        for name in ("baseline", "candidate")
    ]
    return (
        *pick,
        annotated_cell(view, view.link(name_text(ref_text(run.evaluation)), "runs", run.id), known, "runs"),
        prompted(run),
        status_chip(run.state),
        scorer_text(run),
        score_text(run),
        when(run.started_at),
        lasted(run.started_at, run.finished_at),
        view.link(short_id(run.id), "runs", run.id),
    )


def score_of(run: EvaluationRun) -> float | None:
    value = (run.summary or {}).get("mean")
    return float(value) if isinstance(value, int | float) else None


def _matrix(view: View, runs: Sequence[EvaluationRun]) -> Html:
    """Show the score of each model on each evaluation by each scorer: that of the newest run of these."""
    cells: dict[tuple[object, tuple[str, str]], EvaluationRun] = {}
    asked: dict[object, EvaluationRun] = {}
    for run in runs:
        if run.state is RunState.COMPLETED and score_of(run) is not None:
            asked.setdefault(asked_of(run), run)
            cells.setdefault((asked_of(run), (run.evaluation, scorer_text(run))), run)
    measured = [*dict.fromkeys(one for _, one in cells)]
    if len(asked) < 2:
        return Html("")
    left = len(measured) - MOST_MEASURED
    measured = measured[:MOST_MEASURED]
    cells = {key: run for key, run in cells.items() if key[1] in measured}
    asked = {one: run for one, run in asked.items() if any(one == key for key, _ in cells)}
    columns = [("model", ""), *((name, "number wraps") for name in _names(measured))]
    rest = (
        tag("p", f"{left} more evaluations have scores. Search for one to see them.", kind="quiet") if left > 0 else ""
    )
    new = [run for run in cells.values() if _is_short(run) and view.kept.get(_interval_key(run)) is None]
    more = view.later(lambda: size_of(view, *new))
    lines = [
        [shortened(label, run.model), *(_cell(view, cells.get((key, one)), new if more else ()) for one in measured)]
        for label, (key, run) in zip(labels_of([*asked.values()]), asked.items(), strict=True)
    ]
    return section("Scores of these models", table(columns, lines), rest, more)


def _names(measured: Sequence[tuple[str, str]]) -> list[str]:
    """Return headings of evaluations and scorers; of those that read alike, with their projects."""
    names = [f"{ref_text(one)}: {scorer}" for one, scorer in measured]
    refs = [ObjectRef.parse(one) for one, _ in measured]
    return [
        f"{begun(ref.project, LONGEST_PROJECT)}/{name}" if ref is not None and names.count(name) > 1 else name
        for ref, name in zip(refs, names, strict=True)
    ]


def _is_short(run: EvaluationRun) -> bool:
    trials = (run.summary or {}).get("trials")
    return isinstance(trials, int) and trials <= MOST_TRIALS


def _interval_key(run: EvaluationRun) -> object:
    return ("interval", run.id, run.finished_at)


def _cell(view: View, run: EvaluationRun | None, later: Sequence[EvaluationRun]) -> object:
    """Show the score of a run, with its interval unless that takes long or is shown later."""
    if run is None:
        return NONE
    score = view.link(score_text(run), "runs", run.id)
    if run in later or not _is_short(run):
        return score
    return joined([score, view.kept(_interval_key(run), lambda: _interval(view, run))])


def _interval(view: View, run: EvaluationRun) -> Html:
    """Return the interval of a run's score, which is computed of all its rows."""
    found = primary_first(run, view.platform.evaluations.report(run).aggregate.metrics)
    return tag("small", interval_text(found[0].interval, found[0].kind)) if found else Html("")


# ---- one run


def run(view: View) -> HtmlPage:
    status = view.platform.evaluations.runs.status(view.params["run"])
    found = status.run
    title = f"{model_text(found)} on {ref_text(found.evaluation)}"
    links = tag(
        "p",
        view.link("All rows", "runs", found.id, "rows"),
        " · ",
        view.link("Failed rows", "runs", found.id, "rows", show="failed"),
        *(
            (" · ", view.link("Slices", "runs", found.id, "by"))
            if "compare_all" in dir(view.platform.evaluations)
            else ()
        ),
        *((" · ", view.link("Labels", "reviews", run=found.id)) if "review" in dir(view.platform) else ()),
        *((" · ", view.link("Steer", "runs", found.id, "steering")) if _is_steered(view, found) else ()),
    )
    words = notes(view, found.id, "runs", "runs", found.id)
    if found.state is RunState.RUNNING:
        label = f"{count_text(status.completed_rows)} of {count_text(status.total_rows)} rows"
        pairs = [("state", status_chip(found.state)), ("rows", bar(status.completed_rows, status.total_rows, label))]
        known = facts([*pairs, ("started", when(found.started_at)), ("id", found.id)])
        return HtmlPage(title, joined([known, links, words]), live=True, lead=_OF_RUN)
    key = ("run", found.id, found.finished_at)
    report = view.part(key, lambda: size_of(view, found), lambda: _report(view, found), _stored(found))
    return HtmlPage(title, joined([links, words, *_remarks(view, found), report]), lead=_OF_RUN)


def _remarks(view: View, *runs: EvaluationRun) -> list[Html]:
    """Show what parts say, which is not kept: what people say of rows changes it. Of long runs, with the report."""
    later = view.later(lambda: size_of(view, *runs))
    return [] if later else remarks_of(view.platform.evaluations.remarks(*runs))


def _is_steered(view: View, run: EvaluationRun) -> bool:
    return "steering" in dir(view.platform.evaluations) and run.source_evaluation_run_id is None


def _report(view: View, run: EvaluationRun) -> Html:
    return joined(run_content(run, view.platform.evaluations.report(run).aggregate))


def size_of(view: View, *runs: EvaluationRun) -> int:
    """Return how many trials runs have, by their jobs; the trials of runs that clients made are counted."""
    evaluations = view.platform.evaluations
    return sum(evaluations.runs.status(run.id).completed_rows or len(evaluations.result(run.id).rows) for run in runs)


def _stored(run: EvaluationRun) -> Html:
    pairs: list[tuple[str, object]] = [
        ("run", short_id(run.id)),
        ("state", joined([status_chip(run.state), f" {run.reason}" if run.reason else ""])),
        ("model", prompted(run)),
        ("evaluation", short_ref(run.evaluation)),
        ("started", when(run.started_at)),
    ]
    columns = [("metric", ""), ("mean", "number"), *((name.replace("_", " "), "number") for name in _COUNTED)]
    scorers = (run.summary or {}).get("scorers")
    known = scorers.items() if isinstance(scorers, Mapping) else ()
    lines = [
        [name, stored_mean_text(one), *map(_count, map(one.get, _COUNTED))]
        for name, one in known
        if isinstance(one, Mapping)
    ]
    metrics = section("Metrics", table(columns, lines)) if lines else ""
    return joined([_headline(run), facts(pairs), metrics])


_COUNTED = ("scored", "unscored", "scorer_errors", "model_errors")
"""What is stored of each metric next to its mean, and shown."""


def _headline(run: EvaluationRun) -> Html:
    if score_of(run) is None:
        return Html("")
    return tag("p", f"{model_text(run)} scores {score_text(run)} by {scorer_text(run)}.", kind="headline")


def _count(value: object) -> str:
    return count_text(value) if isinstance(value, int) else NONE


def compared(view: View) -> HtmlPage:
    before, after = (view.platform.evaluations.runs.get(view.query.get(name, "")) for name in ("baseline", "candidate"))
    title = f"{model_text(after)} compared with {model_text(before)}"
    rows = view.link("Rows side by side", "runs", after.id, "rows", baseline=before.id, show="changed")
    key = ("compared", before.id, after.id, before.finished_at, after.finished_at)
    running = RunState.RUNNING in (before.state, after.state)

    def made() -> Html:
        return _comparison(view, before, after)

    scores = joined(map(_headline, (before, after)))
    found = made() if running else view.part(key, lambda: size_of(view, before, after), made, scores)
    return HtmlPage(title, joined([tag("p", rows), *_remarks(view, before, after), found]), lead=_OF_TWO)


def _comparison(view: View, before: EvaluationRun, after: EvaluationRun) -> Html:
    report = view.platform.evaluations.compare(baseline=before, candidate=after)
    return joined(comparison_content(before, after, report.comparison))
