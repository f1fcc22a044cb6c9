"""What a rollout does next, as a function of what is known of it."""

from collections.abc import Mapping
from datetime import datetime

import attrs

from modelyard.parts.rollouts.records import (
    JUDGED_STAGE,
    UNIT,
    RolloutChange,
    RolloutState,
    RolloutTally,
    Side,
    StagedRollout,
)
from modelyard.parts.rollouts.sequence import Arm, interval_of_difference, interval_of_mean

SLOW_SHARE = 0.05
"""The share of answers that may take longer than a limit of "p95"."""

COUNTED_UP_TO = 20
"""A cost is counted up to so many times its limit, which makes the mean less, and never more."""

Tallies = Mapping[tuple[int, Side], RolloutTally]
"""The tallies of a rollout, by stage and arm."""


@attrs.frozen
class Limited:
    """What the candidate has of a limit, as a confidence sequence, and the most that it may have: the share of
    "errors", the mean "cost" in USD, or, of "p95", the share of answers that took longer."""

    name: str
    low: float
    high: float
    most: float


@attrs.frozen
class Judged:
    """What a scorer says of mirrored requests: the means of so many `pairs` of answers, of the baseline, which users
    got, and of the candidate, and the confidence sequence of their difference, which is that of pairs."""

    name: str
    pairs: int
    baseline: float | None
    candidate: float | None
    low: float
    high: float

    def __str__(self) -> str:
        if self.baseline is None or self.candidate is None:
            return f"{self.name}: no mirrored request is scored yet"
        means = f"{self.baseline:.4f} and {self.candidate:.4f} of {self.pairs} mirrored requests"
        return f"{self.name}: {means}, difference surely {self.low:+.4f} to {self.high:+.4f}"


@attrs.frozen
class Standing:
    """How a rollout stands in a stage. `low` and `high` are the confidence sequence of the difference of the arms,
    candidate minus baseline, turned so that more is better: the rollout goes on once it lies above minus `margin`, and
    back once it lies below. `limits` are what the candidate has of them. `judged` are scores of mirrored requests."""

    of: StagedRollout = attrs.field(repr=False)
    stage: int
    baseline: RolloutTally
    candidate: RolloutTally
    margin: float
    difference: float | None
    low: float
    high: float
    limits: tuple[Limited, ...]
    judged: Judged | None = None

    def __str__(self) -> str:
        of, said = self.of, "no scores of both yet"
        if self.difference is not None:
            said = f"{self.difference:+.4f}, surely {self.low:+.4f} to {self.high:+.4f}"
        share = "mirrored" if self.stage < 0 else f"{of.share_of(self.stage):.0%} of the users"
        lines = [str(of), f"{of.metric}, {share}: {said}; {self.verdict}"]
        lines += [_told(of, side, tally) for side, tally in zip(Side, (self.baseline, self.candidate), strict=True)]
        lines += [f"{one.name}: surely {one.low:.4g} to {one.high:.4g}, of at most {one.most:g}" for one in self.limits]
        return "\n".join([*lines, *([] if self.judged is None else [str(self.judged)])])

    @property
    def verdict(self) -> str:
        """What the sequence shows of the candidate, in words."""
        if self.high < -self.margin:
            return f"worse by more than {self.margin:g}"
        if self.low > -self.margin:
            return f"not worse by more than {self.margin:g}"
        return f"not known yet whether it is worse by more than {self.margin:g}"


def _told(of: StagedRollout, side: Side, tally: RolloutTally) -> str:
    mean = "" if tally.mean is None else f", mean {tally.mean:.4f}"
    counted = f"{tally.answers} answers, {tally.failed} failed, {tally.cost:f} USD"
    return f"{of.word} {of.step_of(side)}: {tally.scores} scores{mean}; {counted}"


@attrs.frozen
class Decision:
    """What happens next, and why."""

    change: RolloutChange
    reason: str = ""


def standing(rollout: StagedRollout, tallies: Tallies) -> Standing:
    """Return how a rollout stands in the stage that it is in. While all users have the candidate, the baseline is that
    of the stage before."""
    stage = rollout.stage
    before = stage - 1 if stage > 0 and rollout.share_of(stage) == 1 else stage
    baseline, candidate = _tally(rollout, tallies, before, Side.BASELINE), _tally(rollout, tallies, stage)
    arms = _arm(rollout, baseline), _arm(rollout, candidate)
    found = interval_of_difference(*arms, rollout.alpha)
    means = arms[0].mean, arms[1].mean
    difference = None if means[0] is None or means[1] is None else means[1] - means[0]
    limits = tuple(_limited(rollout, candidate, name) for name in rollout.limits)
    return Standing(
        rollout,
        stage,
        baseline,
        candidate,
        rollout.margin,
        difference,
        found.low,
        found.high,
        limits,
        _judged(rollout, tallies),
    )


def decide(rollout: StagedRollout, found: Standing, now: datetime) -> Decision:
    """Return what follows. The same is known again after a crash, and the same is decided."""
    for one in found.limits:
        if one.low > one.most:
            what = f"{one.name} is above {rollout.limits[one.name]:g}"
            return Decision(RolloutChange.ROLLED_BACK, f"{what}: {one.low:.4g} or more, of at most {one.most:g}")
    if found.high < -rollout.margin:
        reason = f"{rollout.metric} is worse by more than {rollout.margin:g}: by {-found.high:.4f} or more"
        return Decision(RolloutChange.ROLLED_BACK, reason)
    if rollout.state is RolloutState.SHADOW and found.judged is not None and found.judged.high < -rollout.margin:
        what = f"{found.judged.name} of mirrored answers is worse by more than {rollout.margin:g}"
        return Decision(RolloutChange.ROLLED_BACK, f"{what}: by {-found.judged.high:.4f} or more")
    if now < rollout.since:
        return Decision(RolloutChange.LOOKED)
    if rollout.state is RolloutState.SHADOW:
        wanted, mirrored = rollout.shadow["answers"], found.candidate.answers + found.candidate.failed
        enough = mirrored >= wanted and now >= rollout.created_at + rollout.shadow_lasts
        return Decision(RolloutChange.ADVANCED if enough else RolloutChange.LOOKED)
    if rollout.state is RolloutState.WATCH:
        seen = found.candidate.scores >= rollout.least
        return Decision(RolloutChange.PROMOTED, "") if seen else Decision(RolloutChange.LOOKED)
    enough = min(found.baseline.scores, found.candidate.scores) >= rollout.least
    if enough and found.low > -rollout.margin:
        reason = f"{rollout.metric} is not worse by more than {rollout.margin:g}: {found.low:+.4f} to {found.high:+.4f}"
        return Decision(RolloutChange.ADVANCED, reason)
    return Decision(RolloutChange.LOOKED)


def _judged(rollout: StagedRollout, tallies: Tallies) -> Judged | None:
    """Return what a scorer says of mirrored requests. Two answers to one request are not independent, so it is the mean
    of the differences, each as a value from 0 to 1, that is bounded."""
    if "scorer" not in rollout.shadow:
        return None
    arms = (_tally(rollout, tallies, JUDGED_STAGE, side) for side in Side)
    baseline, candidate = arms
    pairs, more = candidate.scores, (candidate.total - baseline.total) / UNIT
    found = interval_of_mean(Arm(pairs, (pairs + more) / 2), rollout.alpha)
    of = rollout.shadow["scorer"]["name"], pairs, baseline.mean, candidate.mean
    return Judged(*of, 2 * found.low - 1, 2 * found.high - 1)


def _tally(rollout: StagedRollout, tallies: Tallies, stage: int, side: Side = Side.CANDIDATE) -> RolloutTally:
    known = tallies.get((stage, side))
    return known or RolloutTally(rollout.id, stage, side, rollout.entity, rollout.project)


def _arm(rollout: StagedRollout, tally: RolloutTally) -> Arm:
    total = tally.total / UNIT
    return Arm(tally.scores, tally.scores - total if rollout.lower_is_better else total)


def _limited(rollout: StagedRollout, tally: RolloutTally, name: str) -> Limited:
    """Return the confidence sequence of what the candidate has of a limit."""
    limit, of, unit = rollout.limits[name], tally.answers, 1.0
    most = limit
    if name == "errors":
        of, total = tally.answers + tally.failed, float(tally.failed)
    elif name == "cost":
        total, unit = tally.over / UNIT, COUNTED_UP_TO * limit
    else:
        total, most = float(tally.slow), SLOW_SHARE
    found = interval_of_mean(Arm(of, total), rollout.alpha)
    return Limited(name, found.low * unit, found.high * unit, most)
