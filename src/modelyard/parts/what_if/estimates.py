"""What users would have said of a model that answered only some of them: a doubly robust estimate.

A rollout gives each user an arm by chance, and keeps the chance. So what was said of the answers of one arm, each
weighted by one over the chance of that arm, stands for all users (Horvitz and Thompson 1952). A prediction of what is
said is added for every answer, and its error on the answers of the arm, weighted, taken away: that is exact on average
however wrong the prediction, and the better it is, the narrower (doubly robust: Dudik, Langford and Li, Doubly robust
policy evaluation and learning, 2011). Predictions for a user are learnt from other users (cross-fitting).

Not every answer gets feedback, and how many do may depend on the arm. So two sums are estimated, of the scores and of
how many there are, and divided. The error of the ratio is that of its linear form, summed by user, because all answers
to a user share one draw (Liang and Zeger 1986), each divided by the share that the other users have of the weight, as
in a jackknife. The interval is Student's, with as many degrees of freedom as there are effective users (Kish 1965) less
one, kept between the bounds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE, Interval, Numbers, constant_mean, student

LEAST_COVERAGE = 0.5
"""The share of the traffic that must have had a chance to be answered by the model."""

LEAST_USERS = 30.0
"""How many effective users must have said something of the model's answers."""

FOLDS = 5


@attrs.frozen
class LoggedAnswer:
    """An answer that a user got: whether it was the model's, the `chance` from 0 to 1 that it was, and what the user
    said of it, from 0 to 1, None for nothing. `predicted` is what is known of the request and tells something of the
    score of the model's answer, such as how a judge scored its answer when asked again; not what the user got."""

    user: str
    seen: bool
    chance: float
    score: float | None = None
    predicted: float | None = None


@attrs.frozen
class Counterfactual:
    """What users would have said if one model had answered all of them.

    `coverage` is the share of the `answers` that the model had a chance to give, and only they are estimated.
    `effective_users` is Kish's effective sample size of the `users` who scored it. `served` is the mean score of what
    was in fact answered, and `difference` that of `mean` and `served`, on the same answers. If coverage or effective
    users are too small, `mean`, `difference` and the intervals are None, and `reason` says why and what is needed.
    """

    answers: int
    coverage: float
    users: int
    effective_users: float
    mean: float | None = None
    interval: Interval | None = None
    served: float | None = None
    difference: float | None = None
    difference_interval: Interval | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.mean is None or self.interval is None:
            return f"no estimate: {self.reason}"
        known = f"{self.coverage:.0%} of {self.answers} answers, {self.effective_users:.0f} effective users"
        found = f"{self.mean:.3f} ({self.interval.low:.3f} to {self.interval.high:.3f})"
        if self.difference is None or self.difference_interval is None or self.served is None:
            return f"{found}; {known}"
        between = self.difference_interval
        change = f"{self.difference:+.3f} ({between.low:+.3f} to {between.high:+.3f})"
        return f"{found}, {change} to {self.served:.3f} as served; {known}"


def effective_size(weights: Iterable[float]) -> float:
    """Return how many equal weights vary as little: the square of the sum over the sum of squares (Kish 1965)."""
    total = squares = 0.0
    for weight in weights:
        total += weight
        squares += weight * weight
    return total * total / squares if squares else 0.0


def doubly_robust(logged: Iterable[LoggedAnswer], confidence: float = CONFIDENCE) -> Counterfactual:
    """Return what users would have said if the model had answered all of them."""
    rows, answers = list[LoggedAnswer](), 0
    for row in logged:
        answers += 1
        if row.chance > 0:
            rows.append(row)
    weights: dict[str, float] = {}
    for row in rows:
        if row.seen and row.score is not None:
            weights[row.user] = weights.get(row.user, 0.0) + 1 / row.chance
    coverage = len(rows) / answers if answers else 0.0
    known = Counterfactual(answers, coverage, len(weights), effective_size(weights.values()))
    reason = _reason(known)
    return attrs.evolve(known, reason=reason) if reason else _estimated(known, rows, weights, confidence)


def _reason(known: Counterfactual) -> str:
    """Return why there is no number, "" if there may be one."""
    if not known.answers:
        return "no answer has an arm and its chance; roll the model out, to some of the users, and score answers"
    if known.coverage < LEAST_COVERAGE:
        least = f"{LEAST_COVERAGE:.0%}"
        return (
            f"the model had a chance to give {known.coverage:.0%} of {known.answers} answers, and {least} are needed; "
            "ask of the time in which it was rolled out, or let the rollout go on"
        )
    if known.effective_users < LEAST_USERS:
        more = LEAST_USERS * known.users / known.effective_users - known.users if known.users else LEAST_USERS
        return (
            f"{known.users} users scored the model's answers, as good as {known.effective_users:.1f} equal ones, and "
            f"{LEAST_USERS:.0f} are needed: about {math.ceil(more)} more, or a greater share of the users"
        )
    return ""


def _estimated(
    known: Counterfactual, rows: Sequence[LoggedAnswer], weights: Mapping[str, float], confidence: float
) -> Counterfactual:
    models = _models(rows)
    by_user: dict[str, list[float]] = {}
    for row in rows:
        often, level, slope = models[_fold(row.user)]
        expected = often * (level if row.predicted is None else level + slope * row.predicted)
        spoken, value = (0.0, 0.0) if row.score is None else (1.0, row.score)
        score, count = expected, often
        if row.seen:
            score += (value - expected) / row.chance
            count += (spoken - often) / row.chance
        sums = by_user.setdefault(row.user, [0.0, 0.0, 0.0, 0.0])
        for at, one in enumerate((score, count, value, spoken)):
            sums[at] += one
    scores, counts, said, spoke = ([sums[at] for sums in by_user.values()] for at in range(4))
    total, heard, whole = math.fsum(counts), math.fsum(spoke), math.fsum(weights.values())
    if total <= 0:
        return attrs.evolve(known, reason="too few answers got a score; more scores are needed")
    mean, served = math.fsum(scores) / total, math.fsum(said) / heard
    left = [1 - weights.get(user, 0.0) / whole for user in by_user]
    off = [(a - mean * b) / total / c for a, b, c in zip(scores, counts, left, strict=True)]
    between = [a - (b - served * c) / heard for a, b, c in zip(off, said, spoke, strict=True)]
    groups = math.floor(known.effective_users)
    return attrs.evolve(
        known,
        mean=min(1.0, max(0.0, mean)),
        interval=_interval(mean, off, groups, confidence, 0.0),
        served=served,
        difference=min(1.0, max(-1.0, mean - served)),
        difference_interval=_interval(mean - served, between, groups, confidence, -1.0),
    )


def _interval(middle: float, parts: Sequence[float], groups: int, confidence: float, least: float) -> Interval | None:
    """Return the interval of a number from `least` to 1 that is off by the sum of independent parts with mean 0."""
    count = len(parts)
    error = math.sqrt(count / (count - 1) * math.fsum(one * one for one in parts))
    found = student(Numbers(count, middle, error=error), groups, confidence)
    if found is None:
        return constant_mean(min(1.0, max(least, middle)), groups, confidence, least, 1.0)
    return Interval(min(1.0, max(least, found.low)), max(least, min(1.0, found.high)), confidence)


def _fold(user: str) -> int:
    return crc32(user.encode()) % FOLDS


Model = tuple[float, float, float]
"""How often the model's answers are scored, and a line of the score over what was predicted: its level and slope."""


def _models(rows: Sequence[LoggedAnswer]) -> Mapping[int, Model]:
    """Return a prediction for each fold of the users, learnt from the answers of the model to the others."""
    folds = [[0.0] * 6 for _ in range(FOLDS)]
    lines = all(row.predicted is not None for row in rows)
    for row in rows:
        if row.seen:
            sums = folds[_fold(row.user)]
            sums[0] += 1
            if row.score is not None:
                at = row.predicted if lines and row.predicted is not None else 0.0
                for place, value in enumerate((1.0, row.score, at, at * at, at * row.score), 1):
                    sums[place] += value
    whole = [math.fsum(sums[place] for sums in folds) for place in range(6)]
    return {at: _model([a - b for a, b in zip(whole, sums, strict=True)]) for at, sums in enumerate(folds)}


def _model(sums: Sequence[float]) -> Model:
    answers, scored, score, at, square, product = sums
    if answers < 1 or scored < 1:
        return 0.0, 0.0, 0.0
    varied = square - at * at / scored
    slope = (product - at * score / scored) / varied if scored > 2 and varied > 1e-9 * (1 + square) else 0.0
    return scored / answers, (score - slope * at) / scored, slope
