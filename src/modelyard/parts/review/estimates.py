"""What a judge's numbers are worth: its agreement with people, and corrected means and differences with a verdict."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE, Interval, clustered_error, describe
from modelyard.errors import InvalidInput
from modelyard.parts.review.agreement import Confusion, cohen_kappa, fleiss_kappa, krippendorff_alpha
from modelyard.parts.review.corrected import (
    Corrected,
    DesignedRow,
    Shares,
    of_design,
    of_few_values,
    of_numbers,
    of_other_rows,
)
from modelyard.parts.review.judges import JudgedRows, Key
from modelyard.parts.review.labels import LabelledRows
from modelyard.parts.review.records import is_number
from modelyard.report.numbers import confidence_text


@attrs.frozen
class Agreement:
    """How far a judge and people agree, on the `labelled` rows that count. None is what cannot be computed.

    `kappa` (Cohen's), `sensitivity` and `specificity` are of the judge and the majority of people, `kappa` for yes and
    no or `choices`; `alpha` (Krippendorff's) of the judge and the mean of people. `people_kappa` (Fleiss') and
    `people_alpha` are of people among themselves: a judge can hardly agree with them more than they do. Alphas are
    nominal for yes and no, else interval; there is none of the judge if rows were drawn by score, as these do not weigh
    the same.
    """

    labelled: int
    unsure: int
    people: int
    kappa: float | None = None
    alpha: float | None = None
    people_kappa: float | None = None
    people_alpha: float | None = None
    confusion: Confusion | None = None
    sensitivity: Interval | None = None
    specificity: Interval | None = None


@attrs.frozen
class JudgeCheck:
    """Whether people have checked a version of a scorer: `scorer` is its reference, and `models` are those that it
    asks. If not, `reason` is why, and there is no agreement. It is true if they have."""

    scorer: str
    models: Mapping[str, str]
    checked: bool
    reason: str = ""
    agreement: Agreement | None = None

    def __bool__(self) -> bool:
        return self.checked

    def __str__(self) -> str:
        if self.agreement is None:
            return f"{self.scorer}: not checked, {self.reason}"
        found = self.agreement
        words = [f"{found.labelled} rows labelled by {found.people}"]
        numbers = {"kappa": found.kappa, "alpha": found.alpha, "people's alpha": found.people_alpha}
        words += [f"{name} {value:.2f}" for name, value in numbers.items() if value is not None]
        if found.confusion is not None:
            for name in ("sensitivity", "specificity"):
                value, interval = getattr(found.confusion, name), getattr(found, name)
                words += [] if value is None else [f"{name} {value:.2f} ({interval.low:.2f} to {interval.high:.2f})"]
        return f"{self.scorer}: {', '.join(words)}"


def agreement(reviews: Sequence[LabelledRows], confidence: float = CONFIDENCE) -> Agreement:
    """Return the agreement over the rows of several reviews of one version of a scorer."""
    pairs = [pair for one in reviews for pair in one.pairs]
    weighed = any(one.review.by_score for one in reviews)
    weights = [weight for one in reviews for weight in one.weights or [1.0] * len(one.pairs)] if weighed else []
    ratings = [values for one in reviews for values in one.ratings]
    people = {name for one in reviews for row in one.labels[: one.counted] for name in row}
    labelled = sum(map(bool, ratings))
    yes_no = all(one.review.yes_no for one in reviews)
    level = "nominal" if yes_no else "interval"
    found = Agreement(
        labelled,
        len(ratings) - labelled,
        len(people),
        alpha=None if weights else krippendorff_alpha(pairs, level),
        people_kappa=fleiss_kappa(ratings),
        people_alpha=krippendorff_alpha(ratings, level),
    )
    if all(one.review.choices for one in reviews):
        found = attrs.evolve(found, kappa=cohen_kappa(pairs, weights))
    if not yes_no:
        return found
    confusion = sum((one.confusion for one in reviews), Confusion())
    return attrs.evolve(
        found,
        confusion=confusion,
        sensitivity=confusion.sensitivity_interval(confidence),
        specificity=confusion.specificity_interval(confidence),
    )


# ---- a run


@attrs.frozen
class JudgedMean:
    """The mean of a run as its judge sees it, and corrected by labels. `corrected.interval` is None if the judge is not
    checked, or if nothing can be told. `unsure` rows have no label that says something."""

    run_id: str
    check: JudgeCheck
    corrected: Corrected
    unsure: int = 0

    def __str__(self) -> str:
        found = self.corrected
        judged = f"{found.judged:.3f} as judged on {found.rows} rows"
        if found.interval is None or found.mean is None:
            why = "nothing can be told from these labels" if self.check.checked else f"not checked: {self.check.reason}"
            return f"{judged}; {why}"
        where = "here" if found.method == "ppi" else "on other rows"
        return f"{interval_text(found.mean, found.interval)}, from {found.labelled} labels {where}; {judged}"


def interval_text(mean: float, interval: Interval) -> str:
    """Return a number with its interval, as people read them."""
    return f"{mean:.3f} ({interval.low:.3f} to {interval.high:.3f} at {confidence_text(interval.confidence)})"


def corrected_mean(judged: JudgedRows, own: LabelledRows | None, confidence: float) -> Corrected:
    """Correct the mean of a run by labels of its own rows."""
    if own is None:
        return _plain(judged)
    by_key = _by_key(judged, own)
    if own.review.by_score or judged.clustered:
        labels = {key: _mean(values) for key, values in by_key.items()}
        return _designed([judged], [own], {key: row.value for key, row in judged.rows.items()}, labels, confidence)
    known = [(judged.rows[key].value, values) for key, values in by_key.items()]
    if own.review.yes_no and judged.of_yes_and_no:
        shares = [(value, _shares(values)) for value, values in known]
        return of_few_values(Counter(row.value for row in judged.rows.values()), shares, (0.0, 1.0), confidence)
    means = [(value, math.fsum(values) / len(values)) for value, values in known]
    return of_numbers([row.value for row in judged.rows.values()], means, confidence, _bounds([judged], [own]))


def _designed(
    runs: Sequence[JudgedRows],
    reviews: Sequence[LabelledRows],
    values: Mapping[Key, float],
    labels: Mapping[Key, float],
    confidence: float,
) -> Corrected:
    """Correct a mean of the last run, or a difference of both, where rows go together or were drawn by score."""
    last, by_score = runs[-1], any(one.review.by_score for one in reviews)
    rows = [
        DesignedRow(
            value,
            last.rows[key].cluster or key,
            tuple(one.stratum(one.rows[key].value) for one in runs) if by_score else 0,
            labels.get(key),
        )
        for key, value in values.items()
    ]
    least, most = _bounds(runs, reviews) if reviews else (0.0, 0.0)
    return of_design(rows, confidence, (least, most) if len(runs) == 1 else (least - most, most - least))


def _bounds(judged: Sequence[JudgedRows], labels: Sequence[LabelledRows]) -> tuple[float, float]:
    """Return the least and the most that a label may be: of the choices, or of all values that were seen."""
    seen = [value for one in labels for value in one.review.choices]
    if not all(one.review.choices for one in labels):
        seen += [row.value for one in judged for row in one.rows.values()]
        seen += [value for one in labels for values in one.ratings for value in values]
    return min(seen), max(seen)


def _by_key(judged: JudgedRows, labels: LabelledRows) -> dict[Key, list[float]]:
    """Return the labels of the rows that have some, by the keys of the rows."""
    keys = judged.keys
    return {keys[row.prediction_id]: said for row, said in labels.values() if said and row.prediction_id in keys}


def _plain(judged: JudgedRows) -> Corrected:
    values = [row.value for row in judged.rows.values()]
    return Corrected("ppi", len(values), 0, math.fsum(values) / len(values))


def _shares(values: Sequence[float]) -> Shares:
    """Return how several labels of one row are spread."""
    return {value: count / len(values) for value, count in Counter(values).items()}


def corrected_elsewhere(judged: JudgedRows, known: Confusion, confidence: float) -> Corrected:
    """Correct the rate of a run by how a judge errs on other rows."""
    if not judged.yes_no:
        return _plain(judged)
    passed, rows = sum(row.value == 1 for row in judged.rows.values()), len(judged.rows)
    found = of_other_rows(passed, rows, known, confidence)
    if not judged.clustered or not 0 < passed < rows:
        return found
    values, clusters = [row.value for row in judged.rows.values()], [row.cluster for row in judged.rows.values()]
    error, plain = clustered_error(values, clusters), describe(values).error
    if error is None or plain is None:
        return attrs.evolve(found, interval=None)
    worth = min(1.0, (plain / error) ** 2)  # of a row: those that go together say less
    between = of_other_rows(passed * worth, rows * worth, known, confidence).interval
    return attrs.evolve(found, interval=between)


# ---- two runs


class JudgedVerdict(StrEnum):
    """What a corrected difference shows of a candidate. Only `NOT_WORSE` is true."""

    NOT_WORSE = "not worse"
    WORSE = "worse"
    CANNOT_TELL = "the judge cannot tell a difference of this size"
    NOT_CHECKED = "the judge is not checked"

    def __bool__(self) -> bool:
        return self is JudgedVerdict.NOT_WORSE


@attrs.frozen
class JudgedDifference:
    """The difference of a candidate and a baseline, candidate minus baseline, as their judge sees it and corrected by
    labels of the same rows of both. Lower is better if `lower_is_better`."""

    baseline: str
    candidate: str
    check: JudgeCheck
    corrected: Corrected
    lower_is_better: bool = False

    def __bool__(self) -> bool:
        raise TypeError("a difference is neither true nor false; ask its verdict(margin)")

    def verdict(self, margin: float) -> JudgedVerdict:
        """Return whether the candidate is at most `margin` worse, by the whole interval. Raises `InvalidInput` for a
        margin below 0, or that is no number."""
        if isinstance(margin, bool) or not is_number(margin) or margin < 0:
            raise InvalidInput.at("margin", msg="must be a number from 0")
        interval = self.corrected.interval
        if not self.check.checked:
            return JudgedVerdict.NOT_CHECKED
        if interval is None:
            return JudgedVerdict.CANNOT_TELL
        least, most = (-interval.high, -interval.low) if self.lower_is_better else (interval.low, interval.high)
        if least >= -margin:
            return JudgedVerdict.NOT_WORSE
        return JudgedVerdict.WORSE if most < -margin else JudgedVerdict.CANNOT_TELL

    def labels_needed(self, margin: float) -> int | None:
        """Return about how many labels would tell, if the difference is as estimated and no row is left without one;
        None if more labels do not help."""
        found = self.corrected
        if found.interval is None or found.mean is None:
            return None
        better = -found.mean if self.lower_is_better else found.mean
        half = (found.interval.high - found.interval.low) / 2
        if better == -margin:
            return None
        needed = math.ceil(found.labelled * (half / abs(better + margin)) ** 2)
        return needed if found.labelled < needed <= found.rows else None

    def __str__(self) -> str:
        found = self.corrected
        judged = f"{found.judged:+.3f} as judged on {found.rows} rows of both"
        if found.interval is None or found.mean is None:
            why = "too few rows of both are labelled" if self.check.checked else f"not checked: {self.check.reason}"
            return f"{judged}; {why}"
        return f"{interval_text(found.mean, found.interval)}, from {found.labelled} rows labelled in both; {judged}"


def refusal_text(found: JudgedDifference, margin: float) -> str:
    """Return why a difference does not meet a margin, and about how many labels would tell."""
    verdict = found.verdict(margin)
    needed = found.labels_needed(margin) if verdict is JudgedVerdict.CANNOT_TELL else None
    more = f"; about {needed} labelled rows would tell" if needed else ""
    return f"{verdict} (margin {margin:g}): {found}{more}"


def numbers_of(found: JudgedDifference) -> Mapping[str, Any]:
    """Return the numbers of a difference that is shown to be no worse, to keep them."""
    corrected, between = found.corrected, found.corrected.interval
    assert between is not None, "without an interval there is no such verdict"
    return {
        "verdict": JudgedVerdict.NOT_WORSE.value,
        "labelled": corrected.labelled,
        "judged": corrected.judged,
        "difference": corrected.mean,
        "low": between.low,
        "high": between.high,
    }


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """Return what a promotion was decided by, to follow its change; "" for nothing."""
    numbers = (
        f"; {name} {one['difference']:+.3f} ({one['low']:.3f} to {one['high']:.3f}), from {one['labelled']} labels"
        for name, one in verdict.get("metrics", {}).items()
    )
    return f"; {verdict['outcome']}{''.join(numbers)}" if verdict else ""


def corrected_difference(
    before: JudgedRows, after: JudgedRows, labels: Sequence[LabelledRows], confidence: float
) -> Corrected:
    """Correct a difference by the rows that are labelled in both runs. `labels` are those of both, or nothing."""
    both = [key for key in before.rows if key in after.rows]
    judged = {key: after.rows[key].value - before.rows[key].value for key in both}
    known = [_by_key(rows, one) for rows, one in zip((before, after), labels, strict=False)] or [{}, {}]
    labelled = [(judged[key], known[0][key], known[1][key]) for key in known[0] if key in known[1]]
    if after.clustered or any(one.review.by_score for one in labels):
        said = {key: _mean(known[1][key]) - _mean(known[0][key]) for key in known[0] if key in known[1]}
        return _designed([before, after], labels, judged, said, confidence)
    if before.yes_no and after.yes_no:
        shares = [(value, _difference(one, other)) for value, one, other in labelled]
        return of_few_values(Counter(judged.values()), shares, (-1.0, 0.0, 1.0), confidence)
    means = [(value, math.fsum(b) / len(b) - math.fsum(a) / len(a)) for value, a, b in labelled]
    least, most = _bounds([before, after], labels) if labels else (0.0, 0.0)
    return of_numbers(list(judged.values()), means, confidence, (least - most, most - least))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _difference(before: Sequence[float], after: Sequence[float]) -> Shares:
    """Return how the difference of two rows is spread, if each person's word counts the same."""
    lost, won = math.fsum(before) / len(before), math.fsum(after) / len(after)
    shares = {-1.0: lost * (1 - won), 1.0: won * (1 - lost)}
    return {**shares, 0.0: 1 - shares[-1.0] - shares[1.0]}
