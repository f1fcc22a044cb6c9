"""Asking a model about one stored answer: to answer again, how likely the answer is, and a judge about both.

The most that a request can cost is reserved from the budget before it is asked. What came of it is kept in the
transaction that books it, so that after a crash nothing that was booked is asked again.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import Completion, CompletionRequest, Message, Role, Sampling, StoredCompletion
from modelyard.domain.evaluation.scorers import LlmJudge, Unscored
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import InvalidInput, ModelyardError, NotFound
from modelyard.flow import run
from modelyard.formats.json import kept_data
from modelyard.parts.rollouts.mirror import MirroredCompletion
from modelyard.parts.traffic.selection import number_of
from modelyard.parts.traffic.traffic_row import TrafficRow
from modelyard.parts.what_if.question import MAX_TOKENS
from modelyard.parts.what_if.records import LOGPROBS, AskedRow, AskedTraffic
from modelyard.platform.chat.request import build_request
from modelyard.platform.owned import unless_deleted
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import CompletionBooking
from modelyard.protocols import Snapshot, Tx

_AS_STORED = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_ONE = Sampling(temperature=0.0)


class BudgetSpent(Exception):
    """Raised where the budget has less left than a request can cost, and no other request may give some back."""

    def __init__(self, most: Decimal) -> None:
        super().__init__(most)
        self.most = most


class _Kept(MirroredCompletion):
    """A completion of which something is kept in the transaction that books it."""

    keeps: Callable[[Tx, Completion, Decimal], object]

    def whole_booking(self, completion: Completion) -> CompletionBooking:
        booking = super().whole_booking(completion)
        before, cost = booking.keep, Decimal(0) if booking.entry is None else booking.entry.cost

        def keep(tx: Tx) -> None:
            if before is not None:
                before(tx)
            self.keeps(tx, completion, cost)

        booking.keep = unless_deleted(self.runtime, self.attribution.entity, self.arrived, keep)
        booking.loose = False
        return booking


@attrs.define(eq=False)
class Asking:
    """Asks about stored answers, on the budget of one question. Thread-safe."""

    runtime: Runtime
    principal: Principal
    asked: AskedTraffic
    options: Mapping[str, Any]
    judge: LlmJudge | None
    _held: Any = attrs.field(factory=threading.Condition, init=False)
    _running: int = attrs.field(default=0, init=False)

    def ask(self, row: TrafficRow) -> None:
        """Do what is left to do about a stored answer. A failure is kept with the row.

        Raises `BudgetSpent`, and what is worth another attempt: `RateLimited`, `BackendError`, `Overloaded`.
        """
        known = self.runtime.store.read(lambda snapshot: self._row(snapshot, row))
        if known.done:
            return
        if self.asked.asks == LOGPROBS:
            self._compare(row, known)
        else:
            if self.judge is not None:
                self._question_of(row, row.answer.text)  # what it cannot be asked is known before anything is paid for
            if known.answer is None:
                self._answer(row)
            if self.judge is not None:
                self._judge(row)
        self.change(row, done=True)

    def change(self, row: TrafficRow, **values: Any) -> None:
        """Keep something of a stored answer."""
        self.runtime.store.transact(lambda tx: self._keep(tx, row, lambda one: attrs.evolve(one, **values)))

    # ---- what is kept

    def _row(self, snapshot: Snapshot, row: TrafficRow) -> AskedRow:
        known = get_or_none(snapshot, AskedRow, self.asked.id, row.id)
        if known is not None:
            return known
        booked = get_or_none(snapshot, LedgerEntry, row.completion_id)
        cost = booked.cost if booked is not None and booked.entity == row.entity else None
        of = self.asked.id, row.id, self.asked.entity, self.asked.project, row.completion_id, row.model
        return AskedRow(*of, self.runtime.clock.now(), served_cost=cost)

    def _keep(self, tx: Tx, row: TrafficRow, change: Callable[[AskedRow], AskedRow]) -> None:
        if get_or_none(tx, AskedTraffic, self.asked.id) is None:
            raise NotFound("What-if", self.asked.id)
        known = get_or_none(tx, AskedRow, self.asked.id, row.id)
        if known is None:
            tx.add(change(self._row(tx, row)))
        else:
            tx.replace(change(known))

    # ---- one request, on the budget

    def _request(self, row: TrafficRow, request: CompletionRequest, kept: Callable[[Completion, Decimal], Any]) -> Any:
        """Ask once. `kept` returns what of the row changes by the answer and its cost."""
        where = Attribution(self.asked.entity, self.asked.project)
        one = _Kept(self.runtime, self.principal, request, where)
        changed: dict[str, Any] = {}

        def keeps(tx: Tx, completion: Completion, cost: Decimal) -> None:
            changed.update(kept(completion, cost))
            self._keep(tx, row, lambda known: attrs.evolve(known, **changed, spent=known.spent + cost))

        one.keeps = keeps
        most = one.most()
        self._reserve(most)
        try:
            run(one.flow(details=True))
        finally:
            self._settle((Decimal(0) if one.entry is None else one.entry.cost) - most)
        return changed

    def _reserve(self, most: Decimal) -> None:
        """Take an amount from the budget, if need be when others have given back what they did not spend."""
        with self._held:
            while not self.runtime.store.transact(partial(self._spend, most)):
                if not self._running:
                    raise BudgetSpent(most)
                self._held.wait()
            self._running += 1

    def _settle(self, amount: Decimal) -> None:
        with self._held:
            try:
                self.runtime.store.transact(partial(self._spend, amount))
            finally:
                self._running -= 1
                self._held.notify_all()

    def _spend(self, amount: Decimal, tx: Tx) -> bool:
        """Spend an amount, below 0 to give it back. Returns whether there was that much."""
        asked = get_or_none(tx, AskedTraffic, self.asked.id)
        if asked is None:
            return True
        if amount > 0 and asked.spent + amount > asked.budget:
            return False
        tx.replace(attrs.evolve(asked, spent=asked.spent + amount))
        return True

    # ---- what is asked

    def _answer(self, row: TrafficRow) -> None:
        options: Any = {"max_tokens": MAX_TOKENS, **self._as_stored(row), **self.options}
        if row.tools:
            options["tools"] = list(row.tools)
        messages = list(row.messages[:-1])
        request = _built(options, self.asked.model, messages)
        self._request(row, request, lambda answer, cost: {"answer": answer.text, "cost": cost})

    def _as_stored(self, row: TrafficRow) -> Mapping[str, Any]:
        """Return how a stored completion was sampled."""
        if row.source != "chat":
            return {}
        stored = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, StoredCompletion, row.id))
        given: Any = {} if stored is None else kept_data(stored.request)
        sampling = given.get("sampling") or {}
        found = {name: sampling[name] for name in _AS_STORED if sampling.get(name) is not None}
        return {**found, **({"max_tokens": given["max_tokens"]} if given.get("max_tokens") else {})}

    def _judge(self, row: TrafficRow) -> None:
        known = self.runtime.store.read(lambda snapshot: self._row(snapshot, row))
        if known.served_score is None:
            self._judged(row, "served_score", row.answer.text)
        if known.score is None and known.answer is not None:
            self._judged(row, "score", known.answer)

    def _judged(self, row: TrafficRow, name: str, answer: str) -> None:
        judge = self.judge
        assert judge is not None, "there is one"
        question = self._question_of(row, answer)
        options: Any = {"seed": 0, "max_tokens": MAX_TOKENS, **judge.options}
        request = _built(options, judge.model, question)

        def kept(said: Completion, _: Decimal) -> Mapping[str, Any]:
            try:
                return {name: number_of(judge.read(said.text))}
            except Unscored as why:
                return {"error": str(why)}

        self._request(row, request, kept)

    def _question_of(self, row: TrafficRow, answer: str) -> str:
        assert self.judge is not None, "there is one"
        asked = [message.text for message in row.messages[:-1] if message.role is Role.USER]
        fields = {"prompt": asked[-1] if asked else "", **row.metadata}
        if missing := self.judge.asked_for - fields.keys():
            raise InvalidInput.at("judge", msg=f"asks for {min(missing)}, which the request does not have as metadata")
        return self.judge.asks(answer, fields)

    # ---- log-probabilities

    def _compare(self, row: TrafficRow, known: AskedRow) -> None:
        if known.logprob is not None and known.served_logprob is not None:
            return
        served = self._served_name(row)
        before = self._ids(row, messages=row.messages[:-1])
        answer = self._ids(row, prompt=row.answer.text)
        ids = before + (answer[1:] if answer[:1] == before[:1] else answer)  # both begin with the same mark
        texts = [
            self._scored(row, name, ids, len(before), of) for name, of in ((self.asked.model, ""), (served, "served_"))
        ]
        if texts[0] != texts[1]:
            self.change(row, served_logprob=None, error=f"{served} reads other tokens than {self.asked.model}")

    def _served_name(self, row: TrafficRow) -> str:
        """Return the name of the checkpoint that answered, or of the model."""

        def query(snapshot: Snapshot) -> str:
            checkpoint = get_or_none(snapshot, Checkpoint, row.checkpoint_id or "")
            model = None if checkpoint is None else get_or_none(snapshot, Model, checkpoint.model_id)
            if checkpoint is None or model is None:
                return row.model
            return f"{model.entity}/{model.project}/{model.name}:step{checkpoint.step}"

        return self.runtime.store.read(query)

    def _ids(self, row: TrafficRow, messages: tuple[Message, ...] = (), prompt: str | None = None) -> tuple[int, ...]:
        of: Any = {"sampling": _ONE, "max_tokens": 1, "return_token_ids": True, "prompt": prompt}
        found: list[tuple[int, ...]] = []
        request = CompletionRequest(self.asked.model, messages, **of)

        def kept(answer: Completion, _: Decimal) -> Mapping[str, Any]:
            found.append(answer.choices[0].prompt_token_ids)
            return {}

        self._request(row, request, kept)
        return found[-1]

    def _scored(self, row: TrafficRow, model: str, ids: tuple[int, ...], start: int, of: str) -> Sequence[str]:
        """Keep how likely a model finds the tokens from a place on, and return their texts."""
        found: list[list[Any]] = []

        def kept(answer: Completion, _: Decimal) -> Mapping[str, Any]:
            entries = [*answer.choices[0].prompt_logprobs[start - 1 :]]
            found.append(entries)
            return {f"{of}logprob": math.fsum(one.logprob for one in entries), "tokens": len(entries)}

        request = CompletionRequest(model, (), sampling=_ONE, max_tokens=1, prompt=ids, prompt_logprobs=0)
        self._request(row, request, kept)
        return [one.token for one in found[-1]]


def _built(options: Mapping[str, Any], model: str, messages: Any) -> CompletionRequest:
    whole: Any = {**options, "model": model, "messages": messages}
    return build_request(whole, streamed=False)


def failure_text(failure: Exception) -> str:
    """Return why something could not be asked, in a line."""
    return str(failure)[:300] if isinstance(failure, ModelyardError) else f"{type(failure).__name__} while it was asked"
