"""The page of a run, section by section."""

from collections.abc import Iterable, Iterator, Sequence

import attrs

from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary, RowNote
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.parts.reports.headline import passed_of, run_sentence
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
from modelyard.parts.reports.inline_chart import BETTER, PLAIN, interval_strip, share_strip
from modelyard.report.numbers import (
    alike,
    clusters_text,
    confidence_text,
    count_text,
    direction_text,
    equal_rows_text,
    errors_text,
    id_text,
    interval_text,
    mean_text,
    model_text,
    money_text,
    primary_first,
    ref_text,
    seconds_text,
    value_text,
)

MAX_PLOTS = 24
MAX_LABELS = 12


def run_content(run: EvaluationRun, found: Aggregate, most: int | None = None) -> Iterator[Html]:
    found = attrs.evolve(found, metrics=primary_first(run, found.metrics))
    yield tag("p", run_sentence(run, found.metrics, found), kind="headline")
    yield _facts(run, found)
    yield section("Metrics", _metrics(found)) if found.metrics else tag("p", "Nothing was scored.")
    binary = [one for one in found.metrics if passed_of(one) is not None]
    drawn = [one for one in found.metrics if one.distribution is not None and one not in binary][:MAX_PLOTS]
    yield section("How the scores spread", *map(_passed, binary), plots(_histogram(one) for one in drawn))
    yield section("Answers that are text", *(_texts(one) for one in found.metrics if one.texts))
    yield section("Time and cost", _spent(found))
    yield section("Why scores are missing", _reasons(found))
    yield section("Errors", _failures(found, most))
    yield section("Rows, the worst first", *_worst(found, most))
    names = {run.id, run.model, run.evaluation, *(one.name for one in found.usage)}
    yield full_names(names)


def remarks_of(remarks: Iterable[str]) -> list[Html]:
    """Show what parts say of a run, or of two."""
    return [tag("p", one) for one in remarks]


def _facts(run: EvaluationRun, found: Aggregate) -> Html:
    kind = {"completed": "better", "failed": "worse"}.get(run.state.value, "")
    text = joined([chip(run.state.value, kind), f" {run.reason}" if run.reason else ""])
    pairs: list[tuple[str, object]] = [
        ("run", short_id(run.id)),
        ("state", text),
        ("model", short_ref(run.model)),
        *((kind, tag("span", text, kind="text")) for kind, text in run.prompts.items()),
        ("evaluation", short_ref(run.evaluation)),
        ("started", f"{run.started_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("rows", _rows(found)),
    ]
    if run.source_evaluation_run_id is not None:
        pairs.append(("rescored from", short_id(run.source_evaluation_run_id)))
    if found.cost is not None:
        pairs.append(("cost", money_text(found.cost)))
    return facts(pairs)


def _rows(found: Aggregate) -> str:
    trials = f", {count_text(found.trials)} trials" if found.trials != found.rows else ""
    failed = f", {count_text(found.failed)} {errors_text(found)}" if found.failed else ""
    equal = f"; {equal_rows_text(found)}" if found.equal_rows else ""
    return f"{count_text(found.rows)}{trials}{failed}{equal}"


# ---- numbers -----------------------------------------------------------------------------------------------------


def _metrics(found: Aggregate) -> Html:
    columns = [
        ("metric", ""),
        ("mean", "number"),
        (f"{confidence_text(found.options.confidence)} interval", ""),
        ("spread", "number"),
        ("all trials", "number"),
        ("scored", "number"),
        ("unscored", "number"),
        ("scorer errors", "number"),
        ("model errors", "number"),
    ]
    reduced = f" Trials of a row were reduced first: {found.options.reducer}." if found.trials != found.rows else ""
    omitted = f" {count_text(found.omitted)} scores of further metrics are left out." if found.omitted else ""
    together = clusters_text(found.options.cluster_by)
    note = f"The mean is over what is scored{together}; over all trials, {found.options.policy}.{reduced}{omitted}"
    return joined([table(columns, map(_metric_cells, found.metrics)), tag("p", note, kind="quiet")])


def _metric_cells(one: MetricSummary) -> list[object]:
    kind = tag("small", "no value" if one.kind is None else f"{one.kind.value}{direction_text(one.lower_is_better)}")
    deviation = None if one.numbers is None or one.kind is MetricKind.BINARY else one.numbers.deviation
    counts = (one.scored, one.unscored, one.scorer_errors, one.model_errors)
    return [
        joined([one.name, kind]),
        tag("b", mean_text(one.mean, one.kind)),
        joined([interval_text(one.interval, one.kind), _strip(one)]),
        mean_text(deviation, one.kind),
        mean_text(one.pessimistic, one.kind),
        *map(count_text, counts),
    ]


def _strip(one: MetricSummary) -> Html:
    if one.numbers is None or one.numbers.minimum is None or one.numbers.maximum is None:
        return Html("")
    low, high = min(0.0, one.numbers.minimum), max(1.0, one.numbers.maximum)
    return Html(interval_strip(one.mean, one.interval, low, high, PLAIN))


def _histogram(one: MetricSummary) -> str:
    assert one.distribution is not None
    return Histogram(one.name, one.distribution).svg


def _passed(one: MetricSummary) -> Html:
    passed = passed_of(one) or 0
    strip = Html(share_strip((passed, one.scored - passed), (BETTER, NEUTRAL)))
    return tag("p", tag("b", one.name), f" {count_text(passed)} of {count_text(one.scored)}", strip)


def _texts(one: MetricSummary) -> Html:
    shown = list(one.texts.items())[:MAX_LABELS]
    rest = len(one.texts) - len(shown)
    more = [tag("p", f"and {rest:,} other texts", kind="quiet")] if rest else []
    counted = table(
        [("text", "text"), ("trials", "number")], [(text, count_text(count)) for text, count in shown], "narrow"
    )
    return joined([tag("h3", one.name), counted, *more])


def _spent(found: Aggregate) -> Html:
    parts = []
    if found.latency is not None:
        times = (found.latency.mean, found.latency.p50, found.latency.p95)
        text = "Latency: mean {}, half within {}, 95 % within {}".format(*map(seconds_text, times))
        inherited = f", {count_text(found.latency.inherited)} inherited" if found.latency.inherited else ""
        parts.append(tag("p", f"{text}, over {count_text(found.latency.count)} answers{inherited}."))
    columns = ("prompt tokens", "completion tokens", "USD")
    headers = [("role", ""), ("what", ""), ("calls", "number"), *((name, "number") for name in columns)]
    lines = [
        (
            f"{one.role}, inherited" if one.inherited else one.role,
            short_ref(one.name),
            *map(count_text, (one.calls, one.prompt_tokens, one.completion_tokens)),
            money_text(one.cost),
        )
        for one in found.usage
    ]
    return joined([*parts, table(headers, lines, "narrow")] if lines else parts)


# ---- rows --------------------------------------------------------------------------------------------------------


def _worst(found: Aggregate, most: int | None) -> Iterator[Html]:
    for at, one in enumerate(one for one in found.metrics if one.worst):
        notes = one.worst[:most]
        said = any(note.comment for note in notes)
        columns = [(one.name, "number"), ("inputs", "text"), ("output", "text"), ("row", "")]
        columns[3:3] = [("the scorer's words", "text")] if said else []
        lines = [
            (
                value_text(note.value, one.kind),
                note.inputs,
                note.output,
                *([note.comment] if said else []),
                short(note),
            )
            for note in notes
        ]
        title = f"{one.name}: {len(notes):,} of {found.rows:,} rows"
        shown = long_table(columns, lines)
        yield joined([tag("h3", title), shown]) if at == 0 else folded(title, shown)


def _rows_named(notes: Sequence[RowNote]) -> Html:
    """Name the first of several rows, and fold the others."""
    first, *others = map(short, notes)
    return joined([first, folded(f"{len(others):,} more", *others)]) if others else first


def _failures(found: Aggregate, most: int | None) -> Html:
    notes = found.failures[:most]
    if not notes:
        return Html("")
    title = f"{len(notes):,} of {found.failed:,} rows on which the model or a scorer failed"
    columns = [("what went wrong", "text"), ("rows", "number"), ("inputs", "text"), ("output", "text"), ("row", "")]
    lines = [
        (of[0].detail, count_text(len(of)) if len(of) > 1 else "", of[0].inputs, of[0].output, _rows_named(of))
        for of in alike(notes)
    ]
    return joined([tag("h3", title), long_table(columns, lines)])


def short_ref(text: str) -> Html:
    return shortened(ref_text(text), text)


def prompted(run: EvaluationRun) -> Html:
    """Show the model of a run, and how its prompts begin."""
    name, _, prompts = model_text(run).partition(", ")
    return joined([shortened(name, run.model), tag("small", prompts)]) if prompts else short_ref(run.model)


def full_names(names: Iterable[str]) -> Html:
    shown = {name: ref_text(name) if ref_text(name) != name else id_text(name) for name in sorted(names)}
    cut = [(short, name) for name, short in shown.items() if short != name]
    return folded("Ids and references in full", facts(cut)) if cut else Html("")


def short_id(id: str) -> Html:
    return shortened(id_text(id), id)


def short(note: RowNote) -> Html:
    return tag("code", note.digest[:10], kind="quiet id")


def _reasons(found: Aggregate) -> Html:
    lines = [(one.name, reason, count_text(count)) for one in found.metrics for reason, count in one.reasons.items()]
    columns = [("metric", ""), ("reason", ""), ("trials", "number")]
    return table(columns, lines[:MAX_PLOTS], "narrow") if lines else Html("")
