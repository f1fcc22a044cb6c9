"""`platform.review.watches`: scorers that judge a sample of stored answers as they come."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.completion import StoredCompletion
from modelyard.domain.evaluation.aggregate import ReportOptions
from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.evaluation.scorers import DeclarativeScorer, LlmJudge
from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.domain.identity import Principal
from modelyard.domain.record import Order
from modelyard.errors import InvalidInput, NotFound, located_at
from modelyard.parts.review import watching
from modelyard.parts.review.estimates import JudgedMean
from modelyard.parts.review.records import is_number
from modelyard.parts.review.watches import RUNNING, STOPPED, Watch, WatchedAnswer, WatchedDay
from modelyard.platform.chat.request import build_request
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.objects import Objects, publish_version
from modelyard.platform.evaluations.scorers import name_scorers
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import remove_owned, store_texts
from modelyard.platform.paging import (
    cursor_at,
    get_or_none,
    index_listing,
    iter_index,
    listed_entity,
    listed_index,
    named_place,
)
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

ASKED = frozenset({"prompt"})
"""The fields that each stored answer has as a row."""


@attrs.frozen
class WatchedMean:
    """The answers of a day that a watch judged: the run with them, and its mean as labels correct it."""

    day: str
    run_id: str
    mean: JudgedMean


class Watches:
    """The watches that a principal may see.

    judge = {"type": "llm_judge", "model": "judge", "prompt": "Is this polite? {output}"}
    watch = platform.review.watches.start("desk/support:prod", {"polite": judge}, share=0.02, purse="5")
    platform.review.watches.days(watch.id)
    """

    def __init__(self, runtime: Runtime, principal: Principal, estimate: Callable[..., JudgedMean]) -> None:
        """Read and change watches; `estimate` is that of `Reviews`."""
        self._runtime, self._principal, self._estimate = runtime, principal, estimate

    def start(
        self,
        model: str,
        scorer: str | Mapping[str, Any] | DeclarativeScorer,
        *,
        share: float = 0.01,
        purse: Decimal | str | int = "1",
        project: str | None = None,
        entity: str | None = None,
    ) -> Watch:
        """Let a scorer judge a `share` of the answers of a model that are stored from now on, until it is stopped or
        has spent the purse, in USD.

        `model` is the name that is requested. The scorer is declarative, or the reference of one, and may ask for the
        `prompt` of a row and the `output`. Completions are judged that are stored (`store`), in the project or else in
        every one of the entity, in the background of a server or a worker. The most that a judge can cost is reserved
        first, so give it `max_tokens`. Raises `InvalidInput`, `ModelNotFound`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        if isinstance(share, bool) or not is_number(share) or not 0 < share <= 1:
            raise InvalidInput.at("share", msg="must be more than 0, and at most 1")
        amount = _amount(purse)
        objects = Objects(self._runtime, self._principal)
        given = name_scorers(scorer, objects)
        if len(given) != 1 or given[0].rule is None:
            raise InvalidInput.at("scorer", msg="must be one declarative scorer, such as a judge, or its reference")
        if left := given[0].rule.asked_for - ASKED:
            raise InvalidInput.at("scorer", msg=f"asks for {min(left)}, which an answer does not come with")
        if isinstance(judge := given[0].rule, LlmJudge):
            with located_at("scorer", "options"):
                whole: Any = {**judge.options, "model": judge.model, "messages": judge.prompt}
                build_request(whole, streamed=False)
        CompletionModel.of(self._runtime, self._principal, model, place, {})
        kept, content = given[0].spec(place), given[0].content
        id_, now = self._runtime.ids(), self._runtime.clock.now()
        of = self._runtime.ids(), *place, ObjectKind.SCORER, given[0].name, 0, digest(content), now, content
        published = None if given[0].published else ObjectVersion(*of)
        by = self._principal.key_id or self._principal.name
        everywhere = project is None and self._principal.scope.projects is None
        made = Watch(id_, *place, model, kept["ref"], kept["rule"], float(share), amount, by, now, everywhere)

        def step(tx: Tx) -> Watch:
            if published is not None:
                publish_version(tx, published)
            last = tx.page(StoredCompletion, *watching.answers_of(made), limit=1, descending=True)
            tx.add(attrs.evolve(made, seen=last[0].seq if last else 0))
            return self._watch(tx, id_)

        return store_texts(self._runtime, made.entity, step)

    def get(self, watch_id: str) -> Watch:
        """Return a watch. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._watch(snapshot, watch_id))

    def list(self, *, project: str | None = None, entity: str | None = None, order: Order = "asc") -> Listing[Watch]:
        """List watches, the oldest first. Raises `Forbidden`."""
        index, *where = listed_index(listed_entity(self._principal, entity, project), project)
        place = partial(self._place, index)
        return index_listing(self._runtime, Watch, index, *where, place=place, order=order, keep=self._sees)

    def stop(self, watch_id: str) -> Watch:
        """Judge no more, and complete the run of today. Idempotent. Raises `NotFound`."""

        def step(tx: Tx) -> Watch:
            watch = self._watch(tx, watch_id)
            if watch.state == RUNNING:
                watch = attrs.evolve(watch, state=STOPPED, reason="it was stopped")
                tx.replace(watch)
            return watch

        stopped = self._runtime.store.transact(step)
        run = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, stopped.run_id))
        if run is not None and run.state is RunState.RUNNING:
            watching.complete(self._runtime, self._principal, stopped, run.id)
        return stopped

    def delete(self, watch_id: str) -> Watch:
        """Delete a watch. The runs with what it judged stay. Raises `NotFound`."""

        def step(tx: Tx) -> Watch:
            watch = self._watch(tx, watch_id)
            remove_owned(tx, self._runtime.records, watch)
            tx.remove(Watch, watch.id)
            return watch

        self.stop(watch_id)
        return self._runtime.store.transact(step)

    def look(self, watch_id: str) -> Watch:
        """Judge now what waits, in this thread, as servers and workers do each second. Raises `NotFound`."""
        if (watch := self.get(watch_id)).state == RUNNING:
            watching.look_at(self._runtime, watch)
        return self.get(watch_id)

    def answers(self, watch_id: str) -> Sequence[WatchedAnswer]:
        """Return the answers that were drawn, each with its propensity, and whether it was judged. Raises
        `NotFound`."""

        def read(snapshot: Snapshot) -> Sequence[WatchedAnswer]:
            return [*iter_index(snapshot, WatchedAnswer, "by_watch", self._watch(snapshot, watch_id).id)]

        return self._runtime.store.read(read)

    def days(self, watch_id: str, *, confidence: float = CONFIDENCE) -> Sequence[WatchedMean]:
        """Return the mean of each day (UTC), the oldest first, corrected by labels, with the judge's error in its
        interval. Raises `NotFound`, `InvalidInput`."""
        ReportOptions(confidence=confidence)

        def read(snapshot: Snapshot) -> Sequence[WatchedDay]:
            every = iter_index(snapshot, WatchedDay, "by_watch", self._watch(snapshot, watch_id).id)
            return [one for one in every if get_or_none(snapshot, EvaluationRun, one.run_id) is not None]

        days, scorer = self._runtime.store.read(read), self.get(watch_id).scorer
        found = []
        for one in days:
            with suppress(InvalidInput):  # the scorer gave no answer of that day a number
                mean = self._estimate(one.run_id, scorer, confidence=confidence)
                found.append(WatchedMean(one.day, one.run_id, mean))
        return found

    def _watch(self, snapshot: Snapshot, watch_id: str) -> Watch:
        found = get_or_none(snapshot, Watch, watch_id)
        if found is None or not self._sees(found):
            raise NotFound("Watch", watch_id)
        return found

    def _sees(self, watch: Watch) -> bool:
        return self._principal.scope.covers(watch.entity, watch.project)

    def _place(self, index: str, watch_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Watch, index, self._watch(snapshot, watch_id))


def _amount(purse: object) -> Decimal:
    try:
        found = Decimal(purse) if isinstance(purse, Decimal | str | int) and not isinstance(purse, bool) else None
    except InvalidOperation:
        found = None
    if found is None or not found.is_finite() or not 0 < found <= 10**9 or found != round(found, 9):
        raise InvalidInput.at("purse", msg='must be an amount in USD, more than 0, such as "5" or Decimal("0.5")')
    return found
