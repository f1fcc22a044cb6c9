"""Judges the stored answers that watches draw, in a thread of its own: no caller waits for it.

An answer is claimed, and the most that judging it can cost is reserved from the purse, in one transaction before the
scorer is asked; its score is kept, and what it did not cost given back, in one after it. So any number of processes
ask about an answer once in all, and never spend more than the purse, whenever they are killed.
"""

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.completion import Completion, Message, Role, StoredCompletion
from modelyard.domain.evaluation.aggregate import aggregate_means, run_summary
from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.evaluation.scorer_rules import rule_of
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.record import truncate_for_storage
from modelyard.errors import InvalidInput, ModelyardError, StoreClosed
from modelyard.flow import run
from modelyard.formats.converter import structure
from modelyard.formats.json import kept_data
from modelyard.lazy import log
from modelyard.parts.review import judges
from modelyard.parts.review.watches import FAILED, JUDGED, RUNNING, STOPPED, Watch, WatchedAnswer, WatchedDay
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.plan import make_plan
from modelyard.platform.evaluations.model_under_test import CompletionModel, messages_asked
from modelyard.platform.evaluations.predictions import add_prediction, add_score
from modelyard.platform.evaluations.row_evaluation import ScoreResult
from modelyard.platform.evaluations.runs import Runs
from modelyard.platform.evaluations.scorers import build_scorer
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

NAME = "review"
_ADVICE = "start another with more, or with max_tokens among the options of its judge"
AT_ONCE = 100
"""How many stored answers are looked at before the place is kept."""


class Watching:
    """The thread of a process that judges, while there is something to judge."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def wake(self, runtime: Runtime) -> None:
        """Judge what waits, in a thread of its own, unless it does already."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=look, args=(runtime,), name="modelyard-review-watching", daemon=True)
            self._thread.start()


def look(runtime: Runtime) -> None:
    """Judge what each watch draws of the answers that were stored since the last look. What goes wrong with one is
    logged, and the others are looked at."""
    for watch in runtime.store.read(lambda snapshot: [*iter_index(snapshot, Watch, "by_state", RUNNING)]):
        try:
            look_at(runtime, watch)
        except StoreClosed:
            return
        except Exception:  # noqa: BLE001 - it is logged, and nobody waits for it
            log.exception("watch %s could not look", watch.id)


def look_at(runtime: Runtime, watch: Watch) -> None:
    """Judge what one watch draws of what is new, once."""
    _Look(runtime, watch).go()


class PricedCompletion(CompletionPipeline):
    """A completion that says what it can cost before it is asked."""

    def most(self) -> Decimal:
        """Return the most in USD that the request can cost. Raises as `flow` does."""
        self.plan = plan = make_plan(*self.asked)
        self.served, self.backend = plan.served, plan.backend
        self._prepare()
        return self.cost_with(self.max_tokens)


class _Look:
    """One look at what is new for a watch."""

    def __init__(self, runtime: Runtime, watch: Watch) -> None:
        self.runtime, self.watch = runtime, watch
        self.place = watch.entity, watch.project
        self.principal = Principal(NAME, watch.entity, Scope(watch.entity))
        kept = {"name": scorer_keys(watch.scorer)[0], "ref": watch.scorer, "rule": watch.rule}
        self.rule = rule_of(watch.rule)
        self.scorer = build_scorer(runtime, self.principal, self.place, kept, None, retries=0)
        self.asked = judges.asked_models(runtime, self.principal, watch.scorer)
        self.model = str(CompletionModel.of(runtime, self.principal, watch.model, self.place, {}).ref)

    def go(self) -> None:
        self._end_day()
        while not self.runtime.cache.closed:
            read = self.runtime.store.read(self._next)
            for stored in read:
                if self._is_drawn(stored) and not self._judge(stored):
                    return
            if read:
                self.runtime.store.transact(partial(self._keep_place, read[-1].seq))
            if len(read) < AT_ONCE:
                return

    def _next(self, snapshot: Snapshot) -> list[StoredCompletion]:
        found = get_or_none(snapshot, Watch, self.watch.id)
        if found is None or found.state != RUNNING:
            return []
        return snapshot.page(StoredCompletion, *answers_of(found), after=(found.seen,), limit=AT_ONCE)

    def _keep_place(self, seq: int, tx: Tx) -> None:
        watch = get_or_none(tx, Watch, self.watch.id)
        if watch is not None and watch.seen < seq:
            tx.replace(attrs.evolve(watch, seen=seq))

    def _is_drawn(self, stored: StoredCompletion) -> bool:
        return stored.model == self.watch.model and self.watch.is_drawn(stored.id)

    def _judge(self, stored: StoredCompletion) -> bool:
        """Judge an answer, unless that was done. Returns whether the watch goes on."""
        row, output = asked_and_answered(stored)
        if output is None:
            return True
        try:
            most = sum(self._costs(output, row), Decimal(0))
        except InvalidInput as cannot:
            self.runtime.store.transact(partial(self._skip, stored.id, str(cannot)))
            return True
        now = judges.asked_models(self.runtime, self.principal, self.watch.scorer)
        if now.refs != self.asked.refs:  # the next look asks the new model
            return False
        claimed = self.runtime.store.transact(partial(self._claim, stored.id, most))
        if not claimed:
            return claimed is not None
        moved, ids = self._moved(now), [self.runtime.ids() for _ in range(3)]
        found = self._score(output, row)
        step = partial(self._settle, stored, row, output, found, most, ids, moved)
        store_texts(self.runtime, self.watch.entity, step)
        return True

    def _costs(self, output: str, row: Mapping[str, Any]) -> Iterator[Decimal]:
        """Yield the most that each model which the scorer asks can cost."""
        for judge in judges.judges_of(self.rule):
            model = CompletionModel.of(self.runtime, self.principal, judge.model, self.place, judge.options)
            asked = {"prompt": judge.asks(output, row)}
            asked = asked if model.reads is None else dict(model.reads(asked))
            sampling = model.request.sampling.seeded(0) if model.seeded else model.request.sampling
            request = model.request.asking(messages_asked(model.prompts, asked), sampling, model.request.max_tokens)
            yield PricedCompletion(self.runtime, self.principal, request, model.attribution).most()

    def _claim(self, answer_id: str, most: Decimal, tx: Tx) -> bool | None:
        """Reserve what an answer can cost, once. Returns None if the watch has ended, or ends as its purse is empty."""
        watch = get_or_none(tx, Watch, self.watch.id)
        if watch is None or watch.state != RUNNING:
            return None
        if get_or_none(tx, WatchedAnswer, watch.id, answer_id) is not None:
            return False
        if watch.spent + most > watch.purse:
            left = f"{watch.purse - watch.spent:f} of {watch.purse:f} USD are left in the purse, and the next"
            tx.replace(attrs.evolve(watch, state=STOPPED, reason=f"{left} answer may cost {most:f}; {_ADVICE}"))
            return None
        tx.replace(attrs.evolve(watch, spent=watch.spent + most))
        tx.add(WatchedAnswer(watch.id, answer_id, *self.place, watch.share, self.runtime.clock.now()))
        return True

    def _skip(self, answer_id: str, reason: str, tx: Tx) -> None:
        """Keep why an answer cannot be judged."""
        watch = get_or_none(tx, Watch, self.watch.id)
        if watch is not None and get_or_none(tx, WatchedAnswer, watch.id, answer_id) is None:
            of = watch.id, answer_id, *self.place, watch.share, self.runtime.clock.now()
            tx.add(WatchedAnswer(*of, FAILED, truncate_for_storage(reason)))

    def _score(self, output: str, row: Mapping[str, Any]) -> ScoreResult:
        try:
            return run(self.scorer.score(output, row))
        except ModelyardError as error:
            return ScoreResult(None, str(error), scored=False)

    def _settle(
        self,
        stored: StoredCompletion,
        row: Mapping[str, Any],
        output: str,
        found: ScoreResult,
        most: Decimal,
        ids: list[str],
        moved: bool,
        tx: Tx,
    ) -> None:
        """Keep a score as a row of the day's run, and give back what it did not cost."""
        watch, paid, now = get_or_none(tx, Watch, self.watch.id), found.cost or Decimal(0), self.runtime.clock.now()
        if watch is None:
            return
        watch = attrs.evolve(watch, spent=watch.spent - most + paid)
        answer = tx.get(WatchedAnswer, watch.id, stored.id)
        if not found.scored:
            tx.replace(watch)
            tx.replace(attrs.evolve(answer, state=FAILED, reason=truncate_for_storage(found.reason), cost=paid))
            return
        watch = self._with_run(watch, ids[0], moved, now, tx)
        tx.replace(watch)
        tx.replace(attrs.evolve(answer, state=JUDGED, cost=paid))
        done = Prediction(
            *(ids[1], *self.place, self.model, row, digest(row), stored.created_at),
            run_id=watch.run_id,
            output={"value": output},
            finished_at=stored.created_at,
        )
        add_prediction(tx, done)
        score = Score(
            *(ids[2], *self.place, done.id, watch.scorer, now),
            run_id=watch.run_id,
            value={"value": found.value},
            prompt_tokens=found.prompt_tokens,
            completion_tokens=found.completion_tokens,
            judge_cost=found.cost,
            comment=found.comment or None,
        )
        add_score(tx, score)

    def _with_run(self, watch: Watch, id: str, moved: bool, now: datetime, tx: Tx) -> Watch:
        """Return the watch with a run that takes the rows of today and of this model, and is judged by one."""
        day, last = now.date().isoformat(), get_or_none(tx, EvaluationRun, watch.run_id)
        same = last is not None and last.state is RunState.RUNNING and last.model == self.model
        if same and watch.day == day and not moved:
            return watch
        tx.add(EvaluationRun(id, *self.place, watch.evaluation, self.model, now))
        tx.add(WatchedDay(watch.id, id, *self.place, day))
        return attrs.evolve(watch, run_id=id, day=day)

    def _moved(self, asked: judges.AskedModels) -> bool:
        """Return whether a model that judges has come to mean another since the run of today began."""

        def last(snapshot: Snapshot) -> EvaluationRun | None:
            watch = get_or_none(snapshot, Watch, self.watch.id)
            return None if watch is None else get_or_none(snapshot, EvaluationRun, watch.run_id)

        found = self.runtime.store.read(last)
        return found is not None and bool(asked.moved(found))

    def _end_day(self) -> None:
        """Complete the runs of days that are over, and of models that the name means no more."""
        today = self.runtime.clock.now().date().isoformat()

        def running(snapshot: Snapshot) -> list[EvaluationRun]:
            days = iter_index(snapshot, WatchedDay, "by_watch", self.watch.id)
            watch = snapshot.get(Watch, self.watch.id)
            runs = [get_or_none(snapshot, EvaluationRun, one.run_id) for one in days]
            over = watch.day != today
            left = [one for one in runs if one is not None and one.state is RunState.RUNNING]
            return [one for one in left if over or one.id != watch.run_id]

        for one in self.runtime.store.read(running):
            complete(self.runtime, self.principal, self.watch, one.id)


def complete(runtime: Runtime, principal: Principal, watch: Watch, run_id: str) -> None:
    """Complete the run of a day, with its summary."""
    found = aggregate_means(StoredRun(runtime, run_id).columns())
    summary = run_summary(found, {scorer_keys(watch.scorer)[0]: watch.scorer})
    try:
        Runs(runtime, principal).finish(run_id, summary)
    except ModelyardError as error:  # somebody else ended or deleted it
        log.info("the run %s of watch %s was not completed: %s", run_id, watch.id, error)


def answers_of(watch: Watch) -> tuple[str, ...]:
    """Return the index of the stored answers that a watch reads, with where in it."""
    return ("by_entity", watch.entity) if watch.everywhere else ("by_project", watch.entity, watch.project)


def asked_and_answered(stored: StoredCompletion) -> tuple[Mapping[str, Any], str | None]:
    """Return a stored answer as a row, and its text; None for an answer without text."""
    try:
        messages = structure(tuple[Message, ...], kept_data(stored.request).get("messages", []))
        answer = structure(Completion, kept_data(stored.answer)).choices[0].message.text
    except (InvalidInput, IndexError):
        return {}, None
    asked = [message.text for message in messages if message.role is Role.USER]
    row: dict[str, Any] = {"prompt": asked[-1] if asked else "", "completion": stored.id}
    if len(messages) > 1:
        row["messages"] = [{"role": message.role.value, "content": message.text} for message in messages]
    return row, answer or None
