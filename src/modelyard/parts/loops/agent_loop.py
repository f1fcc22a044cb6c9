"""A loop that trains an agent: each round is groups of its attempts, and the held-out tasks are attempted, too."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.domain.models import Model
from modelyard.domain.training import TrajectoryGroup
from modelyard.errors import InvalidInput, TrainingError
from modelyard.parts.episodes.handle import checked_root
from modelyard.parts.episodes.making import budget_amount, check_deadline
from modelyard.parts.episodes.records import Episode, EpisodeGroup
from modelyard.parts.episodes.seeds import drawn_seed
from modelyard.parts.episodes.service import DEADLINE, MAX_SIZE
from modelyard.parts.episodes.training import GROUPS, GroupChanged, Read, as_read, claim_groups
from modelyard.parts.episodes.trajectories import episodes_of, trajectory_group
from modelyard.parts.loops import request as loops
from modelyard.parts.loops.agents import AGENT, AgentOptions, agent_spec, loaded, returned
from modelyard.parts.loops.config import LoopOptions
from modelyard.parts.loops.held_out_runs import keep_held_out
from modelyard.parts.loops.part import LOOP
from modelyard.parts.loops.record import RUN, Turns
from modelyard.parts.loops.rollouts import LOST, HowTried, Rollouts, WantedGroup, rewards_itself
from modelyard.parts.loops.rounds import TrainingLoop
from modelyard.parts.loops.sampling import round_metrics
from modelyard.platform.evaluations.scorers import build_scorer
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.training.handle import JobHandle
from modelyard.platform.training.service import Training, check_options
from modelyard.platform.training.submission import CHILD
from modelyard.protocols import Snapshot, Tx

KEY = "groups"
"""The member of a loop's result from which the ids of its groups are made: a loop that is continued keeps it."""

MOST_OFF_POLICY = 100
_OWN = ("max_steps_off_policy", "url", "deadline", "budget")
_OF_THE_AGENT = ("temperature", "max_tokens")

# ---- asking for one --------------------------------------------------------------------------------------------------


def submit_loop(
    training: Training,
    model: Model | str,
    tasks: loops.Tasks,
    reward: loops.Reward | None,
    held_out: loops.Tasks | None,
    options: Mapping[str, Any],
    key: str | None,
    needs: Any,
) -> JobHandle:
    """Queue a loop in which an agent attempts the tasks. Raises as `training.loop`."""
    runtime, principal = training._runtime, training._principal
    method, target = training.method(JobKind.RL, model)
    asked = {name: value for name, value in options.items() if name not in AgentOptions.__annotations__}
    check_options(LOOP, LoopOptions, asked, method.config)
    for name in _OF_THE_AGENT:
        if asked.get(name) is not None:
            raise InvalidInput.at(name, msg="is up to the agent, which chooses it in each of its calls")
    own = _own_spec(options)
    request = training._request(method, target, loops.resolve(asked, method.config), key, needs)

    def submit(job: Job) -> JobHandle:
        if job.spec["held_out"] > MAX_SIZE:
            raise InvalidInput.at("held_out", msg=f"has more than {MAX_SIZE} tasks; give fewer")
        return training._add(attrs.evolve(job, spec={**job.spec, AGENT: own}))

    judged = returned if reward is None else reward
    return loops.new_loop(runtime, principal, request, tasks, judged, held_out, submit, check=_is_task)


def _is_task(row: object) -> None:
    if not isinstance(row, Mapping):
        raise InvalidInput.at("row", msg="must be an object, which the agent gets as its task")


def _own_spec(options: Mapping[str, Any]) -> Mapping[str, Any]:
    given = {name: options.get(name) for name in _OWN}
    steps = given["max_steps_off_policy"]
    steps = 0 if steps is None else steps
    deadline = DEADLINE if given["deadline"] is None else given["deadline"]
    if type(steps) is not int or not 0 <= steps <= MOST_OFF_POLICY:
        raise InvalidInput.at("max_steps_off_policy", msg=f"must be a whole number from 0 to {MOST_OFF_POLICY}")
    check_deadline(deadline)
    return {
        "function": agent_spec(options[AGENT]),
        "max_steps_off_policy": steps,
        "url": None if given["url"] is None else checked_root(given["url"]),
        "deadline": deadline.total_seconds(),
        "budget": None if given["budget"] is None else str(budget_amount(given["budget"])),
    }


# ---- its work --------------------------------------------------------------------------------------------------------


@attrs.frozen
class SampledRound:
    """What a round has sampled, as one snapshot has it: the groups as they are trained, how each was read, how many
    sampled tokens are left out as too old, and how many steps the oldest others are behind."""

    groups: Sequence[TrajectoryGroup]
    read: Mapping[str, Read]
    stale: int
    behind: int

    @property
    def is_stale(self) -> bool:
        """Whether nothing is left because it is too old."""
        found = (one for group in self.groups for one in group.trajectories)
        return self.stale > 0 and not any(one.metrics.get("sampled_tokens") for one in found)


class AgentLoop(TrainingLoop):
    """One attempt at a loop of an agent."""

    def __init__(self, claimed: ClaimedJob) -> None:
        super().__init__(claimed)
        self._spec: Mapping[str, Any] = self.spec[AGENT]
        self._behind: int = self._spec["max_steps_off_policy"]
        self._rollouts = Rollouts(claimed, self.principal, self.model, self._how(self.principal))

    def _how(self, principal: Principal) -> HowTried:
        spec = self._spec
        return HowTried(
            loaded(spec["function"]),
            build_scorer(self.runtime, principal, self.namespace, self.spec["reward"], None, retries=2),
            rewards_itself(self.scorer.function),
            spec["url"],
            self.config.concurrency,
            timedelta(seconds=spec["deadline"]),
            None if spec["budget"] is None else Decimal(spec["budget"]),
        )

    def turns(self) -> Turns:
        """Do the work of the loop, and leave no key behind."""
        try:
            if KEY not in self.done:
                self.record.advance({KEY: self.claimed.job.id}, lambda tx: None)
                yield
            yield from super().turns()
        finally:
            self._rollouts.stop()

    # ---- sampling

    def _sample(self) -> Turns:
        """Complete the round. What is all too old by then is sampled again."""
        while True:
            wanted = self._wanted(self.rounds)
            self._rollouts.open(wanted)
            yield from self._rollouts.until_settled({one.id for one in wanted})
            found = self._sampled()
            if not found.is_stale:
                return
            again, stale = self.done.get("again", 0) + 1, self.done.get("stale", 0) + found.stale
            self.record.advance({"again": again, "stale": stale}, lambda tx: None)
            yield

    def _wait(self) -> Turns:
        """Wait for the training of a round, and sample the next ones meanwhile, as far as they may be off-policy."""
        ahead = range(self.rounds + 1, min(self.rounds + 1 + self._behind, self.config.rounds))
        self._rollouts.open(one for number in ahead for one in self._wanted(number))
        for _ in super()._wait():
            self._rollouts.turn()
            yield

    def _wanted(self, number: int) -> list[WantedGroup]:
        again = self.done.get("again", 0) if number == self.rounds else 0
        return [
            WantedGroup(
                self._group_id("round", number, place, *([again] if again else [])),
                f"round-{number + 1}-task-{place}",
                self._name,
                [task] * self.config.samples,
                drawn_seed(self.spec["seed"], "round", number, place, again),
            )
            for place, task in enumerate(self._tasks(number))
        ]

    @property
    def _name(self) -> str:
        return f"{self.model.entity}/{self.model.project}/{self.model.name}"

    def _group_id(self, *what: str | int) -> str:
        """Return the id of a group of this loop: the same whenever it is asked for."""
        text = "/".join(map(str, (self.done[KEY], *what)))
        return str(UUID(bytes=sha256(text.encode()).digest()[:16], version=5))

    # ---- training

    def _sampled(self) -> SampledRound:
        ids, now = [one.id for one in self._wanted(self.rounds)], self.runtime.clock.now()
        return self.runtime.store.read(lambda snapshot: self._read_round(snapshot, ids, now))

    def _read_round(self, snapshot: Snapshot, ids: Sequence[str], now: datetime) -> SampledRound:
        last = snapshot.get(Model, self.model.id).last_step
        groups = [
            attrs.evolve(
                trajectory_group(snapshot, snapshot.get(EpisodeGroup, one), now, last - self._behind),
                metadata={"round": self.rounds, "task": place, "episode_group": one},
            )
            for place, one in enumerate(ids)
        ]
        trained = [one for group in groups for one in group.trajectories]
        steps = [one.initial_policy_version for one in trained if one.initial_policy_version is not None]
        stale = sum(int(one.metrics["stale_tokens"]) for one in trained)
        return SampledRound(
            groups, {one: as_read(snapshot, one) for one in ids}, stale, last - min(steps, default=last)
        )

    def _queue_training(self) -> None:
        while True:
            found = self._sampled()
            sampled = {
                **round_metrics(found.groups),
                "stale_tokens": found.stale + self.done.get("stale", 0),
                "steps_off_policy": found.behind,
            }

            def add(tx: Tx, job: Job, most: int, read: Mapping[str, Read] = found.read) -> None:
                enqueue(tx, attrs.evolve(job, spec={**job.spec, GROUPS: list(read)}), most)
                claim_groups(tx, job, read)

            try:
                self._queue(found.groups, sampled, add)
                return
            except GroupChanged:  # a call that was on its way has been booked
                continue

    def _end_round(self, trained: Job) -> None:
        super()._end_round(trained)
        if "again" in self.done:
            self.record.advance({"again": None, "stale": None}, lambda tx: None)

    # ---- validating

    def _validate(self) -> Turns:
        if RUN not in self.done:
            step = self.runtime.store.read(lambda snapshot: snapshot.get(Model, self.model.id)).last_step
            self.record.advance({RUN: self._group_id("held-out", step), "validated": step}, lambda tx: None)
            yield
        step = self.done["validated"]
        wanted = WantedGroup(
            self.done[RUN],
            f"held-out-step-{step}",
            f"{self._name}:step{step}",
            [*self._held_out()],
            drawn_seed(self.spec["seed"], "held-out", self.rounds + (CHILD in self.done)),
        )
        self._rollouts.open([wanted], first=True)
        yield from self._rollouts.until_settled({wanted.id})
        found = [one for one in self._validated_attempts() if one.failure != LOST]
        keep_held_out(self.runtime, self.config.evaluation, self.model, step, wanted.id, wanted.tasks, found)

    def _validated_attempts(self) -> list[Episode]:
        return self.runtime.store.read(lambda snapshot: [*episodes_of(snapshot, self.done[RUN])])

    def _score(self) -> float:
        episodes = self._validated_attempts()
        found = [one.reward for one in episodes if one.reward is not None]
        if not found:
            why = next((f" ({one.failure})" for one in episodes if one.failure not in ("", LOST)), "")
            raise TrainingError(
                f"no attempt at the held-out tasks has a reward{why}; look at the group {self.done[RUN]} of episodes, "
                "then start a new loop"
            )
        return sum(found) / len(found)

    # ---- ending

    def _succeed(self) -> None:
        self._rollouts.end()
        super()._succeed()
