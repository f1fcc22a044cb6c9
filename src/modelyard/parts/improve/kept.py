"""Models that are asked once for each request of an optimisation. What they say is kept in the transaction that books
it, and found again by the digest of what they were asked; so whatever ends the job, nobody pays for it twice."""

import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.completion import Completion, CompletionRequest
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.job import Job
from modelyard.errors import BudgetExceeded, LeaseLost
from modelyard.flow import Flow
from modelyard.formats.converter import unstructure
from modelyard.parts.improve.records import KeptCall
from modelyard.parts.improve.thread import NotDone
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.evaluations.model_under_test import CompletionModel, messages_asked
from modelyard.platform.evaluations.row_evaluation import Reply
from modelyard.platform.jobs.claims import ClaimedJob, fenced
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import CompletionBooking
from modelyard.protocols import Snapshot, Tx


class PurseEmpty(BudgetExceeded, NotDone):
    """The budget of the job itself cannot pay for what comes next."""


class Purse:
    """What a job may spend, None for any amount. The most that a call can cost is held before it is asked. One worker
    has the job, so what is held is known to its process alone. Thread-safe."""

    def __init__(self, limit: Decimal | None, spent: Decimal) -> None:
        self.limit: Decimal | None = limit
        self.spent: Decimal = spent
        self._held: dict[str, Decimal] = {}
        self._lock = threading.Lock()

    def hold(self, id: str, most: Decimal) -> None:
        """Hold the most that a call can cost. Raises `PurseEmpty`."""
        with self._lock:
            if self.limit is not None and self.spent + sum(self._held.values()) + most > self.limit:
                left = f"{self.limit - self.spent:f} of {self.limit:f} USD are left of the budget"
                raise PurseEmpty(f"{left}, and the next call may cost {most:f}")
            self._held[id] = most

    def settle(self, id: str, paid: Decimal) -> None:
        """Spend what a call has cost, and release the rest."""
        with self._lock:
            self.spent += paid
            self._held.pop(id, None)


class KeptCalls:
    """The calls of one optimisation that are kept, and its purse. `refused` is why a call was refused for a budget, its
    own or another: then nothing more is to be asked. Thread-safe."""

    def __init__(self, claimed: ClaimedJob, limit: Decimal | None) -> None:
        self.claimed: ClaimedJob = claimed
        self.runtime: Runtime = claimed.runtime
        self.optimisation: str = claimed.job.spec["optimisation"]
        self.refused: BudgetExceeded | None = None
        paid = self.runtime.store.read(lambda snapshot: sum((one.paid for one in self._all(snapshot)), Decimal(0)))
        self.purse: Purse = Purse(limit, paid)

    def over(self) -> bool:
        """Whether nothing more is to be asked."""
        return self.refused is not None

    def _all(self, snapshot: Snapshot) -> list[KeptCall]:
        return list(iter_index(snapshot, KeptCall, "by_optimisation", self.optimisation))

    def find(self, key: str) -> Mapping[str, Any] | None:
        """Return what is kept under a digest."""
        kept = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, KeptCall, self.optimisation, key))
        return None if kept is None else kept.found

    def keep(self, tx: Tx, kind: str, key: str, found: Mapping[str, Any], paid: Decimal = Decimal(0)) -> None:
        """Keep what a call gave, whoever has the job by now, for it is paid for; unless the job was deleted with its
        entity. The worker that has it got on."""
        job, now = self.claimed.job, self.runtime.clock.now()
        try:
            progress = fenced(tx, self.claimed.claim).gained()
            tx.replace(attrs.evolve(progress, updated_at=progress.time(now)))
        except LeaseLost:
            if get_or_none(tx, Job, job.id) is None:
                return
        if get_or_none(tx, KeptCall, self.optimisation, key) is None:
            place = (job.entity, job.project, job.spec["variant_id"])
            tx.add(KeptCall(self.optimisation, key, kind, *place, f"{paid:f}", found, now))


class _KeptCompletion(CompletionPipeline):
    """A completion that the purse pays for, and whose answer is kept as it is booked."""

    reserves_first = True
    calls: KeptCalls
    kind: str
    key: str

    def _prepare(self) -> None:
        super()._prepare()
        self.calls.purse.hold(self.id, self.cost_with(self.max_tokens))

    def whole_booking(self, completion: Completion) -> CompletionBooking:
        booking, usage = super().whole_booking(completion), completion.usage
        paid = Decimal(0) if booking.entry is None else booking.entry.cost
        found = {
            "output": completion.choices[0].message.text,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost": f"{paid:f}",
        }
        before = booking.keep

        def keep(tx: Tx) -> None:
            if before is not None:
                before(tx)
            self.calls.keep(tx, self.kind, self.key, found, paid)

        booking.keep = keep
        return booking


@attrs.frozen
class KeptModel:
    """A model whose replies are kept, to be used as a `CompletionModel` is."""

    model: CompletionModel
    calls: KeptCalls
    kind: str

    def reply(self, row: Mapping[str, Any], seed: int) -> Flow[Reply]:
        """Reply to a row. Raises as a completion does."""
        model = self.model
        row = row if model.reads is None else model.reads(row)
        sampling = model.request.sampling.seeded(seed) if model.seeded else model.request.sampling
        asked = model.request.asking(messages_asked(model.prompts, row), sampling, model.request.max_tokens)
        return (yield from self.ask(asked, model.principal, model.attribution))

    def ask(
        self, request: CompletionRequest, principal: Principal, attribution: Attribution, nth: int = 0
    ) -> Flow[Reply]:
        """Reply to a request: its `nth` repetition, which is asked for anew."""
        calls, key = self.calls, digest([self.kind, nth, unstructure(request)])
        if (found := calls.find(key)) is None:
            pipeline = _KeptCompletion(calls.runtime, principal, request, attribution)
            pipeline.calls, pipeline.kind, pipeline.key = calls, self.kind, key
            try:
                yield from pipeline.flow()
            except BudgetExceeded as error:
                calls.refused = calls.refused or error
                raise
            finally:
                calls.purse.settle(pipeline.id, Decimal(0) if pipeline.entry is None else pipeline.entry.cost)
            found = calls.find(key)
            assert found is not None
        return Reply(found["output"], found["prompt_tokens"], found["completion_tokens"], Decimal(found["cost"]))


def keeping(scorer: Any, calls: KeptCalls) -> Any:
    """Return a scorer whose judges are asked once for each of their questions."""
    if hasattr(scorer, "parts"):
        return attrs.evolve(scorer, parts={name: keeping(one, calls) for name, one in scorer.parts.items()})
    judge = getattr(scorer, "model", None)
    if not isinstance(judge, CompletionModel):
        return scorer
    return attrs.evolve(scorer, model=KeptModel(judge, calls, "judge"))
