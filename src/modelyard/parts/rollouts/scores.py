"""Scores of answers under a rollout, as functions of a transaction."""

from datetime import datetime
from typing import Any

from modelyard.errors import Conflict, InvalidInput
from modelyard.parts.rollouts.given import check_metric
from modelyard.parts.rollouts.records import (
    UNIT,
    RolloutAnswer,
    RolloutScore,
    RolloutUser,
    StagedRollout,
    checked_score,
)
from modelyard.parts.rollouts.upkeep import add_to_tally
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx


def keep_score(tx: Tx, answer: RolloutAnswer, metric: str, number: float, now: datetime) -> RolloutScore:
    """Keep a score, and count it if it is the first of its user in the stage, of the metric that guards the rollout.
    Raises `Conflict` for another value than before."""
    known = get_or_none(tx, RolloutScore, answer.id, metric)
    if known is not None:
        if known.value != number:
            raise Conflict(f"answer {answer.id} has {metric} {known.value:g} already, which stays")
        return known
    rollout, place = tx.get(StagedRollout, answer.rollout_id), (answer.entity, answer.project)
    counts = metric == rollout.metric and not answer.shadow
    counts = counts and get_or_none(tx, RolloutUser, rollout.id, answer.stage, answer.user) is None
    if counts:
        tx.add(RolloutUser(rollout.id, answer.stage, answer.user, *place))
        add_to_tally(tx, rollout, answer.stage, answer.side, scores=1, total=round(number * UNIT))
    of = answer.id, metric, rollout.id, *place, answer.stage, answer.side
    made = RolloutScore(*of, number, counts, now)
    tx.add(made)
    return made


def on_opinion(runtime: Runtime, tx: Tx, said: Any) -> None:
    """Keep what was said of an answer elsewhere, as in a trace, unless it has that score already."""
    answer = get_or_none(tx, RolloutAnswer, bare_id(said.completion_id))
    if answer is None or answer.entity != said.entity or not said.scope.covers(answer.entity, answer.project):
        return
    try:
        check_metric(said.metric)
        number = checked_score(said.value)
    except (InvalidInput, ValueError):
        return
    if get_or_none(tx, RolloutScore, answer.id, said.metric) is None:
        keep_score(tx, answer, said.metric, number, runtime.clock.now())


def bare_id(id: str) -> str:
    """Return the id of an answer in the ledger: formats put letters before it, as in "chatcmpl_"."""
    return id.rpartition("_")[2]
