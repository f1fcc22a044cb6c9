"""The same requests asked of the candidate in the background, on a purse of its own, while nobody gets its answers.

The most that a request can cost is reserved from the purse in a transaction before it is asked, and what it did not
cost is given back in the one that keeps its answer. After a crash in between, the whole reservation stays spent: so
what the ledger has of mirrored requests is never more than the purse, whoever mirrors. Neither waits for the disk, as
usage does not: a loss of power that takes the reservation takes what was booked after it, too.

A mirrored request waits for a moment in which nobody waits for an answer, but not for long.
"""

import threading
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from time import monotonic, sleep
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.domain.identity import Attribution, Principal, Scope
from modelyard.errors import Conflict, ModelyardError, StoreClosed
from modelyard.flow import run
from modelyard.lazy import log
from modelyard.parts.rollouts import judging
from modelyard.parts.rollouts.arms import Mirrored, Placed, ProcessRollouts, answer_of
from modelyard.parts.rollouts.decisions import Decision, standing
from modelyard.parts.rollouts.records import (
    SHADOW_STAGE,
    RolloutChange,
    RolloutCursor,
    RolloutState,
    Side,
    StagedRollout,
)
from modelyard.parts.rollouts.upkeep import carry_out, tallies_of
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.plan import make_plan
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

NAME = "rollout"
GIVES_WAY, PAUSE = 0.25, 0.002
"""For how many seconds a mirrored request waits at most while others are answered, and how often it looks."""


class Mirror:
    """The thread of a process that mirrors, while there is something to mirror."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def wake(self, runtime: Runtime) -> None:
        """Mirror what waits, in a thread of its own, unless it does already."""
        if runtime.cache.slot(ProcessRollouts).mirrored and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(
                target=drain, args=(runtime,), name="modelyard-rollouts-mirror", daemon=True
            )
            self._thread.start()


def drain(runtime: Runtime) -> None:
    """Mirror every request that waits. What goes wrong is logged."""
    waiting = runtime.cache.slot(ProcessRollouts).mirrored
    while waiting and not runtime.cache.closed:
        try:
            _give_way(runtime)
            mirror(runtime, waiting.popleft())
        except (IndexError, StoreClosed):
            return
        except Exception:  # noqa: BLE001 - it is logged, and nobody waits for it
            log.exception("a request could not be mirrored")


def _give_way(runtime: Runtime) -> None:
    until = monotonic() + GIVES_WAY
    while runtime.cache.running and not runtime.cache.closed and monotonic() < until:
        sleep(PAUSE)


def mirror(runtime: Runtime, asked: Mirrored) -> bool:
    """Ask the candidate once, if the purse has what that can cost. Returns whether it was asked."""
    rollout = asked.rollout
    principal = Principal(NAME, rollout.entity, Scope(rollout.entity))
    request = attrs.evolve(asked.request, model=rollout.served_as(Side.CANDIDATE), streamed=False, store=False)
    one = MirroredCompletion(runtime, principal, request, asked.attribution)
    placed = Placed(rollout, SHADOW_STAGE, Side.CANDIDATE, 1.0, asked.user)
    try:
        paid_for = _ask(runtime, rollout, one, placed)
    except ModelyardError as error:
        log.info("a mirrored request of rollout %s failed: %s", rollout.id, error)
        runtime.cache.slot(ProcessRollouts).fail(placed)
        return False
    if paid_for and "scorer" in rollout.shadow:
        _judge(runtime, principal, asked, one)
    return paid_for


def _ask(runtime: Runtime, rollout: StagedRollout, one: "MirroredCompletion", placed: Placed | None = None) -> bool:
    """Ask on the purse, if it has what that can cost, and keep the answer of the candidate that is `placed`. Raises
    `ModelyardError`. Returns whether it was asked."""
    most: Decimal = one.most()
    answer: Any = None
    durable = runtime.settings.durable_usage
    if not runtime.store.transact(partial(_reserve, runtime, rollout.id, most, runtime.ids()), durable):
        return False
    failed: ModelyardError | None = None
    try:
        run(one.flow())
    except ModelyardError as error:
        failed = error
    paid = Decimal(0) if one.entry is None else one.entry.cost
    if placed is not None and one.whole and one.entry is not None:
        answer = answer_of(one, placed, runtime.clock.monotonic() - one.began, paid, shadow=True)
    runtime.store.transact(_settle(rollout.id, most - paid, answer), durable)
    if failed is not None:
        raise failed
    return True


def _judge(runtime: Runtime, principal: Principal, asked: Mirrored, answered: "MirroredCompletion") -> None:
    """Score what the user got and what the candidate answered, and keep both scores."""
    rollout, row = asked.rollout, judging.row_of(asked.request)

    def words(request: CompletionRequest, attribution: Attribution) -> str:
        one = MirroredCompletion(runtime, principal, request, attribution)
        if not _ask(runtime, rollout, one) or one.completion is None:
            raise Conflict("the purse is empty")
        return one.completion.choices[0].message.text

    assert answered.completion is not None, "it was answered"
    said = answered.completion.choices[0].message.text
    given = {asked.answer: (Side.BASELINE, asked.output), answered.id: (Side.CANDIDATE, said)}
    scored = dict[str, tuple[Side, float]]()
    for answer, (side, output) in given.items():
        value = judging.judge(runtime, principal, rollout, row, output, words)
        if value is None:
            return
        scored[answer] = side, value
    judging.keep_pair(runtime, rollout, asked.user, scored)


class MirroredCompletion(CompletionPipeline):
    """A completion that says what it can cost before it is asked."""

    def most(self) -> Decimal:
        """Return the most in USD that the request can cost. Raises as `flow` does."""
        self.plan = plan = make_plan(*self.asked)
        self.served, self.backend = plan.served, plan.backend
        self._prepare()
        return self.cost_with(self.max_tokens)


def _reserve(runtime: Runtime, rollout_id: str, most: Decimal, id: str, tx: Tx) -> bool:
    rollout, cursor = get_or_none(tx, StagedRollout, rollout_id), get_or_none(tx, RolloutCursor, rollout_id)
    if rollout is None or cursor is None or rollout.state is not RolloutState.SHADOW:
        return False
    if cursor.spent + most > rollout.purse:
        left = f"{rollout.purse - cursor.spent:f} of {rollout.purse:f} USD are left in the purse, and the next"
        decided = Decision(RolloutChange.STOPPED, f"{left} mirrored request may cost {most:f}; give it more")
        carry_out(runtime, tx, rollout, standing(rollout, tallies_of(tx, rollout)), decided, id, runtime.clock.now())
        return False
    tx.replace(attrs.evolve(cursor, spent=cursor.spent + most))
    return True


def _settle(rollout_id: str, unspent: Decimal, answer: Any) -> Callable[[Tx], None]:
    def step(tx: Tx) -> None:
        cursor = get_or_none(tx, RolloutCursor, rollout_id)
        if cursor is None:
            return
        tx.replace(attrs.evolve(cursor, spent=cursor.spent - unspent))
        if answer is not None:
            tx.add(answer)

    return step
