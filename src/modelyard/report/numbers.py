"""Numbers of an evaluation in the form that people read."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Protocol, TypeVar

from modelyard.domain.evaluation.aggregate import Aggregate, RowNote
from modelyard.domain.evaluation.comparison import MetricComparison
from modelyard.domain.evaluation.metrics import NONE as NONE
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.metrics import mean_text as mean_text
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.statistics import Interval
from modelyard.report.table import printable

MOST_PROMPT = 60
_DIGEST = re.compile(r"[\w-]{43}|[0-9a-f]{64}")


def value_text(value: float | None, kind: MetricKind | None) -> str:
    """Format a row's value; of bools in words, unless trials were averaged.

    >>> value_text(1.0, Kind.BINARY), value_text(0.5, Kind.BINARY), value_text(1.0, Kind.CONTINUOUS)
    ('passed', '0.5', '1')
    """
    if kind is MetricKind.BINARY and value in (0, 1):
        return "passed" if value else "failed"
    return mean_text(value, MetricKind.CONTINUOUS)


def ref_text(text: str) -> str:
    """Return the name and the version in a reference, and any other string unchanged. A digest is cut.

    >>> ref_text("weave:///acme/support/object/replies:step3")
    'replies:step3'
    >>> ref_text("weave:///acme/support/object/replies:SwXOY4Xn8VZbq2dYfJ1c0aLr7mKtGhPe3uWsNiEoQvB")
    'replies:SwXOY4Xn…'
    """
    ref = ObjectRef.parse(text)
    if ref is None:
        return text
    return f"{ref.name}:{_short_version(ref.version)}" if ref.version else ref.name


def run_title(run: EvaluationRun) -> str:
    """Return the name by which commands take the newest run of an evaluation of a model."""
    return f"{ref_text(run.evaluation)}@{ref_text(run.model)}"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def primary_first(run: EvaluationRun, metrics: Iterable[N]) -> tuple[N, ...]:
    """Return metrics with that of the run's first scorer before the others."""
    scorer = (run.summary or {}).get("scorer")
    return tuple(sorted(metrics, key=lambda one: one.name != scorer))


def errors_text(found: Aggregate) -> str:
    """Return what a count of rows with errors is followed by: also whether scorers alone have failed on them."""
    judged = found.failed and found.metrics and not any(one.model_errors for one in found.metrics)
    return f"with errors{' of scorers alone' if judged else ''}"


def alike(notes: Iterable[RowNote]) -> list[list[RowNote]]:
    """Return rows with errors by what went wrong, the most frequent first."""
    found = dict[str, list[RowNote]]()
    for note in notes:
        found.setdefault(note.detail, []).append(note)
    return sorted(found.values(), key=len, reverse=True)


def model_text(run: EvaluationRun, *others: EvaluationRun) -> str:
    """Return the name of a run's model, and how the prompts begin that it was asked with, and not every other run."""
    apart = run.prompts.items() - (set.intersection(*(set(one.prompts.items()) for one in others)) if others else ())
    prompts = [f"{kind} {' '.join(text.split())!r}" for kind, text in run.prompts.items() if (kind, text) in apart]
    short = (text if len(text) <= MOST_PROMPT else f"{text[:MOST_PROMPT]}…" for text in prompts)
    source = (run.summary or {}).get("imported")
    return ", ".join((ref_text(run.model), *short, *([f"imported from {source}"] if source else [])))


def scorer_text(run: EvaluationRun) -> str:
    """Return the name of the scorer that a run's score is of, and whether its outputs were rescored by it."""
    named = (run.summary or {}).get("scorer")
    name = named if isinstance(named, str) else NONE
    return f"{name}, rescored" if run.source_evaluation_run_id is not None else name


def score_text(run: EvaluationRun) -> str:
    """Format the score of a run as `mean_text` does; of a run that was stored without its kind, as a number."""
    return stored_mean_text(run.summary or {})


def stored_mean_text(entry: Mapping[str, Any]) -> str:
    """Format the mean of a metric in a stored summary."""
    mean = entry.get("mean")
    return mean_text(mean if isinstance(mean, int | float) else None, stored_kind(entry))


def stored_kind(entry: Mapping[str, Any]) -> MetricKind | None:
    """Return whether the values of a metric in a stored summary are bools; None if they are not, or nothing is said."""
    return MetricKind.BINARY if entry.get("kind") == MetricKind.BINARY else None


def _short_version(version: str) -> str:
    return f"{version[:8]}…" if _DIGEST.fullmatch(version) else version


def id_text(id: str) -> str:
    """Return the end of an id, which is where ids that were made at the same time differ.

    >>> id_text("01a20526-2a79-7002-92ce-58b75c826245")
    '…5c826245'
    """
    return f"…{id[-8:]}" if len(id) > 12 else id


def difference_text(value: float | None, kind: MetricKind) -> str:
    """Format a difference with its sign; of shares, in percentage points.

    >>> difference_text(-0.125, Kind.BINARY), difference_text(0.125, Kind.CONTINUOUS)
    ('-12.5 pp', '+0.125')
    """
    if value is None:
        return NONE
    return f"{value * 100:+.1f} pp" if kind is MetricKind.BINARY else f"{value:+.4g}"


def interval_text(interval: Interval | None, kind: MetricKind | None) -> str:
    if interval is None:
        return NONE
    ends = (mean_text(end, kind).removesuffix(" %") for end in (interval.low, interval.high))
    return " to ".join(ends) + (" %" if kind is MetricKind.BINARY else "")


def span_text(interval: Interval | None, kind: MetricKind) -> str:
    if interval is None:
        return NONE
    low, high = (difference_text(end, kind) for end in (interval.low, interval.high))
    return f"{low.removesuffix(' pp')} to {high}"


def p_text(p: float | None) -> str:
    """Format a p-value.

    >>> p_text(0.03125), p_text(1e-9)
    ('0.031', '< 0.0001')
    """
    if p is None:
        return NONE
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def confidence_text(confidence: float) -> str:
    return f"{confidence * 100:.6g} %"


def count_text(count: int | None) -> str:
    return NONE if count is None else f"{count:,}"


def clusters_text(cluster_by: str | None) -> str:
    return "" if cluster_by is None else f", with rows of one {printable(cluster_by)!r} taken together"


def left_out_text(one: MetricComparison) -> str:
    lacking = {"baseline": one.only_candidate, "candidate": one.only_baseline, "both": one.neither}
    counts = [f"{count_text(count)} in {'the ' * (name != 'both')}{name}" for name, count in lacking.items() if count]
    return f"rows without a value: {', '.join(counts)}" if counts else ""


def equal_rows_text(found: Aggregate) -> str:
    return f"{count_text(found.equal_rows)} further rows are equal to one of these, and count as trials of it"


def direction_text(lower_is_better: bool) -> str:
    return ", lower is better" if lower_is_better else ""


def seconds_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def money_text(amount: Decimal | None) -> str:
    return NONE if amount is None else f"${amount.normalize():f}"
