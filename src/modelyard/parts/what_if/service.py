"""`platform.traffic.what_if`: last week's traffic under another model, or other prices."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.statistics import paired
from modelyard.domain.identity import Principal, check_idempotency_key
from modelyard.domain.job import Job, JobProgress
from modelyard.domain.record import EMPTY, Order
from modelyard.domain.usage import EXACT
from modelyard.errors import Conflict, InvalidInput, NotFound, nearest
from modelyard.parts.rollouts.service import THUMBS
from modelyard.parts.times import WORDS, moment_of
from modelyard.parts.traffic.request import CollectOptions, CollectRequest
from modelyard.parts.traffic.selection import AnsweredBy
from modelyard.parts.traffic.traffic_row import SOURCES, Source
from modelyard.parts.what_if.estimates import Counterfactual, doubly_robust
from modelyard.parts.what_if.feedback import logged_answers
from modelyard.parts.what_if.question import AskingEstimate, Question, check_model, check_options, estimated, tariff_of
from modelyard.parts.what_if.records import ANSWERS, ASKS, JOB, LOGPROBS, NOTHING, AskedRow, AskedTraffic
from modelyard.parts.what_if.repricing import (
    Prices,
    Repriced,
    Tariff,
    ledger_calls,
    plain_prices,
    reprice,
    tariffs_of,
)
from modelyard.parts.what_if.result import AnsweredAgain, WhatIf
from modelyard.platform.catalogue.service import resolve
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.jobs import announced
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.jobs.queue import announce, enqueue
from modelyard.platform.jobs.service import cancel_found
from modelyard.platform.jobs.waiting import wait_for_success
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import remove_owned, store_texts
from modelyard.platform.paging import (
    cursor_at,
    get_or_none,
    index_listing,
    iter_index_live,
    listed_entity,
    listed_index,
)
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx
from modelyard.report.terminal import Show, progress_bar

Asks = Literal["answers", "logprobs", "nothing"]

SLACK = Decimal("1.5")
"""So many times what is estimated may be spent if no budget is named, and the longest request."""

MOST_METRIC = 64
_TIMES = ("since", "until")
_AMOUNTS = ("cost", "judge_cost", "longest")


class WhatIfOptions(TypedDict, total=False):
    """What is asked; `AskTraffic` explains each."""

    since: datetime | str | None
    until: datetime | str | None
    model: str | None
    prices: Prices | None
    judge: Mapping[str, Any] | None
    asks: Asks
    metric: str
    answered_by: str | None
    sources: Sequence[Source]
    metadata: Mapping[str, Any]
    limit: int | None
    options: Mapping[str, Any]
    project: str | None
    entity: str | None


class AskTraffic:
    """Asks what stored traffic would have been like: `platform.traffic.what_if`, called as a method is.

    print(platform.traffic.what_if(since="7d", model="desk/support:step7", judge=judge, budget="0.50"))
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        *,
        budget: Decimal | int | str | None = None,
        timeout: float | None = None,
        progress: bool = False,
        **asked: Unpack[WhatIfOptions],
    ) -> WhatIf:
        """Ask stored requests of a time again, price their calls anew, and estimate what users would have said.

        `since` and `until` are times, or ages such as "7d". With a `model`, its answers are compared with those that
        were served: it `asks` for "answers", scored by a `judge` as data (`{"type": "llm_judge", ...}`), for the
        "logprobs" that it and the model which answered give to the served answers, or for "nothing". What users said,
        by `metric`, of answers under rollouts says what they would have said of a checkpoint. `prices` are other
        prices: by the names of models, or entries of a catalogue; by default a model costs what it costs now, and all
        calls are priced as its own. `answered_by`, `sources`, `metadata` and `limit` choose the requests that are
        asked again, the newest first, of one `project` or all; `options` are those of a completion, by default those
        that were stored.

        What is asked is a job, on at most `budget` USD, by default half more than is estimated. It waits for a worker
        or, if none is alive, works in this thread. Raises `InvalidInput`, `ModelNotFound`, `Forbidden`, `RateLimited`,
        `JobFailed`; TimeoutError after `timeout` seconds.
        """
        question, model, asks = self._question(asked)
        if asks == NOTHING or model is None:
            return self._computed(question, model, EMPTY)
        made = self._submit(question, model, asks, budget, None, asked)
        return self.wait(made.id, timeout, progress=progress)

    def estimate(self, **asked: Unpack[WhatIfOptions]) -> AskingEstimate:
        """Return what asking would cost, by the stored tokens and the prices of now. Raises as asking does."""
        question, model, asks = self._question(asked)
        return estimated(self._runtime, self._principal, question, model, asks)

    def submit(
        self,
        *,
        budget: Decimal | int | str | None = None,
        idempotency_key: str | None = None,
        require_worker: bool = False,
        **asked: Unpack[WhatIfOptions],
    ) -> AskedTraffic:
        """Queue the asking, and return at once. The same request under one `idempotency_key` is one job. Raises as
        asking does, `Conflict`, and with `require_worker` `NoWorker` if no worker is alive."""
        question, model, asks = self._question(asked)
        if asks == NOTHING or model is None:
            raise InvalidInput.at("model", msg="is required, and something that it is asked for")
        if require_worker:
            announced.require_worker(self._runtime)
        return self._submit(question, model, asks, budget, check_idempotency_key(idempotency_key), asked)

    # ---- what was asked

    def get(self, what_if: str) -> WhatIf:
        """Return what has come of a question so far. Raises `NotFound`."""
        asked, job, _ = self._runtime.store.read(lambda snapshot: self._found(snapshot, what_if))
        question = Question.of_plain(asked.content)
        predicted = dict[str, float]()
        answers = self._answers(asked, predicted)
        found = self._computed(question, asked.model, predicted)
        kept = asked.content["estimate"]
        amounts = {name: Decimal(kept[name]) for name in _AMOUNTS}
        estimate = AskingEstimate(**{**kept, **amounts})
        reason = job.error_message or job.result.get("reason", "")
        read = partial(iter_index_live, self._runtime, AskedRow, "by_what_if", asked.id)
        of: Any = {"id": asked.id, "status": job.status.value, "reason": reason, "estimate": estimate}
        return attrs.evolve(found, **of, answers=answers, read=read)

    def wait(self, what_if: str, timeout: float | None = None, *, progress: bool = False) -> WhatIf:
        """Wait until the asking has ended, and return what came of it. Raises `NotFound`, `JobFailed`, TimeoutError."""
        with progress_bar("ask") if progress else nullcontext() as bar:
            show = None if bar is None else partial(self._show, what_if, bar)
            wait_for_success(
                self._runtime, lambda: self._runtime.store.read(partial(self._job, what_if)), timeout, show
            )
        return self.get(what_if)

    def record(self, what_if: str) -> AskedTraffic:
        """Return what was asked, and what it has spent. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._found(snapshot, what_if)[0])

    def list(
        self, *, project: str | None = None, entity: str | None = None, order: Order = "desc"
    ) -> Listing[AskedTraffic]:
        """List questions, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """
        index, *where = listed_index(listed_entity(self._principal, entity, project), project)

        def place(id: str, snapshot: Snapshot) -> Cursor:
            return cursor_at(AskedTraffic, index, self._found(snapshot, id)[0])

        return index_listing(self._runtime, AskedTraffic, index, *where, place=place, order=order, keep=self._sees)

    def rows(self, what_if: str, *, order: Order = "asc") -> Listing[AskedRow]:
        """List the rows that were asked again, in the order in which they were begun. Raises `NotFound`."""
        self._runtime.store.read(lambda snapshot: self._found(snapshot, what_if))

        def place(source: str, snapshot: Snapshot) -> Cursor:
            row = get_or_none(snapshot, AskedRow, what_if, source)
            if row is None:
                raise NotFound("Row", source)
            return cursor_at(AskedRow, "by_what_if", row)

        return index_listing(self._runtime, AskedRow, "by_what_if", what_if, place=place, order=order)

    def cancel(self, what_if: str) -> WhatIf:
        """End the asking: at once while it waits, at the next pause while it runs. Idempotent. Raises `NotFound`."""
        cancel_found(self._runtime, self._principal, partial(self._job, what_if), lambda _, job: job)
        return self.get(what_if)

    def delete(self, what_if: str) -> AskedTraffic:
        """Delete a question that has ended, with its rows. Raises `NotFound`, `Conflict` while it is asked."""

        def step(tx: Tx) -> AskedTraffic:
            asked, job, _ = self._found(tx, what_if)
            if not job.ended:
                raise Conflict(f"what-if {what_if} is still being asked; cancel it, then delete it")
            remove_owned(tx, self._runtime.records, asked)
            tx.remove(AskedTraffic, asked.id)
            return asked

        return self._runtime.store.transact(step)

    # ---- a question

    def _question(self, asked: WhatIfOptions) -> tuple[Question, str | None, str]:
        given: dict[str, Any] = {**asked}
        for name in given:
            if name not in WhatIfOptions.__annotations__:
                raise TypeError(f"what_if has no argument {name!r}{nearest(name, WhatIfOptions.__annotations__)}")
        model, asks = given.get("model"), given.get("asks", ANSWERS)
        if asks not in ASKS:
            raise InvalidInput.at("asks", msg=f"must be one of {', '.join(ASKS)}{nearest(str(asks), ASKS)}")
        now = self._runtime.clock.now()
        times = {name: _moment(given.get(name), name, now) for name in _TIMES}
        times["until"] = times["until"] or now
        options: CollectOptions = {
            "model": given.get("answered_by"),
            "sources": given.get("sources", SOURCES),
            "metadata": given.get("metadata", EMPTY),
            "limit": given.get("limit"),
            "project": given.get("project"),
            "entity": given.get("entity"),
            **times,  # type: ignore[typeddict-item]
        }
        judge = given.get("judge")
        if judge is not None and not isinstance(judge, Mapping):
            raise InvalidInput.at(
                "judge", msg='must be data, such as {"type": "llm_judge", "model": ..., "prompt": ...}'
            )
        try:
            collect = CollectRequest.of(self._runtime, self._principal, "what-if", {**options, "score": judge})
        except InvalidInput as wrong:
            raise _renamed(wrong) from None
        prices = given.get("prices")
        made = None if prices is None else plain_prices(prices)
        metric, options_ = given.get("metric", THUMBS), given.get("options", EMPTY)
        if not isinstance(metric, str) or not 0 < len(metric) <= MOST_METRIC:
            raise InvalidInput.at("metric", msg=f"must be the name of a score, of 1 to {MOST_METRIC} characters")
        check_options(options_, "options")
        if collect.judge is not None:
            check_options(collect.judge.options, "judge", "options")
        question = Question(collect, metric, options_, made)
        return question, self._pinned(model, asks, question), asks

    def _pinned(self, model: object, asks: str, question: Question) -> str | None:
        """Return the name of the model as it will be asked, an alias replaced by its checkpoint of now."""
        if model is None:
            if question.prices is None:
                raise InvalidInput.at("model", msg="or prices are required: what would have been different")
            return None
        name = self._runtime.store.read(lambda snapshot: AnsweredBy.of(snapshot, self._principal, check_model(model)))
        served = resolve(self._runtime, name.pinned, self._principal)
        able = backend_of(self._runtime.backend, served.base_model).capabilities(served.base_model)
        if asks == LOGPROBS and not (able.prompt_logprobs and able.token_ids):
            msg = f"is {model!r}, whose backend gives no log-probabilities of a prompt; take a local model or vLLM"
            raise InvalidInput.at("model", msg=msg)
        return name.pinned

    def _submit(
        self,
        question: Question,
        model: str,
        asks: str,
        budget: Decimal | int | str | None,
        key: str | None,
        given: WhatIfOptions,
    ) -> AskedTraffic:
        self._runtime.require_room()
        found = estimated(self._runtime, self._principal, question, model, asks)
        amount = EXACT.fma(found.total, SLACK, found.longest) if budget is None else _amount(budget)
        kept = {**attrs.asdict(found), **{name: f"{getattr(found, name):f}" for name in _AMOUNTS}}
        plain = question.plain()
        content = {**plain, "estimate": kept, "rows": found.rows}
        said = {
            name: str(given.get(name)) for name in ("model", *_TIMES)
        }  # an age, or an alias, means what it did then
        same = {"asks": asks, "budget": None if budget is None else f"{amount:f}", **plain, **said}
        same["collect"] = {**plain["collect"], **dict.fromkeys(_TIMES)}
        asked_id, now = self._runtime.ids(), self._runtime.clock.now()
        place = question.collect.entity, question.collect.project
        asked = AskedTraffic(asked_id, *place, model, asks, content, amount, now)
        spec = {"request": digest(same), "asker": requester_spec(self._runtime, self._principal)}
        requested = Job(asked_id, JOB, *place, asked_id, now, spec, idempotency_key=key)
        most = self._runtime.settings.max_queued_jobs

        def step(tx: Tx) -> Job:
            job = enqueue(tx, requested, most)
            if job.id == asked_id:
                tx.add(asked)
            return job

        job = store_texts(self._runtime, place[0], step)
        if job.id != asked_id:
            return self.record(job.id)
        announce(self._runtime, job)
        return asked

    # ---- what came of it

    def _computed(self, question: Question, model: str | None, predicted: Mapping[str, float]) -> WhatIf:
        request = question.collect
        project = None if request.everywhere else request.project
        repriced: Repriced | None = None
        tariffs = self._tariffs(question, model)
        if tariffs is not None:
            period = request.entity, project, request.since, request.until
            repriced = reprice(ledger_calls(self._runtime, self._principal, *period), tariffs, model)
        feedback: Counterfactual | None = None
        if model is not None:
            of = self._runtime, self._principal
            target = self._runtime.store.read(lambda snapshot: AnsweredBy.of(snapshot, self._principal, model))
            period_of = request.since, request.until
            feedback = doubly_robust(logged_answers(*of, target, question.metric, *period_of, predicted))
        return WhatIf(model, repriced=repriced, feedback=feedback)

    def _tariffs(self, question: Question, model: str | None) -> Mapping[str, Tariff] | None:
        if question.prices is not None:
            return tariffs_of(question.prices)
        try:
            return None if model is None else {model: tariff_of(self._runtime, self._principal, model)}
        except NotFound:
            return None

    def _answers(self, asked: AskedTraffic, predicted: dict[str, float]) -> AnsweredAgain:
        """Compare the rows, and note by the ids of their answers how the judge scored the new ones."""
        scores, odds, errors = [], [], Counter[str]()
        done = failed = 0
        costs, before, spent = Decimal(0), Decimal(0), Decimal(0)
        for row in iter_index_live(self._runtime, AskedRow, "by_what_if", asked.id):
            done, failed, spent = done + row.done, failed + bool(row.error), EXACT.add(spent, row.spent)
            errors.update(filter(None, (row.error,)))
            if row.score is not None:
                predicted[row.completion] = row.score
            if row.score is not None and row.served_score is not None:
                scores.append((row.served_score, row.score))
            if row.logprob is not None and row.served_logprob is not None and row.tokens:
                odds.append((row.served_logprob / row.tokens, row.logprob / row.tokens))
            if row.cost is not None and row.served_cost is not None:
                costs, before = EXACT.add(costs, row.cost), EXACT.add(before, row.served_cost)
        judged = paired(scores) if "score" in asked.content["collect"] and scores else None
        why = next((error for error, _ in errors.most_common(1)), "")
        return AnsweredAgain(done, failed, judged, paired(odds) if odds else None, before, costs, spent, why)

    # ---- what is seen

    def _sees(self, asked: AskedTraffic) -> bool:
        return self._principal.scope.covers(asked.entity, asked.project)

    def _found(self, snapshot: Snapshot, id: str) -> tuple[AskedTraffic, Job, JobProgress | None]:
        found, job = get_or_none(snapshot, AskedTraffic, id), get_or_none(snapshot, Job, id)
        if found is None or job is None or not self._sees(found):
            raise NotFound("What-if", id)
        return found, job, get_or_none(snapshot, JobProgress, id)

    def _job(self, id: str, snapshot: Snapshot) -> Job:
        return self._found(snapshot, id)[1]

    def _show(self, id: str, show: Show) -> None:
        asked, _, progress = self._runtime.store.read(lambda snapshot: self._found(snapshot, id))
        show(progress.step if progress else 0, asked.content["rows"], {})


def _moment(given: object, name: str, now: datetime) -> datetime | None:
    if given is None or isinstance(given, datetime):
        return given
    try:
        return moment_of(str(given), now)
    except ValueError:
        raise InvalidInput.at(name, msg=f"must be {WORDS}") from None


def _renamed(wrong: InvalidInput) -> InvalidInput:
    """Return problems of a collection at the names that they have here."""
    names = {"score": "judge", "model": "answered_by"}
    return InvalidInput(
        [attrs.evolve(one, loc=(names.get(str(one.loc[0]), one.loc[0]), *one.loc[1:])) for one in wrong.problems]
    )


def _amount(given: Decimal | int | str) -> Decimal:
    try:
        amount = Decimal(given) if isinstance(given, Decimal | int | str) and not isinstance(given, bool) else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or not 0 <= amount < 10**9:
        raise InvalidInput.at("budget", msg="must be an exact amount of USD, 0 or more, such as '0.50'")
    return amount
