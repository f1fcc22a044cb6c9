"""A look at each rollout that runs: it counts what is new, decides, and moves the alias, all in one transaction.

Any number of processes look, as often as they like: what is counted is known by a cursor, and what is decided follows
from what is stored. So a look that was repeated, or cut off by a crash before or after its commit, changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import attrs

from modelyard.domain.models import Checkpoint
from modelyard.domain.promotion import Change, Promotion
from modelyard.errors import ModelyardError, StoreClosed
from modelyard.lazy import log
from modelyard.parts.rollouts.arms import Failed, ProcessRollouts
from modelyard.parts.rollouts.decisions import COUNTED_UP_TO, Decision, Standing, Tallies, decide, standing
from modelyard.parts.rollouts.records import (
    UNIT,
    RolloutAnswer,
    RolloutChange,
    RolloutCursor,
    RolloutState,
    RolloutStep,
    RolloutTally,
    RunningRollout,
    Side,
    StagedRollout,
)
from modelyard.parts.rollouts.subjects import Move, subject_of
from modelyard.parts.variants.records import VariantMove
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

AT_ONCE = 1000
"""How many answers one transaction counts."""

SETTLES = timedelta(seconds=2)
"""A new share counts after so long: by then every process knows of it, so that no user goes back and forth."""

GROWTH = 1.02
"""A look is kept once there are so many times the scores of the last one that is."""

ROLLOUT = "rollout"
"""The member of a promotion's verdict that names the rollout which made it."""


def look(runtime: Runtime) -> None:
    """Look at each rollout that runs. What goes wrong with one is logged, and the others are looked at."""
    process = runtime.cache.slot(ProcessRollouts)
    for running in runtime.store.read(lambda snapshot: [*iter_index(snapshot, RunningRollout, "all")]):
        own = process.take_failed(running.rollout_id)
        try:
            look_at(runtime, running.rollout_id, own)
        except StoreClosed:
            raise
        except ModelyardError as fault:
            process.give_back(own)
            log.warning("rollout %s could not be looked at: %s", running.rollout_id, fault)


def look_at(runtime: Runtime, rollout_id: str, failed: Failed | None = None) -> StagedRollout:
    """Count what is new of a rollout, decide, and do what was decided. Returns it as it is then."""
    while True:
        found, more = runtime.store.transact(partial(_look, runtime, rollout_id, failed or Counter(), runtime.ids()))
        if not more:
            return found
        failed = None


def _look(runtime: Runtime, rollout_id: str, failed: Failed, id: str, tx: Tx) -> tuple[StagedRollout, bool]:
    rollout, now = tx.get(StagedRollout, rollout_id), runtime.clock.now()
    if rollout.state.ended:
        return rollout, False
    more = _count(tx, rollout, failed)
    if more:
        return rollout, True
    subject, steps = subject_of(rollout), (rollout.baseline, rollout.step)
    gone = next((step for step in steps if not subject.exists(tx, rollout.model_id, step)), None)
    found = standing(rollout, tallies_of(tx, rollout))
    decided = decide(rollout, found, now)
    if gone is not None:
        decided = Decision(RolloutChange.ROLLED_BACK, f"{rollout.word} {gone} was deleted")
    return carry_out(runtime, tx, rollout, found, decided, id, now), False


def carry_out(
    runtime: Runtime, tx: Tx, rollout: StagedRollout, found: Standing, decided: Decision, id: str, now: datetime
) -> StagedRollout:
    """Do what was decided, and record it; a look that came to nothing is kept now and then."""
    change, reason = decided.change, decided.reason
    if change is RolloutChange.LOOKED:
        if _is_news(tx, rollout, found):
            _note(tx, rollout, found, change, reason, now)
            rollout = attrs.evolve(rollout, changes=rollout.changes + 1)
            tx.replace(rollout)
        return rollout
    _note(tx, rollout, found, change, reason, now)
    changed = attrs.evolve(rollout, changes=rollout.changes + 1)
    if change is RolloutChange.ADVANCED:
        stage = rollout.stage + 1
        last = rollout.share_of(stage) == 1
        state = RolloutState.WATCH if last else RolloutState.CANARY
        changed = attrs.evolve(changed, stage=stage, state=state, since=now + SETTLES)
        if last:
            _move(runtime, tx, changed, found, Change.PROMOTED, id, now)
    else:
        changed = attrs.evolve(changed, state=RolloutState(change.value), ended_at=now, reason=reason)
        if change is RolloutChange.ROLLED_BACK and rollout.state is RolloutState.WATCH:
            _move(runtime, tx, rollout, found, Change.ROLLED_BACK, id, now)
        end(tx, rollout)
    tx.replace(changed)
    return changed


def end(tx: Tx, rollout: StagedRollout) -> None:
    """Divide no more requests, and let the candidate go."""
    running = get_or_none(tx, RunningRollout, rollout.model_id, rollout.alias)
    if running is not None and running.rollout_id == rollout.id:
        tx.remove(RunningRollout, rollout.model_id, rollout.alias)
    candidate = tx.find(Checkpoint, "step", rollout.model_id, rollout.step)
    if rollout.holds and candidate is not None and candidate.pinned:
        tx.replace(attrs.evolve(candidate, pinned=False))


def on_alias_moved(runtime: Runtime, tx: Tx, moved: Promotion | VariantMove) -> None:
    """Stop the rollout of an alias that somebody else has moved."""
    of, step = (moved.model_id, moved.step) if isinstance(moved, Promotion) else (moved.variant_id, moved.number)
    running = get_or_none(tx, RunningRollout, of, moved.alias)
    if running is None or moved.verdict.get(ROLLOUT) == running.rollout_id:
        return
    rollout = tx.get(StagedRollout, running.rollout_id)
    where = "removed" if step is None else f"pointed to {rollout.word} {step}"
    reason = f"the alias was {where} by {moved.by}"
    found = standing(rollout, tallies_of(tx, rollout))
    carry_out(runtime, tx, rollout, found, Decision(RolloutChange.STOPPED, reason), moved.id, moved.created_at)


# ---- the alias


def _move(
    runtime: Runtime, tx: Tx, rollout: StagedRollout, found: Standing, made: Change, id: str, now: datetime
) -> None:
    verdict = {
        ROLLOUT: rollout.id,
        "outcome": "not worse" if made is Change.PROMOTED else "worse",
        "metric": rollout.metric,
        "margin": rollout.margin,
        "confidence": rollout.confidence,
        "baseline": found.baseline.mean,
        "candidate": found.candidate.mean,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
    }
    subject = subject_of(rollout)
    moved = (subject.move if made is Change.PROMOTED else subject.move_back)(tx, rollout, Move(id, made, now, verdict))
    if moved is not None:
        runtime.tell(tx, moved)


# ---- what is counted


def tallies_of(snapshot: Snapshot, rollout: StagedRollout) -> Tallies:
    """Return what a rollout has counted, by stage and arm."""
    every = snapshot.page(RolloutTally, "by_rollout", rollout.id, limit=AT_ONCE)
    return {(one.stage, one.side): one for one in every}


def add_to_tally(tx: Tx, rollout: StagedRollout, stage: int, side: Side, **more: Any) -> None:
    """Add to the sums of an arm."""
    _add(tx, RolloutTally(rollout.id, stage, side, rollout.entity, rollout.project, **more))


def _add(tx: Tx, more: RolloutTally) -> None:
    known = get_or_none(tx, RolloutTally, more.rollout_id, more.stage, more.side)
    if known is None:
        tx.add(more)
        return
    sums = {name: getattr(known, name) + getattr(more, name) for name in _SUMS}
    if any(getattr(more, name) for name in _SUMS):
        tx.replace(attrs.evolve(known, **sums))


_SUMS = ("scores", "total", "answers", "failed", "slow", "over", "cost")


def _count(tx: Tx, rollout: StagedRollout, failed: Failed) -> bool:
    """Count the answers after the cursor, once, and these failed requests. Returns whether there are more."""
    for (_, stage, side), count in failed.items():
        add_to_tally(tx, rollout, stage, side, failed=count)
    cursor = tx.get(RolloutCursor, rollout.id)
    answers = tx.page(RolloutAnswer, "by_rollout", rollout.id, after=(cursor.seen,), limit=AT_ONCE)
    for more in _sums_of(rollout, answers):
        _add(tx, more)
    if answers:
        tx.replace(attrs.evolve(cursor, seen=answers[-1].seq))
    return len(answers) == AT_ONCE


def _sums_of(rollout: StagedRollout, answers: Sequence[RolloutAnswer]) -> Iterator[RolloutTally]:
    by_arm: dict[tuple[int, Side], list[RolloutAnswer]] = {}
    for one in answers:
        by_arm.setdefault((one.stage, one.side), []).append(one)
    slower, dearest = rollout.limits.get("p95"), COUNTED_UP_TO * rollout.limits.get("cost", 0.0)
    for (stage, side), found in by_arm.items():
        slow = 0 if slower is None else sum(one.seconds > slower for one in found)
        over = sum(round(min(float(one.cost) / dearest, 1.0) * UNIT) for one in found) if dearest else 0
        spent = sum((one.cost for one in found[1:]), found[0].cost)
        place = rollout.id, stage, side, rollout.entity, rollout.project
        yield RolloutTally(*place, answers=len(found), slow=slow, over=over, cost=spent)


# ---- what is told


def _is_news(tx: Tx, rollout: StagedRollout, found: Standing) -> bool:
    last = tx.page(RolloutStep, "by_rollout", rollout.id, limit=1, descending=True)
    if not last or last[0].stage != found.stage:
        return True
    before = last[0].baseline_scores + last[0].candidate_scores
    return found.baseline.scores + found.candidate.scores >= max(before + 1, before * GROWTH)


def _note(tx: Tx, rollout: StagedRollout, found: Standing, change: RolloutChange, reason: str, now: datetime) -> None:
    scores = found.baseline.scores, found.candidate.scores
    place = rollout.id, rollout.changes + 1, rollout.entity, rollout.project, found.stage
    tx.add(RolloutStep(*place, change, *scores, found.difference, found.low, found.high, reason, now))
