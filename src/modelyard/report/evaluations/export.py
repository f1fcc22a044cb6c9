"""Export every row of a run, or of a comparison, as JSON Lines or CSV: bytes read lazily, in bounded memory."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import PurePath
from typing import Any, Literal, Protocol, get_args

import attrs

from modelyard.domain.evaluation.metrics import (
    FullScoredPrediction,
    Metric,
    RunRow,
    ScoredPrediction,
    metric_names,
    rows,
    trial_readings,
)
from modelyard.domain.evaluation.number_rows_fast import paired_rows
from modelyard.domain.evaluation.run import Outcome, Prediction, Score
from modelyard.domain.evaluation.running_totals import outcome_of
from modelyard.errors import InvalidInput
from modelyard.formats.json import dumps
from modelyard.part import check_place

Format = Literal["jsonl", "csv"]

MAX_COLUMNS = 200
_BATCH = 500
_RUN_COLUMNS = ("row_digest", "index", "trial", "inputs", "output", "error", "latency", "prompt_tokens")
_COLUMNS = (*_RUN_COLUMNS, "completion_tokens", "cost", "scorer_errors")
_NUMBER = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")


@attrs.frozen
class RunRows:
    """The rows of a run, read from the beginning as often as needed, in the order of their digests. `full` reads whole
    records, `columns` what metrics need."""

    full: Callable[[], Iterator[FullScoredPrediction]]
    columns: Callable[[], Iterator[ScoredPrediction]]


# ---- a run -------------------------------------------------------------------------------------------------------


def run_lines(run: RunRows, format: Format) -> Iterator[bytes]:
    return json_lines(map(_run_object, run.full())) if format == "jsonl" else csv_lines(_run_table(run))


def _run_object(scored: FullScoredPrediction) -> dict[str, Any]:
    prediction, scores = scored
    return {
        "row_digest": prediction.row_digest,
        "index": prediction.index,
        "trial": prediction.trial,
        "prediction_id": prediction.id,
        "model": prediction.model,
        "inputs": prediction.inputs,
        "output": prediction.output.get("value"),
        "error": prediction.error,
        "latency": prediction.latency,
        "prompt_tokens": prediction.prompt_tokens,
        "completion_tokens": prediction.completion_tokens,
        "cost": _usd(prediction.cost),
        "price": prediction.price,
        "checkpoint_step": prediction.checkpoint_step,
        "source": prediction.source.value,
        "copied_from": prediction.copied_from,
        "possibly_repeated": prediction.possibly_repeated,
        "scores": [_score_object(prediction, score) for score in scores],
    }


def _score_object(prediction: Prediction, score: Score) -> dict[str, Any]:
    return {
        "scorer": score.scorer,
        "outcome": outcome_of(prediction, score).value,
        "value": score.value.get("value"),
        "error": score.error,
        "comment": score.comment,
        "prompt_tokens": score.prompt_tokens,
        "completion_tokens": score.completion_tokens,
        "judge_cost": _usd(score.judge_cost),
    }


def _usd(cost: Decimal | None) -> str | None:
    return None if cost is None else f"{cost:f}"


def _run_table(run: RunRows) -> Iterator[Sequence[Any]]:
    readings = (reading for trial in run.columns() for reading in trial_readings(trial))
    names = _names(reading.metric for reading in readings if reading.kind is not None)
    yield (*_COLUMNS, *names.values())
    for trial in run.full():
        found = {**_run_object(trial), "scorer_errors": _scorer_errors(trial)}
        values = {reading.metric: reading.value for reading in trial_readings(trial)}
        yield (*(found[name] for name in _COLUMNS), *(values.get(metric) for metric in names))


def _scorer_errors(scored: ScoredPrediction) -> str | None:
    failed = [one for one in trial_readings(scored) if one.outcome is Outcome.SCORER_ERROR]
    names = metric_names(one.metric for one in failed)
    return "\n".join(f"{names[one.metric]}: {one.reason}" for one in failed) or None


def _names(metrics: Iterable[Metric]) -> dict[Metric, str]:
    first: dict[Metric, None] = {}
    for metric in metrics:
        if len(first) < MAX_COLUMNS:
            first[metric] = None
    names = metric_names(first)
    return {metric: names[metric] for metric in sorted(names, key=lambda metric: names[metric])}


# ---- a comparison ------------------------------------------------------------------------------------------------


def comparison_lines(
    baseline: RunRows,
    candidate: RunRows,
    values: Callable[[RunRow], Mapping[str, float]],
    names: Sequence[str],
    format: Format,
) -> Iterator[bytes]:
    """Export the rows of both runs side by side. `values` gives a row's value of each metric in `names` that it has."""
    both = paired_rows(rows(baseline.full()), rows(candidate.full()))
    pairs = ((pair[0], pair[1]) for pair in both if isinstance(pair, tuple))
    found = (_pair_object(one, other, values(one), values(other)) for one, other in pairs if one and other)
    return json_lines(found) if format == "jsonl" else csv_lines(_pair_table(found, names))


def _pair_object(one: RunRow, other: RunRow, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    shared = before.keys() & after.keys()
    return {
        "row_digest": one.digest,
        "inputs": one.inputs,
        "baseline": {"output": one.output, "errors": one.failures, "values": before},
        "candidate": {"output": other.output, "errors": other.failures, "values": after},
        "differences": {name: after[name] - before[name] for name in before if name in shared},
    }


def _pair_table(found: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Sequence[Any]]:
    sides = ("baseline", "candidate")
    yield (
        *("row_digest", "inputs", "baseline output", "candidate output"),
        *(f"{name} {what}" for name in names for what in (*sides, "difference")),
    )
    for pair in found:
        numbers = (pair["baseline"]["values"], pair["candidate"]["values"], pair["differences"])
        outputs = (pair[side]["output"] for side in sides)
        yield (pair["row_digest"], pair["inputs"], *outputs, *(part.get(name) for name in names for part in numbers))


# ---- lines -------------------------------------------------------------------------------------------------------


def json_lines(found: Iterator[Mapping[str, Any]]) -> Iterator[bytes]:
    while batch := b"".join(dumps(one) + b"\n" for one in islice(found, _BATCH)):
        yield batch


def csv_lines(found: Iterator[Sequence[Any]]) -> Iterator[bytes]:
    while batch := list(islice(found, _BATCH)):
        text = io.StringIO()
        csv.writer(text).writerows([_cell(value) for value in line] for line in batch)
        yield text.getvalue().encode()


def _cell(value: Any) -> str:
    """Return a value as a cell. A string that a spreadsheet would take for a formula gets an apostrophe."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return dumps(value).decode()
    return f"'{value}" if value[:1] in tuple("=+-@\t\r") and not _NUMBER.fullmatch(value) else value


class Savable(Protocol):
    @property
    def html(self) -> str: ...

    @property
    def markdown(self) -> str: ...

    @property
    def junit(self) -> str: ...

    def export(self, format: Format = "jsonl") -> Iterator[bytes]: ...


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Raise `InvalidInput` for a name that tells no kind of report, and OSError for a place that takes no file."""
    if PurePath(path).suffix.removeprefix(".") not in (*_WHOLE, *get_args(Format)):
        raise InvalidInput.at("path", msg="must end in .html, .md, .xml (JUnit), .jsonl or .csv")
    check_place(path)
    new = not os.path.lexists(path)
    open(path, "ab").close()
    if new:
        os.remove(path)


def save_report(report: Savable, path: str | os.PathLike[str]) -> None:
    """Write a report to a file of the kind that its ending names: .html, .md, .xml, .jsonl or .csv. Raises
    `InvalidInput`."""
    check_report_path(path)
    ending = PurePath(path).suffix.removeprefix(".")
    formats: tuple[Format, ...] = get_args(Format)
    chosen = next((known for known in formats if known == ending), None)
    lines = iter([_WHOLE[ending](report).encode()]) if chosen is None else report.export(chosen)
    with open(path, "wb") as file:
        file.writelines(lines)


_WHOLE: Mapping[str, Callable[[Savable], str]] = {
    "html": lambda report: report.html,
    "md": lambda report: report.markdown,
    "xml": lambda report: report.junit,
}
