"""Who answers a request to the alias of a rollout, and what is kept of the answer, in the transaction that books it."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.catalogue import RegisteredEntry
from modelyard.domain.completion import Completion, CompletionRequest
from modelyard.domain.frozen_fast import maker
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.record import KEY
from modelyard.domain.usage import cost
from modelyard.parts.rollouts.records import (
    RolloutAnswer,
    RolloutCursor,
    RolloutState,
    RunningRollout,
    Side,
    StagedRollout,
    place_of,
)
from modelyard.parts.rollouts.subjects import aliased_subject
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MOST_BEGUN = 10_000
MOST_MIRRORED = 64
"""How many requests wait to be mirrored; of more, the oldest are not."""

SERVER_FAULT = 500

_answer = maker(RolloutAnswer)


def capture_of(runtime: Runtime, snapshot: Snapshot, principal: Principal, name: str) -> "RolloutCapture | None":
    """Return what divides the requests to a name, None unless a rollout runs on the alias that it means."""
    aliased = aliased_subject(snapshot, principal, name)
    running = None if aliased is None else get_or_none(snapshot, RunningRollout, *aliased)
    if running is None or snapshot.find(RegisteredEntry, KEY, name) is not None:
        return None
    return RolloutCapture(snapshot.get(StagedRollout, running.rollout_id), name, runtime.cache.slot(ProcessRollouts))


@attrs.frozen
class Placed:
    """The arm of a request, with the chance that it had."""

    rollout: StagedRollout
    stage: int
    side: Side
    propensity: float
    user: str


@attrs.frozen
class Mirrored:
    """A request that is asked of the candidate, too."""

    rollout: StagedRollout
    request: CompletionRequest
    attribution: Attribution
    user: str
    answer: str
    output: str


Failed = Counter[tuple[str, int, Side]]
"""How many requests failed, by rollout, stage and arm."""


class ProcessRollouts:
    """What this process knows of the requests that rollouts divide."""

    def __init__(self) -> None:
        self.begun: dict[str, tuple[RunningCompletion, Placed]] = {}
        self.mirrored: deque[Mirrored] = deque(maxlen=MOST_MIRRORED)
        self.lock: Any = threading.Lock()
        self._failed: Failed = Counter()

    def begin(self, running: RunningCompletion, placed: Placed) -> None:
        """Remember who answers a request until it is answered, or has ended otherwise."""
        if len(self.begun) >= MOST_BEGUN:
            self._sweep()
        self.begun[running.id] = running, placed

    def _sweep(self) -> None:
        """Forget the requests that have ended, and count those that failed by no fault of the caller."""
        with self.lock:
            for id_, (running, placed) in [*self.begun.items()]:
                if running.failure is not None and getattr(running.failure, "status", 500) >= SERVER_FAULT:
                    self._failed[placed.rollout.id, placed.stage, placed.side] += 1
                if running.whole or running.failure is not None:
                    self.begun.pop(id_, None)
            for id_ in [*self.begun][: max(0, len(self.begun) - MOST_BEGUN // 2)]:
                self.begun.pop(id_, None)

    def fail(self, placed: Placed) -> None:
        """Count a request that failed."""
        with self.lock:
            self._failed[placed.rollout.id, placed.stage, placed.side] += 1

    def take_failed(self, rollout_id: str) -> Failed:
        """Return the requests under a rollout that failed since this was called before."""
        self._sweep()
        with self.lock:
            taken = Counter({of: count for of, count in self._failed.items() if of[0] == rollout_id})
            self._failed -= taken
            return taken

    def give_back(self, failed: Failed) -> None:
        """Count these again, which could not be stored."""
        with self.lock:
            self._failed.update(failed)


@attrs.frozen(eq=False)
class RolloutCapture:
    """Divides the requests to a name between the arms of a rollout, and keeps which arm answered."""

    rollout: StagedRollout
    model: str
    process: ProcessRollouts

    def asks(self, running: RunningCompletion, request: CompletionRequest, capabilities: object) -> CompletionRequest:
        """Return the request as it is."""
        return request

    def chosen(self, running: RunningCompletion) -> str:
        """Return the name of the arm of the user who asks, or of the key if no user is named."""
        placed = self._placed(running)
        self.process.begin(running, placed)
        return self.rollout.served_as(placed.side)

    def _placed(self, running: RunningCompletion) -> Placed:
        rollout, user = self.rollout, running.given.user
        digest = rollout.user_digest(f"key {running.principal.key_id}" if user is None else f"user {user}")
        stage = rollout.stage_at(running.runtime.clock.now())
        share = rollout.share_of(stage)
        if place_of(digest) < share:
            return Placed(rollout, stage, Side.CANDIDATE, share, digest)
        return Placed(rollout, stage, Side.BASELINE, 1 - share, digest)

    def __call__(
        self, running: RunningCompletion, completion: Completion, keep: Callable[[Tx], object] | None
    ) -> Callable[[Tx], object]:
        """Return what keeps the arm and the propensity of an answer, after `keep`."""
        begun = self.process.begun.pop(running.id, None)
        placed = self._placed(running) if begun is None else begun[1]
        rollout, plan, clock = self.rollout, running.plan, running.runtime.clock
        assert plan is not None, "it answered"
        price = cost(completion.usage, plan.served.entry.pricing)
        answer = answer_of(running, placed, clock.monotonic() - running.began, price)
        if rollout.state is RolloutState.SHADOW and place_of(rollout.user_digest(running.id)) < rollout.shadow["share"]:
            said = completion.choices[0].message.text
            mirrored = Mirrored(rollout, running.given, running.attribution, placed.user, running.id, said)
            self.process.mirrored.append(mirrored)

        def step(tx: Tx) -> None:
            if keep is not None:
                keep(tx)
            if tx.find(RolloutCursor, KEY, rollout.id) is not None:  # it lives as long, and stores remember it
                tx.add(answer)

        return step


def answer_of(running: RunningCompletion, placed: Placed, seconds: float, price: Decimal, shadow: bool = False) -> Any:
    """Return an answer as it is stored."""
    rollout, side = placed.rollout, placed.side
    of = running.id, rollout.id, rollout.entity, rollout.project, placed.stage, side, placed.propensity
    step, now = rollout.step_of(side), running.runtime.clock.now()
    return _answer(*of, step, placed.user, seconds, price, now, shadow)
