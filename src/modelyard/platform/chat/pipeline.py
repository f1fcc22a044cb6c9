"""One chat completion: resolve, check, reserve, stream, assemble, record. Written once, as a flow, for every caller."""

from modelyard.clock import unix_seconds
from modelyard.domain.completion import Completion
from modelyard.domain.frozen_fast import maker
from modelyard.domain.usage import Admission
from modelyard.errors import ModelyardError
from modelyard.flow import Call, CallerDisconnected, Emit, Flow
from modelyard.platform.chat.assembly import UNINTERRUPTED, ResponseAssembler, assemblers_of, in_order
from modelyard.platform.chat.backend_stream import (
    BackendStream,
    Close,
    CompletionResult,
    GiveWay,
    Open,
    Pull,
    StreamStarted,
    backend_failed,
)
from modelyard.platform.chat.booked_request import report_failed
from modelyard.platform.chat.plan import find_plan, known_plan
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.platform.chat.short_ways_fast import ShortWays
from modelyard.platform.usage.admission import reserve

_result = maker(CompletionResult)


class CompletionPipeline(RunningCompletion):
    """Answers one request and records its usage on `attribution`.

    A streamed request emits its `StreamStarted`, its deltas, and its `Completion` when its usage is recorded. What can
    fail before the first token fails before the first of these. A caller who leaves pays for what was produced.

    What does not wait, as a store or backend declares, is done in place: yielding it to the driver would cost more.
    `reserves_first` is for a driver who stores usage in transactions of its own: what an answer may cost is then always
    reserved before the backend is asked.
    """

    reserves_first: bool = False
    choices_begun: int = 0

    def flow(self, details: bool = False) -> Flow[CompletionResult]:
        """Answer the request, with log-probabilities and token ids for `details`, where the backend has them.

        Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
        `BackendError`, `StoreError`.
        """
        self.details = details
        self.begin_span()
        short_ways = ShortWays(self)
        try:
            plan = known_plan(self.runtime, self.principal, self.attribution, self.given.model)
            if plan is None or plan.captures is not None:
                plan = yield from find_plan(self, plan)
            self.plan, self.backend = plan, plan.backend
            self.served = plan.served if self.span is None else self.span.traced(plan.served)
            if plan.counts_in_thread:
                yield Call(self._prepare, threads=plan.served.threads)
            else:
                self._prepare()
            self.runtime.cache.begin(self.id, self)
            completion = None
            if plan.budgets and plan.asks_after and not self.reserves_first:
                completion = yield from short_ways.admitted()
            if completion is None:
                if plan.limited:
                    self.reserved = yield from self._reserve()
                self.completion = completion = short_ways.whole() or (yield from self._answer(short_ways))
                yield from self._record(completion)
            if self.given.streamed:
                yield Emit(completion)
            return _result(completion, self.served.entry)
        except CallerDisconnected:
            raise
        except Exception as error:
            short_ways.close()
            report_failed(self, error)
            raise
        finally:
            self._leave()

    def _reserve(self) -> Flow[Admission | None]:
        """Reserve the most that the request can cost, where a limit or a budget applies."""
        see = None if self.client is None else self.client.see_rate
        of = self.runtime, self.principal, self.attribution.entity, self.admission()
        return reserve(*of, lambda: self.cost_with(min(1, self.max_tokens)), see)

    def _answer(self, short_ways: ShortWays) -> Flow[Completion]:
        """Read and assemble the answer. Where that fails, record what was produced."""
        try:
            self.created = unix_seconds(self.runtime.clock.now())
            self.assemblers = assemblers_of(self.request, self.makes_choices)
            for index, assembler in enumerate(self.assemblers):
                yield from self._read(assembler, short_ways.begun(index))
            return self.assembled()
        except Exception as failure:
            self.failure = None if isinstance(failure, CallerDisconnected) else failure
            if (rest := self.remainder()) is not None and self._claim(rest):
                yield from self._write(rest)
            raise

    def _read(self, assembler: ResponseAssembler, begun: BackendStream | None) -> Flow[None]:
        """Read what the backend answers to one request of it. One that never waits gives way to others now and then."""
        self.stream = stream = yield Open(self.backend, assembler.request, self.served, begun)
        waits, taken, more = stream.waits, 0, True
        while more and not assembler.done:
            if self.cut_by is not None:
                raise self.cut_by
            try:
                more = (yield Pull(stream, assembler.take)) if waits else stream.pull(assembler.take)
            except (ModelyardError, CallerDisconnected):
                raise
            except Exception as error:
                raise backend_failed(error) from error
            taken += self.to_show(assembler)
            if assembler.shown:
                yield from self._emit(assembler)
            if taken + assembler.details >= UNINTERRUPTED and not waits:
                taken = assembler.details = 0
                yield GiveWay()
        yield Close(stream)
        if self.cut_by is not None and not assembler.done:
            raise self.cut_by

    def _emit(self, assembler: ResponseAssembler) -> Flow[None]:
        """Emit the deltas that may be shown, all at once; the choices begin in the order of their indexes."""
        if self.first_token is None:
            self.first_token = self.runtime.clock.monotonic() - self.began
            yield Emit(StreamStarted(self.id, self.created, self.given.model, self.served.entry))
        shown, assembler.shown = assembler.shown, []
        if self.request.n > 1:
            shown, self.choices_begun = in_order(shown, self.choices_begun)
        yield Emit(shown)

    def _record(self, completion: Completion) -> Flow[None]:
        """Write the usage into the ledger, and settle what was reserved."""
        booking = self._claim_whole(self.whole_booking(completion))
        if self.runtime.store.blocking:
            yield from self._write(booking)
        else:
            booking.commit(self.runtime.store)
