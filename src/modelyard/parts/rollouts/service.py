"""`platform.rollouts`: a new checkpoint comes to the users of an alias in stages, and goes back if it is worse."""

from collections.abc import Sequence
from functools import partial
from typing import TypedDict, Unpack

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.promotion import NotWorse, check_alias
from modelyard.domain.record import EMPTY, Order
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.parts.rollouts import upkeep
from modelyard.parts.rollouts.arms import ProcessRollouts
from modelyard.parts.rollouts.decisions import Decision, Standing, standing
from modelyard.parts.rollouts.given import (
    Limits,
    Shadow,
    check_metric,
    check_whole,
    checked_canary,
    checked_guard,
    checked_limits,
    checked_shadow,
)
from modelyard.parts.rollouts.judging import checked_scorer
from modelyard.parts.rollouts.records import (
    SHADOW_STAGE,
    RolloutAnswer,
    RolloutChange,
    RolloutCursor,
    RolloutScore,
    RolloutState,
    RolloutStep,
    RunningRollout,
    StagedRollout,
    checked_score,
)
from modelyard.parts.rollouts.scores import bare_id, keep_score
from modelyard.parts.rollouts.subjects import found_rolled_out, found_subject
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.models.promotion import PROD
from modelyard.platform.owned import remove_owned
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import DomainStep, Snapshot, Tx

CANARY = (0.05, 0.25, 1.0)
THUMBS = "thumbs"
LEAST = 100
MOST_LEAST = 1_000_000
MAX_ID = 128


class StagedRollouts:
    """The rollouts that a principal may see.

    rollout = platform.rollouts.start("desk/support", 7, guard=NotWorse("thumbs", margin=0.02))
    platform.rollouts.score(answer.id, True)
    print(platform.rollouts.standing(rollout.id))
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- rollouts

    def start(
        self,
        model: Model | str,
        step: int,
        alias: str = PROD,
        *,
        canary: Sequence[float] = CANARY,
        guard: NotWorse | None = None,
        least: int = LEAST,
        also: Limits = EMPTY,
        shadow: Shadow | None = None,
    ) -> StagedRollout:
        """Bring a step of a model to the users of an alias, a share of `canary` after the other; the last is 1, all. Of
        "variants/desk/support", `step` is the number of a version.

        A stage ends when `guard` is shown, by a confidence sequence of the users' scores, and there are `least` scores
        of each arm: the metric is its `evaluation`, better if greater unless `lower_is_better` names it, and may be
        worse by its `margin`. If it is shown to be worse than that, or above a limit of `also` ("errors", the share of
        requests that fail; "p95", in seconds; "cost", the mean of an answer in USD), the alias points back. `also` may
        be a list of `AtMost`.

        With `shadow`, requests are mirrored first: a "share" of the answers (0.1), until there are so many "answers"
        (100), for at most "purse" USD (1); with "lasts", for so long, and until there is one answer. `shadow="1h"` is
        `{"lasts": "1h"}`. With "scorer", which is declarative, what the users got and what the candidate answered are
        scored from 0 to 1; if the candidate is shown to be worse by more than the margin, the rollout ends.

        Raises `NotFound`, `InvalidInput`, and `Conflict` while another rollout runs on the alias, or if that points to
        the step already.
        """
        rule = NotWorse(THUMBS, margin=0.02) if guard is None else guard
        metric = checked_guard(rule)
        stages, limits = checked_canary(canary), checked_limits(also)
        check_whole(least, "least", 1, MOST_LEAST)
        mirrored = EMPTY if shadow is None else checked_shadow(shadow)
        if (scorer := mirrored.get("scorer")) is not None:
            _, of = self._runtime.store.read(lambda snapshot: found_subject(snapshot, self._principal, model))
            kept = checked_scorer(self._runtime, self._principal, (of.entity, of.project), scorer)
            mirrored = {**mirrored, "scorer": kept}
        check_alias(alias)
        id_, now, by = self._runtime.ids(), self._runtime.clock.now(), self._principal.key_id or self._principal.name
        first = SHADOW_STAGE if mirrored else 0

        def begin(tx: Tx) -> StagedRollout:
            kind, found, pointed = found_rolled_out(tx, self._principal, model, step, alias)
            if pointed == step:
                raise Conflict(f"{alias!r} points to {kind.word} {step} already")
            candidate = tx.find(Checkpoint, "step", found.id, step)
            running = get_or_none(tx, RunningRollout, found.id, alias)
            if running is not None:
                raise Conflict(f"rollout {running.rollout_id} runs on {alias!r}; stop it first")
            place = found.entity, found.project
            rollout = StagedRollout(
                id_,
                *place,
                found.id,
                found.name,
                alias,
                pointed,
                step,
                stages,
                metric,
                float(rule.margin),
                float(rule.confidence),
                metric in rule.lower_is_better,
                least,
                RolloutState.SHADOW if mirrored else RolloutState.CANARY,
                first,
                now,
                by,
                now,
                limits,
                mirrored,
                candidate is not None and not candidate.pinned,
                1,
                kind=kind,
            )
            tx.add(rollout)
            tx.add(RunningRollout(found.id, alias, *place, id_))
            tx.add(RolloutCursor(id_, *place))
            tx.add(RolloutStep(id_, 1, *place, first, RolloutChange.STARTED, 0, 0, None, -1.0, 1.0, "", now))
            if candidate is not None and rollout.holds:
                tx.replace(attrs.evolve(candidate, pinned=True))
            return self._rollout(tx, id_)

        return self._runtime.store.transact(begin)

    def get(self, rollout_id: str) -> StagedRollout:
        """Return a rollout. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._rollout(snapshot, rollout_id))

    def list(
        self,
        *,
        model: Model | str | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "asc",
    ) -> Listing[StagedRollout]:
        """List rollouts, the oldest first, of all models or of one. Raises `NotFound`, `Forbidden`."""
        if model is not None:
            _, found = self._runtime.store.read(lambda snapshot: found_subject(snapshot, self._principal, model))
            index, where = "by_model", [found.id]
        else:
            entity = listed_entity(self._principal, entity, project)
            index, *where = listed_index(entity, project)
        place = partial(self._place, index)
        return index_listing(self._runtime, StagedRollout, index, *where, place=place, order=order, keep=self._sees)

    def stop(self, rollout_id: str, reason: str = "") -> StagedRollout:
        """Stop a rollout: the alias points to what it did before it. Of one that has ended, nothing changes. Raises
        `NotFound`, `InvalidInput`."""
        if not isinstance(reason, str) or len(reason) > 1000 or "\0" in reason:
            raise InvalidInput.at("reason", msg="must be a text of at most 1000 characters, without NUL")
        id_, now, by = self._runtime.ids(), self._runtime.clock.now(), self._principal.key_id or self._principal.name

        def step(tx: Tx) -> StagedRollout:
            rollout = self._rollout(tx, rollout_id)
            if rollout.state.ended:
                return rollout
            change = RolloutChange.ROLLED_BACK if rollout.state is RolloutState.WATCH else RolloutChange.STOPPED
            found = standing(rollout, upkeep.tallies_of(tx, rollout))
            decided = Decision(change, reason or f"stopped by {by}")
            return upkeep.carry_out(self._runtime, tx, rollout, found, decided, id_, now)

        return self._runtime.store.transact(step)

    def delete(self, rollout_id: str) -> StagedRollout:
        """Delete a rollout with its answers and scores. Raises `NotFound`, and `Conflict` while it runs."""

        def step(tx: Tx) -> StagedRollout:
            rollout = self._rollout(tx, rollout_id)
            if not rollout.state.ended:
                raise Conflict(f"rollout {rollout.id} runs; stop it first")
            remove_owned(tx, self._runtime.records, rollout)
            tx.remove(StagedRollout, rollout.id)
            return rollout

        return self._runtime.store.transact(step)

    def look(self, rollout_id: str) -> StagedRollout:
        """Look at a rollout now, as workers and served platforms do each second. Raises `NotFound`."""
        rollout = self.get(rollout_id)
        failed = self._runtime.cache.slot(ProcessRollouts).take_failed(rollout.id)
        return upkeep.look_at(self._runtime, rollout.id, failed)

    # ---- how it stands

    def standing(self, rollout_id: str) -> Standing:
        """Return how a rollout stood at the last look, with the scores until now. Raises `NotFound`."""

        def query(snapshot: Snapshot) -> Standing:
            rollout = self._rollout(snapshot, rollout_id)
            return standing(rollout, upkeep.tallies_of(snapshot, rollout))

        return self._runtime.store.read(query)

    def steps(self, rollout_id: str, *, order: Order = "asc") -> Listing[RolloutStep]:
        """List what was decided, and the looks that were kept in between. Raises `NotFound`."""
        rollout = self.get(rollout_id)

        def place(number: str, snapshot: Snapshot) -> Cursor:
            found = get_or_none(snapshot, RolloutStep, rollout.id, int(number) if number.isdecimal() else -1)
            if found is None:
                raise NotFound("Step", number)
            return cursor_at(RolloutStep, "by_rollout", found)

        return index_listing(self._runtime, RolloutStep, "by_rollout", rollout.id, place=place, order=order)

    def answers(self, rollout_id: str, *, order: Order = "asc") -> Listing[RolloutAnswer]:
        """List the answers under a rollout, each with its arm and propensity. Raises `NotFound`."""
        rollout = self.get(rollout_id)

        def place(id: str, snapshot: Snapshot) -> Cursor:
            found = get_or_none(snapshot, RolloutAnswer, id)
            if found is None or found.rollout_id != rollout.id:
                raise NotFound("Answer", id)
            return cursor_at(RolloutAnswer, "by_rollout", found)

        return index_listing(self._runtime, RolloutAnswer, "by_rollout", rollout.id, place=place, order=order)

    # ---- scores

    def score(self, request_id: str, value: bool | float, metric: str = THUMBS) -> RolloutScore:
        """Keep what somebody says of an answer under a rollout: yes or no, or a number from 0 to 1.

        The first score of each user in a stage counts for the metric that guards the rollout. Said again, nothing
        changes. Raises `NotFound`, `InvalidInput`, and `Conflict` for another value than before.
        """
        check_metric(metric)
        try:
            number = checked_score(value)
        except ValueError:
            raise InvalidInput.at("value", msg="must be true or false, or a number from 0 to 1") from None
        answer = self._runtime.store.read(lambda snapshot: self._answer(snapshot, request_id))
        now = self._runtime.clock.now()

        def step(tx: Tx) -> RolloutScore:
            return keep_score(tx, self._answer(tx, answer.id), metric, number, now)

        return self._runtime.store.transact(DomainStep(step, [("entity", answer.entity)]))

    # ---- what is seen

    def _rollout(self, snapshot: Snapshot, rollout_id: str) -> StagedRollout:
        found = get_or_none(snapshot, StagedRollout, rollout_id)
        if found is None or not self._sees(found):
            raise NotFound("Rollout", rollout_id)
        return found

    def _answer(self, snapshot: Snapshot, id: str) -> RolloutAnswer:
        known = isinstance(id, str) and 0 < len(id) <= MAX_ID
        found = get_or_none(snapshot, RolloutAnswer, bare_id(id)) if known else None
        if found is None or not self._principal.scope.covers(found.entity, found.project):
            raise NotFound("Answer under a rollout", id)
        return found

    def _sees(self, rollout: StagedRollout) -> bool:
        return self._principal.scope.covers(rollout.entity, rollout.project)

    def _place(self, index: str, rollout_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(StagedRollout, index, self._rollout(snapshot, rollout_id))


class RolloutOptions(TypedDict, total=False):
    """What `platform.rollouts.start` takes by keyword."""

    canary: Sequence[float]
    guard: NotWorse | None
    least: int
    also: Limits
    shadow: Shadow | None


class RollOut(StagedRollouts):
    """Starts a rollout: `platform.models.roll_out`, called as `platform.rollouts.start` is."""

    def __call__(
        self, model: Model | str, step: int, alias: str = PROD, **options: Unpack[RolloutOptions]
    ) -> StagedRollout:
        """Bring a step of a model to the users of an alias; see `platform.rollouts.start`."""
        return self.start(model, step, alias, **options)
