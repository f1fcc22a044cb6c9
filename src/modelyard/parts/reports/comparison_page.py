"""The page of a comparison, section by section."""

import re
from collections.abc import Iterator, Sequence

import attrs

from modelyard.domain.evaluation.comparison import Comparison, MetricComparison, RowDifference, Verdict
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.parts.reports.headline import comparison_sentence
from modelyard.parts.reports.histogram import NEUTRAL, Histogram
from modelyard.parts.reports.html import (
    Html,
    chip,
    facts,
    folded,
    joined,
    long_table,
    plots,
    section,
    shortened,
    table,
    tag,
)
from modelyard.parts.reports.inline_chart import BETTER, PLAIN, WORSE, interval_strip, share_strip
from modelyard.parts.reports.run_page import full_names, prompted, short_id
from modelyard.report.evaluations.comparison import UNPAIRED
from modelyard.report.numbers import (
    NONE,
    clusters_text,
    confidence_text,
    count_text,
    difference_text,
    direction_text,
    left_out_text,
    mean_text,
    p_text,
    primary_first,
    span_text,
    value_text,
)

MAX_PLOTS = 24
_DIGEST = re.compile(r"(:[\w-]{8})[\w-]{35}$")
"""That of the version of a scorer at the end of its name."""

_CLASSES = {Verdict.BETTER: "better", Verdict.WORSE: "worse"}
_COLOURS = {Verdict.BETTER: BETTER, Verdict.WORSE: WORSE}


def comparison_content(
    baseline: EvaluationRun, candidate: EvaluationRun, found: Comparison, most: int | None = None
) -> Iterator[Html]:
    found = attrs.evolve(found, metrics=primary_first(candidate, found.metrics))
    yield tag("p", comparison_sentence(baseline, candidate, found.metrics, found), kind="headline")
    yield _facts(baseline, candidate, found)
    yield section("Metrics", _metrics(found)) if found.metrics else tag("p", _nothing(found))
    yield section("Not compared", _uncompared(found))
    spread = [one for one in found.metrics if one.kind is not MetricKind.BINARY and one.paired.wins + one.paired.losses]
    drawn = [one for one in spread if one.distribution is not None][:MAX_PLOTS]
    yield section("How the rows differ, candidate minus baseline", plots(_histogram(one) for one in drawn))
    yield section("Errors", _failures(found, most))
    yield section("Rows on which the candidate loses most", *_changed(found, "worst", most))
    yield section("Rows on which the candidate wins most", *_changed(found, "best", most))
    yield full_names({one for run in (baseline, candidate) for one in (run.id, run.model)})


def _nothing(found: Comparison) -> str:
    return "There is nothing to compare" + (f": {UNPAIRED}." if not found.rows else ".")


def _facts(baseline: EvaluationRun, candidate: EvaluationRun, found: Comparison) -> Html:
    alone = (count_text(found.only_baseline), count_text(found.only_candidate))
    rows = "{} in both, {} only in the baseline, {} only in the candidate".format(count_text(found.rows), *alone)
    return facts(
        [
            ("baseline", _run(baseline)),
            ("candidate", _run(candidate)),
            ("rows", rows),
        ]
    )


def _run(run: EvaluationRun) -> Html:
    return joined([prompted(run), tag("small", " run ", short_id(run.id), kind="quiet")])


# ---- numbers -----------------------------------------------------------------------------------------------------


def _metrics(found: Comparison) -> Html:
    sure = confidence_text(found.options.confidence)
    columns = [
        ("metric", ""),
        ("baseline", "number"),
        ("candidate", "number"),
        ("difference", "number"),
        ("verdict", ""),
        (f"{sure} interval", ""),
        ("better / same / worse", ""),
        ("p", "number"),
        ("all rows", "number"),
    ]
    left_out = [f"{one.name}, {text}" for one in found.metrics if (text := left_out_text(one))]
    notes = (tag("p", text, kind="quiet") for text in (_note(found), *left_out))
    return joined([table(columns, map(_metric_cells, found.metrics)), *notes])


def _note(found: Comparison) -> str:
    several = f", corrected for {len(found.metrics)} metrics (Holm)" if len(found.metrics) > 1 else ""
    return (
        "Rows are paired, and the numbers are over those that have a value in both runs. A difference is shown where "
        "the interval leaves out 0 and p agrees: McNemar's exact test for 0 and 1, else the paired t-test"
        f"{several}{clusters_text(found.options.cluster_by)}. Over all rows, {found.options.policy}."
    )


def _metric_cells(one: MetricComparison) -> list[object]:
    pairs = one.paired
    split = " / ".join(map(count_text, (pairs.wins, pairs.ties, pairs.losses)))
    parts = share_strip((pairs.wins, pairs.ties, pairs.losses), (BETTER, NEUTRAL, WORSE))
    return [
        joined([one.name, tag("small", f"{count_text(pairs.count)} rows{direction_text(one.lower_is_better)}")]),
        mean_text(one.baseline, one.kind),
        mean_text(one.candidate, one.kind),
        tag("b", difference_text(pairs.difference, one.kind)),
        _verdict(one),
        joined([span_text(pairs.interval, one.kind), _strip(one)]),
        joined([split, Html(parts)]),
        p_text(one.corrected),
        difference_text(one.all_rows.difference, one.kind),
    ]


def _strip(one: MetricComparison) -> Html:
    interval, difference = one.paired.interval, one.paired.difference
    ends = [difference or 0.0, *((interval.low, interval.high) if interval else ())]
    reach = max(map(abs, ends)) * 1.15 or 1.0
    colour = _COLOURS.get(one.verdict, PLAIN)
    return Html(interval_strip(difference, interval, -reach, reach, colour))


def _verdict(one: MetricComparison) -> Html:
    text = chip(one.verdict.value, _CLASSES.get(one.verdict, ""))
    if one.verdict is not Verdict.NO_DIFFERENCE or one.rows_needed is None:
        return text
    return joined([text, tag("small", f"~ {count_text(one.rows_needed)} rows would show it")])


def _histogram(one: MetricComparison) -> str:
    assert one.distribution is not None
    return Histogram(one.name, one.distribution, differences=True, lower_is_better=one.lower_is_better).svg


def _uncompared(found: Comparison) -> Html:
    lines = [(shortened(_DIGEST.sub(r"\1…", name), name), why) for name, why in found.uncompared.items()]
    return table([("metric", ""), ("why", "")], lines, "narrow") if lines else Html("")


# ---- rows --------------------------------------------------------------------------------------------------------


def _changed(found: Comparison, which: str, most: int | None) -> Iterator[Html]:
    for at, one in enumerate(one for one in found.metrics if getattr(one, which)):
        notes: Sequence[RowDifference] = getattr(one, which)[:most]
        count = one.paired.losses if which == "worst" else one.paired.wins
        title = f"{one.name}: {len(notes):,} of {count:,} rows"
        shown = long_table(
            _columns("difference", "number"), [[_change(note, one.kind), *_cells(note)] for note in notes]
        )
        yield joined([tag("h3", title), shown]) if at == 0 and which == "worst" else folded(title, shown)


def _columns(first: str, kind: str) -> list[tuple[str, str]]:
    texts = ("inputs", "baseline's output", "candidate's output")
    return [(first, kind), *((name, "text") for name in texts), ("row", "")]


def _cells(note: RowDifference) -> list[object]:
    return [note.inputs, note.baseline_output, note.candidate_output, tag("code", note.digest[:10], kind="quiet id")]


def _change(note: RowDifference, kind: MetricKind) -> Html:
    if note.baseline is None or note.candidate is None:
        return Html(NONE)
    before, after = (value_text(value, kind) for value in (note.baseline, note.candidate))
    difference = difference_text(note.candidate - note.baseline, MetricKind.CONTINUOUS)
    return joined([tag("b", difference), tag("small", f"{before} → {after}")])


def _failures(found: Comparison, most: int | None) -> Html:
    notes = found.failures[:most]
    if not notes:
        return Html("")
    title = (
        f"The model failed on {count_text(found.baseline_failed)} rows of the baseline and "
        f"{count_text(found.candidate_failed)} of the candidate; here are {len(notes):,}"
    )
    lines = [[note.detail, *_cells(note)] for note in notes]
    return joined([tag("p", title), long_table(_columns("what went wrong", "text"), lines)])
