"""A comparison as a page, in a notebook, as Markdown and as JUnit."""

from collections.abc import Iterator

from modelyard.domain.evaluation.comparison import MetricComparison, RowDifference, Verdict
from modelyard.parts.reports import junit, markdown
from modelyard.parts.reports.comparison_page import comparison_content
from modelyard.parts.reports.html import Html, fragment, page, tag
from modelyard.parts.reports.run_page import remarks_of
from modelyard.report.evaluations.comparison import (
    HEADERS,
    SHOWN_ROWS,
    ComparisonReport,
    cells,
    counts,
    cut,
    footnote,
    remarks,
)
from modelyard.report.numbers import difference_text, model_text, p_text

SHOWN_IN_NOTEBOOK = 10


def comparison_html(report: ComparisonReport) -> Html:
    content = comparison_content(report.baseline, report.candidate, report.comparison)
    return page(_title(report), tag("h1", _title(report)), *remarks_of(report.remarks), *content)


def comparison_notebook(report: ComparisonReport) -> Html:
    content = comparison_content(report.baseline, report.candidate, report.comparison, SHOWN_IN_NOTEBOOK)
    return fragment(tag("h3", _title(report)), *remarks_of(report.remarks), *content)


def comparison_markdown(report: ComparisonReport) -> str:
    return markdown.joined(_paragraphs(report))


def comparison_junit(report: ComparisonReport) -> str:
    lost = [junit.Case(name, error=reason) for name, reason in report.comparison.uncompared.items()]
    return junit.suite(_title(report), [*map(_case, report.comparison.metrics), *lost])


def _title(report: ComparisonReport) -> str:
    return " compared with ".join(
        model_text(run, report.candidate, report.baseline) for run in (report.candidate, report.baseline)
    )


def _paragraphs(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    yield f"### {markdown.plain(_title(report))}"
    yield "; ".join(f"{markdown.plain(one.name)}: **{one.verdict.value}**" for one in found.metrics)
    lines = [markdown.plain(line) for line in counts(report)]
    if found.metrics:
        metrics = ([markdown.plain(cell) for cell in cells(one)] for one in found.metrics)
        yield markdown.table(HEADERS, metrics, right=HEADERS[1:-1])
        notes = [footnote(found), *(line for one in found.metrics for line in remarks(one))]
        lines += map(markdown.plain, notes)
    yield "\n".join(f"* {line}" for line in (*lines, *map(markdown.plain, report.remarks)))
    headers = ("row", "before", "now", "inputs", "candidate's output")
    for one in found.metrics:
        rows = [_row(note) for note in one.worst[:SHOWN_ROWS]]
        if rows:
            yield markdown.folded(f"rows that lose most by {one.name}", markdown.table(headers, rows))


def _row(note: RowDifference) -> list[str]:
    values = (f"{note.baseline:g}", f"{note.candidate:g}")
    return [markdown.code(part) for part in (note.digest[:10], *values, note.inputs, note.candidate_output)]


def _case(one: MetricComparison) -> junit.Case:
    worse = f"{difference_text(one.paired.difference, one.kind)}, p {p_text(one.corrected)}"
    worst = one.worst[:SHOWN_ROWS]
    shown = "\n".join(f"{note.digest[:10]}: {cut(note.inputs)} -> {cut(note.candidate_output)}" for note in worst)
    return junit.Case(one.name, failure=f"worse by {worse}" if one.verdict is Verdict.WORSE else "", details=shown)
