"""Several runs compared pair by pair, with p corrected for all pairs and metrics together."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations

import attrs

from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary
from modelyard.domain.evaluation.comparison import Comparison, MetricComparison, Verdict, holm_of_some
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.errors import InvalidInput
from modelyard.parts.comparisons.sheet import Sheet, SheetTable, Shown
from modelyard.platform.evaluations.result import AnyRun, run_id_of
from modelyard.report.evaluations.comparison import UNPAIRED, cells
from modelyard.report.numbers import (
    NONE,
    clusters_text,
    confidence_text,
    count_text,
    id_text,
    interval_text,
    left_out_text,
    mean_text,
    ref_text,
)

NUMBERS = ("rows", "difference", "interval", "better", "same", "worse", "p")
PAIRS = ("metric", "candidate", "baseline", *NUMBERS, "verdict")


@attrs.frozen
class ComparedPair:
    """A candidate compared with a baseline, each a run's label. The `corrected` p of its metrics is Holm's over all
    pairs and metrics of the whole comparison."""

    baseline: str
    candidate: str
    comparison: Comparison
    remarks: tuple[str, ...] = ()


@attrs.frozen(repr=False, slots=False)
class RunsComparison(Shown):
    """Several runs compared with each other or with a baseline, row by row, in one table.

    Each pair is compared on the rows that are in both of its runs. `runs` are by their labels: the names of their
    models, with the end of the run's id if models have one name.

    report = platform.evaluations.compare_all([first, second, third], baseline=first)
    report.save("models.html")
    """

    runs: dict[str, EvaluationRun]
    numbers: dict[str, Aggregate]
    pairs: tuple[ComparedPair, ...]
    baseline: str | None

    def pair(self, baseline: AnyRun, candidate: AnyRun) -> Comparison:
        """Return the comparison of two runs, each by its label, as a run or a result, by its id, or by the name of its
        model if one run alone has it. Raises `InvalidInput` naming those that exist."""
        asked = self._labelled(baseline), self._labelled(candidate)
        for one in self.pairs:
            if (one.baseline, one.candidate) == asked:
                return one.comparison
        known = ", ".join(f"{one.candidate} with {one.baseline}" for one in self.pairs)
        raise InvalidInput.at("pair", msg=f"must be one of those that were compared: {known}")

    def _labelled(self, given: AnyRun) -> str | None:
        name = run_id_of(given)
        if name in self.runs:
            return name
        found = [label for label, run in self.runs.items() if name == run.id or name in _names(run)]
        if len(found) > 1:
            raise InvalidInput.at("pair", msg=f"several runs are of {name}: name one of {', '.join(found)}")
        return found[0] if found else None

    @property
    def tests(self) -> int:
        """How many tests p is corrected for: pairs times metrics, without those that could not be tested."""
        return sum(metric.paired.p is not None for pair in self.pairs for metric in pair.comparison.metrics)

    def __repr__(self) -> str:
        return f"<RunsComparison of {len(self.runs)} runs: {len(self.pairs)} pairs>"

    @cached_property
    def sheet(self) -> Sheet:
        names = list(dict.fromkeys(metric.name for found in self.numbers.values() for metric in found.metrics))
        runs = [(label, id_text(run.id), *self._numbers(label, names)) for label, run in self.runs.items()]
        lines = [line for name in names for line in self._lines(name)]
        tables = [SheetTable("Runs", ("run of", "id", "rows", *names), runs, ("rows", *names))]
        if lines:
            tables.append(SheetTable("Pairs, candidate minus baseline", PAIRS, lines, NUMBERS))
        return Sheet(self._title(), self._sentences(names), tables, list(dict.fromkeys(self._notes())))

    def _title(self) -> str:
        return f"{len(self.runs)} runs compared" + (f" with {self.baseline}" if self.baseline else ", all pairs")

    def _numbers(self, label: str, names: Sequence[str]) -> Iterable[str]:
        found = {metric.name: metric for metric in self.numbers[label].metrics}
        return [count_text(self.numbers[label].rows), *(_mean(found.get(name)) for name in names)]

    def _of(self, name: str) -> Iterable[tuple[ComparedPair, MetricComparison]]:
        return ((pair, metric) for pair in self.pairs for metric in pair.comparison.metrics if metric.name == name)

    def _lines(self, name: str) -> Iterable[Sequence[object]]:
        for pair, metric in self._of(name):
            shown, _, _, *rest = cells(metric)
            yield shown, pair.candidate, pair.baseline, count_text(metric.paired.count), *rest

    def _sentences(self, names: Sequence[str]) -> list[str]:
        found = [sentence for name in names for pair in self._of(name) if (sentence := _sentence(*pair))]
        return found or ["No difference is shown."]

    def _notes(self) -> Iterable[str]:
        options = self.pairs[0].comparison.options
        sure, clusters = confidence_text(options.confidence), clusters_text(options.cluster_by)
        yield f"intervals at {sure}, each of its own pair{clusters}; p corrected for {self.tests} tests (Holm)"
        for pair in self.pairs:
            found, named = pair.comparison, f"{pair.candidate} and {pair.baseline}"
            if not found.rows:
                yield f"{named}: {UNPAIRED}"
            yield from (
                f"{named}, {metric.name}, {left}" for metric in found.metrics if (left := left_out_text(metric))
            )
            yield from (f"{named}: not compared: {name}, {why}" for name, why in found.uncompared.items())
            yield from (f"{named}: {remark}" for remark in pair.remarks)


def _names(run: EvaluationRun) -> tuple[str, str]:
    """Return the name of a run's model, and that without its version."""
    name = ref_text(run.model)
    return name, name.partition(":")[0]


def _mean(found: MetricSummary | None) -> str:
    if found is None or found.mean is None:
        return NONE
    between = f" ({interval_text(found.interval, found.kind)})" if found.interval else ""
    return f"{mean_text(found.mean, found.kind)}{between}"


def _sentence(pair: ComparedPair, metric: MetricComparison) -> str:
    if metric.verdict not in (Verdict.BETTER, Verdict.WORSE):
        return ""
    return f"{pair.candidate} is {metric.verdict.value} than {pair.baseline} on {metric.name}."


# ---- pairs and their correction


def pairs_of(places: Sequence[int], baseline: int | None) -> list[tuple[int, int]]:
    """Return the pairs (baseline, candidate) to compare: all, or those with the baseline."""
    if baseline is None:
        return list(combinations(places, 2))
    return [(baseline, one) for one in places if one != baseline]


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Correct p by Holm (1979) for all metrics of all comparisons together, instead of those of each."""
    metrics = [metric for one in found for metric in one.metrics]
    ps = holm_of_some([metric.paired.p for metric in metrics])
    everywhere = holm_of_some([metric.all_rows.p for metric in metrics])
    changed = iter(
        [
            attrs.evolve(metric, corrected=p, corrected_all_rows=p_all)
            for metric, p, p_all in zip(metrics, ps, everywhere, strict=True)
        ]
    )
    return [attrs.evolve(one, metrics=tuple(next(changed) for _ in one.metrics)) for one in found]
