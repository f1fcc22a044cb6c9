"""The attempts of a loop's agent: run in threads, and each settled in one transaction under the loop's claim."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import JobProgress
from modelyard.domain.models import Model
from modelyard.errors import BudgetExceeded, LeaseLost, ModelyardError, StoreError
from modelyard.flow import run
from modelyard.parts.episodes.handle import EpisodeHandle, checked_root
from modelyard.parts.episodes.making import LONGEST, NewEpisode, add_episode
from modelyard.parts.episodes.records import Episode, EpisodeGroup
from modelyard.parts.episodes.rewards import MAX_FAILURE, checked_reward, close_group, end_key
from modelyard.parts.episodes.trajectories import episodes_of
from modelyard.parts.loops.agents import AgentFunction, returned, run_agent
from modelyard.parts.loops.loopback import LoopbackServer
from modelyard.parts.loops.record import Turns
from modelyard.platform.evaluations.row_evaluation import RowScorer, score_row
from modelyard.platform.jobs.claims import ClaimedJob, fenced, require_claim
from modelyard.platform.paging import get_or_none
from modelyard.platform.training.billing import require_budget
from modelyard.protocols import Tx

LOST = "the process that ran it has ended, and another attempt was made in its place"
STOPPED = "the loop has stopped"


@attrs.frozen
class WantedGroup:
    """A group of a loop: an attempt at each of `tasks`. The `id` is the same in each process that continues the loop.
    `model` is what the agent calls: the model, or a checkpoint of it. Those of its calls that name no seed get one that
    is drawn from `seed`."""

    id: str
    name: str
    model: str
    tasks: Sequence[Mapping[str, Any]]
    seed: int


@attrs.frozen
class Attempt:
    """One attempt to be made by this process, at the `place` of a group."""

    group_id: str
    place: int
    task: Mapping[str, Any]


@attrs.frozen
class RunningAttempt:
    """An attempt that runs, with its key, since a time of the monotonic clock."""

    attempt: Attempt
    key: str = attrs.field(repr=False)
    since: float


@attrs.frozen
class AttemptOutcome:
    """How an attempt has ended: with a reward, or a failure. With neither, it has rewarded itself."""

    episode_id: str
    reward: float | None = None
    failure: str = ""


@attrs.frozen
class HowTried:
    """How attempts are made: by which agent, judged by which rule, at which address (None for a server of the
    process), how many at a time, for how long, and for how much."""

    agent: AgentFunction
    rule: RowScorer
    rewards_itself: bool
    url: str | None
    concurrency: int
    deadline: timedelta
    budget: Decimal | None


class Rollouts:
    """Makes the attempts of a loop. One thread alone calls it; the agents run in others.

    An attempt that another process has begun and not settled has failed, and a new one is made in its place.
    """

    def __init__(self, claimed: ClaimedJob, principal: Principal, model: Model, how: HowTried) -> None:
        self._claimed, self._runtime, self._principal = claimed, claimed.runtime, principal
        self._model, self._how = model, how
        self._waiting: deque[Attempt] = deque()
        self._running: dict[str, RunningAttempt] = {}
        self._ended: SimpleQueue[AttemptOutcome] = SimpleQueue()
        self._bell = threading.Event()
        self._opened: set[str] = set()
        self._server: LoopbackServer | None = None

    # ---- groups

    def open(self, wanted: Iterable[WantedGroup], first: bool = False) -> None:
        """Make groups, or go on with those that there are; before all others if `first`. Raises `LeaseLost`."""
        new = [one for one in wanted if one.id not in self._opened]
        if not new:
            return
        self._claimed.progress, attempts = self._runtime.store.transact(partial(self._opening, new))
        self._opened |= {one.id for one in new}
        self._waiting = deque([*attempts, *self._waiting] if first else [*self._waiting, *attempts])

    def _opening(self, wanted: Sequence[WantedGroup], tx: Tx) -> tuple[JobProgress, list[Attempt]]:
        progress, now = fenced(tx, self._claimed.claim), self._runtime.clock.now()
        return progress, [attempt for one in wanted for attempt in self._open_group(tx, one, now)]

    def _open_group(self, tx: Tx, wanted: WantedGroup, now: datetime) -> list[Attempt]:
        group = get_or_none(tx, EpisodeGroup, wanted.id)
        if group is not None and group.closed_at is not None:
            return []
        if group is None:
            model = self._model
            place = (model.entity, model.project, wanted.name, model.id, wanted.model, len(wanted.tasks))
            group = EpisodeGroup(wanted.id, *place, now, self._until(now), self._how.budget, seed=wanted.seed)
            tx.add(group)
        else:
            _fail_open(tx, group.id, LOST, now)
        return [Attempt(group.id, place, wanted.tasks[place % group.size]) for place in _missing(tx, group)]

    def _until(self, now: datetime) -> datetime:
        """Return the deadline of a group in which an attempt begins now: beyond that of the attempt."""
        return now + min(LONGEST, 2 * self._how.deadline)

    # ---- attempts

    def until_settled(self, groups: Collection[str]) -> Turns:
        """Make the attempts of these groups, yielding while they run. Raises `BudgetExceeded`, `LeaseLost`."""
        while self._has_attempts(groups):
            self.turn()
            yield
            if self._ended.empty() and self._has_attempts(groups):
                self._runtime.clock.wait(self._bell, self._runtime.settings.poll)
            self._bell.clear()

    def _has_attempts(self, groups: Collection[str]) -> bool:
        of = [*self._waiting, *(one.attempt for one in self._running.values())]
        return any(attempt.group_id in groups for attempt in of)

    def turn(self) -> None:
        """Settle what has ended, and begin what may begin. Raises `BudgetExceeded`, `LeaseLost`."""
        with suppress(Empty):
            while True:
                self._settle(self._ended.get_nowait())
        now = self._runtime.clock.monotonic()
        for episode_id, one in [*self._running.items()]:
            if now - one.since > self._how.deadline.total_seconds():
                self._settle(AttemptOutcome(episode_id, failure=f"it has run for longer than {self._how.deadline}"))
        while self._waiting and len(self._running) < self._how.concurrency:
            self._begin(self._waiting.popleft(), now)
        if self._running:
            self._claimed.moved_at = now

    def _begin(self, attempt: Attempt, now: float) -> None:
        if self._how.url is None and self._server is None:
            self._server = LoopbackServer(self._runtime)
        root = self._how.url or (self._server.url if self._server else "")
        new, until = NewEpisode.drawn(self._runtime), self._until(self._runtime.clock.now())

        def step(tx: Tx) -> JobProgress:
            progress, group = fenced(tx, self._claimed.claim), tx.get(EpisodeGroup, attempt.group_id)
            group = attrs.evolve(group, deadline=max(group.deadline, until))
            tx.replace(group)
            add_episode(tx, self._runtime, self._principal, group, attempt.place, new)
            return progress

        self._claimed.write(step)
        self._running[new.id] = RunningAttempt(attempt, new.secret, now)
        target = partial(self._try, new, attempt.task, checked_root(root))
        threading.Thread(target=target, name="modelyard-agent", daemon=True).start()

    def _try(self, new: NewEpisode, task: Mapping[str, Any], root: str) -> None:
        """Run the agent, in a thread of its own."""
        try:
            output = run_agent(self._how.agent, f"{root}/inference/v1", new.secret, task)
            outcome = self._judged(new.id, output, task)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an attempt that fails is part of its group
            outcome = AttemptOutcome(new.id, failure=_said(error))
        self._ended.put(outcome)
        self._bell.set()

    def _judged(self, episode_id: str, output: Any, task: Mapping[str, Any]) -> AttemptOutcome:
        handle = EpisodeHandle(episode_id, 0, self._model.name, "", "", self._runtime, self._principal)
        if handle.refresh().reward is not None:
            return AttemptOutcome(episode_id)
        if output is None and not self._how.rewards_itself:
            turns = handle.turns()
            output = turns[-1].choice.message.text if turns else ""
        (found,) = run(score_row((self._how.rule,), output, task))
        if not isinstance(found.value, int | float):  # a bool is an int
            return AttemptOutcome(
                episode_id, failure=_kept(found.reason or f"the reward is {found.value!r}, and not a number")
            )
        return AttemptOutcome(episode_id, checked_reward(found.value))

    def _settle(self, outcome: AttemptOutcome) -> None:
        """Store how an attempt has ended. One that was settled already stays as it is."""
        one = self._running.pop(outcome.episode_id, None)
        if one is None:
            return
        if outcome.failure and self._how.budget is None and self._server and one.key in self._server.over_budget:
            raise BudgetExceeded(f"a call of the agent was refused: {outcome.failure}; raise the budget, then continue")
        self._claimed.write(partial(self._settling, outcome, self._runtime.clock.now()))

    def _settling(self, outcome: AttemptOutcome, now: datetime, tx: Tx) -> JobProgress:
        job = require_claim(tx, self._claimed.claim)
        if outcome.failure:
            require_budget(tx, job)
        episode = get_or_none(tx, Episode, outcome.episode_id)
        if episode is not None:
            group = tx.get(EpisodeGroup, episode.group_id)
            if episode.reward is None and not episode.failure and not group.job_id:
                tx.replace(attrs.evolve(episode, reward=outcome.reward, failure=outcome.failure, rewarded_at=now))
            end_key(tx, episode, now)
            if not _missing(tx, group):
                close_group(tx, group, now)
        progress = fenced(tx, self._claimed.claim).gained()
        tx.replace(progress)
        return progress

    # ---- the end

    def stop(self) -> None:
        """End the attempts that run, and the server, so that no key is left. Agents are not waited for."""
        self._waiting.clear()
        left, now = self._opened, self._runtime.clock.now()

        def step(tx: Tx) -> None:
            fenced(tx, self._claimed.claim)
            for group_id in left:
                _fail_open(tx, group_id, LOST, now)

        with suppress(LeaseLost, StoreError):
            self._runtime.store.transact(step)
        self._running.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    def end(self) -> None:
        """Close the groups that are open when the loop has all that it wants."""
        left, now = self._opened, self._runtime.clock.now()

        def step(tx: Tx) -> None:
            fenced(tx, self._claimed.claim)
            for group_id in left:
                group = get_or_none(tx, EpisodeGroup, group_id)
                if group is not None and group.closed_at is None:
                    _fail_open(tx, group_id, STOPPED, now)
                    close_group(tx, group, now)

        self._runtime.store.transact(step)


def _missing(tx: Tx, group: EpisodeGroup) -> list[int]:
    """Return the places of the attempts that a group still needs. One that was lost has another place."""
    tries, settled = Counter[int](), set[int]()
    for one in episodes_of(tx, group.id):
        tries[one.place % group.size] += 1
        if one.reward is not None or one.failure not in ("", LOST):
            settled.add(one.place % group.size)
    return [place + group.size * tries[place] for place in range(group.size) if place not in settled]


def _fail_open(tx: Tx, group_id: str, reason: str, now: datetime) -> None:
    """End the attempts of a group that are not settled."""
    for one in episodes_of(tx, group_id):
        if one.reward is None and not one.failure:
            tx.replace(attrs.evolve(one, failure=reason, rewarded_at=now))
            end_key(tx, one, now)


def _said(error: BaseException) -> str:
    kind = error.code if isinstance(error, ModelyardError) else type(error).__name__
    return _kept(f"{kind}: {error}".rstrip(": "))


def _kept(reason: str) -> str:
    """Return a reason as a line that every store can keep."""
    return " ".join(reason.replace("\0", "").encode("utf-8", "replace").decode().split())[:MAX_FAILURE]


def rewards_itself(function: Callable[..., Any] | None) -> bool:
    """Return whether the reward is what the agent returns."""
    return function is returned
