"""A run as a page, in a notebook, as Markdown and as JUnit."""

from collections.abc import Container, Iterator

from modelyard.domain.evaluation.aggregate import Aggregate
from modelyard.domain.evaluation.metrics import Metric, MetricKind, RunRow, metric_names, rows
from modelyard.domain.evaluation.run import EvaluationRun, Outcome
from modelyard.formats.json import dumps
from modelyard.parts.reports import junit, markdown
from modelyard.parts.reports.clusters import cluster_notes
from modelyard.parts.reports.html import Html, fragment, page, tag
from modelyard.parts.reports.run_page import remarks_of, run_content
from modelyard.report.evaluations.run import RunReport, cells, headers, notes, spent
from modelyard.report.numbers import alike, count_text, errors_text, model_text, ref_text, value_text

SHOWN_ROWS = 5
SHOWN_IN_NOTEBOOK = 10


def run_html(report: RunReport) -> Html:
    title = _title(report.run)
    content = run_content(report.run, report.aggregate)
    return page(title, tag("h1", title), *remarks_of(report.remarks), *content, *_proposals(report))


def run_notebook(report: RunReport) -> Html:
    content = run_content(report.run, report.aggregate, SHOWN_IN_NOTEBOOK)
    return fragment(tag("h3", _title(report.run)), *remarks_of(report.remarks), *content, *_proposals(report))


def run_markdown(report: RunReport) -> str:
    notes = map(markdown.plain, (*report.remarks, *cluster_notes(report)))
    return markdown.joined([*_paragraphs(report.run, report.aggregate), *notes])


def _proposals(report: RunReport) -> Iterator[Html]:
    return (tag("p", note, kind="quiet") for note in cluster_notes(report))


def run_junit(report: RunReport) -> str:
    found = list(rows(report.rows.full()))
    bools = {one.metric for row in found for one in row.readings if one.kind is MetricKind.BINARY}
    return junit.suite(_title(report.run), (_case(row, bools) for row in found))


def _title(run: EvaluationRun) -> str:
    return f"{model_text(run)} on {ref_text(run.evaluation)}"


def _paragraphs(run: EvaluationRun, found: Aggregate) -> Iterator[str]:
    yield f"### {markdown.plain(_title(run))}"
    failed = f", {count_text(found.failed)} {errors_text(found)}" if found.failed else ""
    yield f"{run.state.value}, {count_text(found.rows)} rows, {count_text(found.trials)} trials{failed}"
    titles = headers(found)
    if found.metrics:
        metrics = ([markdown.plain(cell) for cell in cells(summary)] for summary in found.metrics)
        yield markdown.table(titles, metrics, right=titles[1:])
        yield "\n".join(f"* {markdown.plain(note)}" for note in (*notes(found), *spent(found)))
    if found.failures:
        shown = alike(found.failures)[:SHOWN_ROWS]
        lines = [_code(count_text(len(of)), of[0].detail, of[0].digest[:10], of[0].inputs) for of in shown]
        titles = ("rows", "what went wrong", "such as", "inputs")
        yield markdown.folded("rows with errors", markdown.table(titles, lines, right=titles[:1]))
    for one in found.metrics:
        worst = one.worst[:SHOWN_ROWS]
        lines = [_code(value_text(note.value, one.kind), note.digest[:10], note.inputs, note.output) for note in worst]
        if lines:
            table = markdown.table((markdown.plain(one.name), "row", "inputs", "output"), lines)
            yield markdown.folded(f"the worst rows by {one.name}", table)


def _code(*cells: object) -> list[str]:
    return [markdown.code(cell) for cell in cells]


def _case(row: RunRow, bools: Container[Metric]) -> junit.Case:
    found = row.readings
    names = metric_names(reading.metric for reading in found)
    broken = [f"{names[one.metric]}: {one.reason}" for one in found if one.outcome is Outcome.SCORER_ERROR]
    missed = dict.fromkeys(names[one.metric] for one in found if one.value == 0 and one.metric in bools)
    return junit.Case(
        name=row.digest[:10],
        failure=f"false: {', '.join(missed)}" if missed else "",
        error="; ".join([*row.failures, *broken]),
        details=f"inputs: {dumps(row.inputs).decode()}\noutput: {dumps(row.output).decode()}",
    )
