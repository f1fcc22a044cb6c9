"""One chat completion: resolve, check, reserve, stream, assemble, record. Written once, as a flow, for every caller."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import ClassVar, cast

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Completion, CompletionRequest, Delta, ToolMode, Usage
from modelyard.domain.frozen import maker, quick_init
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.usage import Admission, LedgerEntry, most
from modelyard.errors import BackendError, ModelyardError, StoreClosed
from modelyard.flow import Call, CallerDisconnected, Emit, Flow
from modelyard.platform.chat.assembly import UNINTERRUPTED, ResponseAssembler, assemblers_of, check_length
from modelyard.platform.chat.backend_stream import BackendStream, Close, GiveWay, Open, Pull, close_deltas
from modelyard.platform.chat.capability_checks import (
    check_supported,
    check_tool_choice,
    estimated_prompt,
    resolve_max_tokens,
    with_details,
)
from modelyard.platform.chat.measured import CompletionSpan, RequestInProgress, report_booked, report_failed
from modelyard.platform.chat.plan import CompletionPlan, known_plan, make_plan, storing
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.admission import reserve
from modelyard.platform.usage.booking import CompletionBooking, RecordUsage, of_entity
from modelyard.protocols import AsyncBackend, Backend, Deltas, ServedModel

_completion, _usage = maker(Completion), maker(Usage)


@attrs.frozen
class StreamStarted:
    """The first item of a stream: nothing can be refused any more. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    entry: CatalogueEntry


@quick_init
@attrs.frozen(weakref_slot=False)
class CompletionResult:
    """What a `CompletionPipeline` returns: the completion, and the catalogue entry that priced it."""

    completion: Completion
    entry: CatalogueEntry


_result = maker(CompletionResult)


class CompletionPipeline:
    """Answers one request and records its usage on `attribution`.

    A streamed request emits its `StreamStarted`, its deltas, and its `Completion` when its usage is recorded. What can
    fail before the first token fails before the `StreamStarted`. `details` asks for log-probabilities and token ids
    where the backend has them. A caller who leaves meanwhile pays for what was produced.

    What does not wait, as a store or backend declares, is done in place: yielding it to the driver would cost more.
    """

    operation: ClassVar[str] = "chat"
    plan: CompletionPlan | None = None
    served: ServedModel
    backend: Backend | AsyncBackend
    request: CompletionRequest
    prompt_tokens: int | None = None
    images: int = 0
    reserved: Admission | None = None
    assemblers: Sequence[ResponseAssembler] = ()
    stream: BackendStream | None = None
    choices_begun: int = 0
    cut_by: Exception | None = None
    span: CompletionSpan | None = None
    entry: LedgerEntry | None = None
    first_token: float | None = None
    whole: bool = False
    failure: Exception | None = None

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        request: CompletionRequest,
        attribution: Attribution,
        details: bool = False,
        client: RequestInProgress | None = None,
    ) -> None:
        self.runtime: Runtime = runtime
        self.client: RequestInProgress | None = client
        self.began: float = runtime.clock.monotonic()
        self.principal: Principal = principal
        self.given: CompletionRequest = request
        self.attribution: Attribution = attribution
        self.details: bool = details
        self.id: str = runtime.ids()
        self.created: int = int(runtime.clock.now().timestamp())

    def flow(self) -> Flow[CompletionResult]:
        """Answer the request.

        Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
        `BackendError`, `StoreError`.
        """
        runtime, given = self.runtime, self.given
        cache, store = runtime.cache, runtime.store
        if cache.tracing is not None:
            self.span = cache.tracing.begin(self)
        try:
            plan = known_plan(runtime, self.principal, self.attribution, given.model)
            if plan is None:
                make = partial(make_plan, runtime, self.principal, self.attribution, given.model)
                plan = yield Call(make, store.blocking, runtime.store_threads(self.principal.entity))
            self.plan, self.backend = plan, plan.backend
            self.served = plan.served if self.span is None else self.span.traced(plan.served)
            if plan.counts_in_thread:
                yield Call(self._prepare, threads=plan.served.threads)
            else:
                self._prepare()
            cache.running[self.id] = self
            if cache.closed:
                raise StoreClosed("this platform was closed; open it again with open_platform")
            if plan.limited:
                self.reserved = yield from self._reserve()
            try:
                for assembler in self.assemblers:
                    yield from self._read(assembler) if plan.waits else self._read_in_place(assembler)
                completion = self._completion()
            except Exception as failure:
                self.failure = None if isinstance(failure, CallerDisconnected) else failure
                if (rest := self.remainder()) is not None and self._claim(rest):
                    yield from self._write(rest)
                raise
            booking = self._whole_booking(completion)
            if store.blocking:
                yield from self._write(booking)
            else:
                store.transact(booking.step, durable=False)
                booking.on_committed()
            if given.streamed:
                yield Emit(completion)
            return _result(completion, self.served.entry)
        except CallerDisconnected:
            raise
        except Exception as error:
            report_failed(self, error)
            raise
        finally:
            if cache.running.pop(self.id, None) is not None:  # an interrupt kept this from being recorded
                if (rest := self.remainder()) is not None:
                    cache.bookings[self.id] = rest  # which the next beat commits
                if self.reserved is not None:
                    cache.presence.release(self.id)
            if self.span is not None:
                self.span.end()

    # ---- before the backend answers

    def _prepare(self) -> None:
        """Make the request that the backend gets: checked against its capabilities, with a token limit and a seed."""
        entry, backend, request = self.served.entry, self.backend, self.given
        capabilities = backend.capabilities(self.served.base_model)
        if self.details:
            request = with_details(request, capabilities)
        if request.tool_choice.mode is ToolMode.REQUIRED:
            check_tool_choice(request)
        self.images = check_supported(request, entry, capabilities)
        self.prompt_tokens = backend.prompt_tokens(request, self.served)
        max_tokens = resolve_max_tokens(entry, self.prompt_tokens, request)
        sampling = request.sampling
        if sampling.seed is None:
            sampling = sampling.seeded(int.from_bytes(self.runtime.randomness(8), "big", signed=True))
        self.request = request = request.asking(request.messages, sampling, max_tokens)
        self.assemblers = assemblers_of(request, capabilities.choices)

    def _reserve(self) -> Flow[Admission | None]:
        tokens = self.request.max_tokens or 0
        longest, entity = self._cost_with(tokens), self.attribution.entity
        admission = Admission(self.id, self.principal.key_id, entity, (), longest, self.runtime.clock.now())
        see = None if self.client is None else self.client.see_rate
        return reserve(self.runtime, admission, self.principal.limits, partial(self._cost_with, min(1, tokens)), see)

    def _cost_with(self, tokens: int) -> Decimal:
        """Return the most that the request can cost with answers of so many tokens."""
        entry = self.served.entry
        prompt = entry.context_length if self.prompt_tokens is None else self.prompt_tokens
        return most(Usage(prompt, tokens * self.request.n, images=self.images), entry.pricing)

    # ---- while it answers

    def _read(self, assembler: ResponseAssembler) -> Flow[None]:
        """Read the answer of a backend that may wait to one request of it."""
        stream, more = (yield Open(self.backend, assembler.request, self.served)), True
        self.stream = stream
        while more and not assembler.done:
            if self.cut_by is not None:
                raise self.cut_by
            try:
                more = yield Pull(stream, assembler.take)
            except (ModelyardError, CallerDisconnected):
                raise
            except Exception as error:
                raise _failed(error) from error
            if assembler.shown:
                yield from self._emit(assembler)
        yield Close(stream)

    def _read_in_place(self, assembler: ResponseAssembler) -> Flow[None]:
        """Read the answer of a backend that never waits, and give way to others now and then."""
        deltas: Iterator[Deltas] | None = None
        more, taken = True, 0
        try:
            while more and not assembler.done:
                if self.cut_by is not None:
                    raise self.cut_by
                try:
                    deltas = deltas or iter(cast(Backend, self.backend).stream(assembler.request, self.served))
                    more = any(map(assembler.take, deltas))
                except ModelyardError:
                    raise
                except Exception as error:
                    raise _failed(error) from error
                if assembler.shown:
                    taken += len(assembler.shown)
                    yield from self._emit(assembler)
                if taken + assembler.details >= UNINTERRUPTED:
                    taken = assembler.details = 0
                    yield GiveWay()
        finally:
            close_deltas(deltas)

    def _emit(self, assembler: ResponseAssembler) -> Flow[None]:
        """Emit the deltas that may be shown, all at once; the choices begin in the order of their indexes."""
        if self.first_token is None:
            self.first_token = self.runtime.clock.monotonic() - self.began
            yield Emit(StreamStarted(self.id, self.created, self.given.model, self.served.entry))
        shown, assembler.shown = assembler.shown, []
        if self.request.n > 1:
            shown = [*chain.from_iterable(map(self._in_order, shown))]
        yield Emit(shown)

    def _in_order(self, delta: Delta) -> list[Delta]:
        """Return a delta, after empty ones of the choices before it that have not begun."""
        before = [Delta(index=index) for index in range(self.choices_begun, delta.index)]
        self.choices_begun = max(self.choices_begun, delta.index + 1)
        return [*before, delta]

    # ---- when it has answered

    def _completion(self) -> Completion:
        """Assemble the completion. Raises `BackendError` for an answer that is incomplete or cannot be counted."""
        choices = self.assemblers[0].fold()
        if len(self.assemblers) > 1:
            check_length(self.assemblers)
            choices += [choice for assembler in self.assemblers[1:] for choice in assembler.fold()]
        return _completion(self.id, self.created, self.given.model, tuple(choices), self._usage())

    def _usage(self) -> Usage:
        """Return the usage as the backend reports it, else as it was counted; it never costs more than was admitted."""
        first, known = self.assemblers[0].report, self.prompt_tokens
        if first is None and known is not None and len(self.assemblers) == 1:
            return _usage(known, self.assemblers[0].completion_tokens(), 0, self.images)
        estimated = first is None and known is None
        prompt = first.prompt_tokens if first is not None else known
        prompt = estimated_prompt(self.request) if prompt is None else prompt
        prompt, produced = min(prompt, self.served.entry.context_length), 0
        for assembler in self.assemblers:
            produced += assembler.completion_tokens()
            estimated = estimated or (assembler.report is not None and assembler.report.estimated)
        if known is not None and prompt > known and self.reserved is not None:
            whole = most(Usage(prompt, produced, images=self.images), self.served.entry.pricing)
            prompt = known if whole > self.reserved.reserved else prompt
        return _usage(
            prompt, produced, 0 if first is None else min(first.cached_tokens, prompt), self.images, estimated
        )

    def _whole_booking(self, completion: Completion) -> CompletionBooking:
        """Claim the right to record the completion. Raises what it was cut off by."""
        booking = self._booking(completion.usage)
        if self.given.store:
            now = self.runtime.clock.now()
            booking.keep = storing(self.given, completion, self.attribution, self.served, now)
        self.whole = True
        if self.span is not None:
            self.span.record()
        if not self._claim(booking):
            raise self.cut_by or StoreClosed("this platform was closed while the request ran")
        return booking

    def remainder(self) -> CompletionBooking | None:
        """Return what records what was produced so far, and releases what was reserved."""
        if any(assembler.produced for assembler in self.assemblers):
            return self._booking(self._usage())
        if self.reserved is None:
            return None
        return CompletionBooking(self.runtime, self.id, None, self.reserved, self._booked)

    def _booking(self, usage: Usage) -> CompletionBooking:
        assert self.plan is not None
        entry = self.plan.ledger_entry(self.id, self.attribution, usage, self.runtime.clock.now())
        return CompletionBooking(self.runtime, self.id, entry, self.reserved, self._booked)

    def _booked(self, entry: LedgerEntry) -> None:
        """Report what is in the ledger now."""
        self.entry = entry
        if self.client is not None:
            self.client.booked = entry
        if self.runtime.cache.meters is not None or self.runtime.observer is not None:
            report_booked(self, entry)

    def _claim(self, booking: CompletionBooking) -> bool:
        """Claim the right to record this request. Returns False where who has cut it off does so."""
        cache = self.runtime.cache
        cache.bookings[self.id] = booking
        if cache.running.pop(self.id, None) is None:
            del cache.bookings[self.id]
            return False
        if self.reserved is not None:
            cache.presence.release(self.id)
        return True

    def cut(self, error: Exception) -> None:
        """End with this error at the next delta."""
        self.cut_by = self.failure = error
        for assembler in self.assemblers:
            assembler.cut = True
        if self.stream is not None:
            self.stream.stop()

    def _write(self, booking: CompletionBooking) -> Flow[None]:
        """Commit a booking. A caller who leaves meanwhile does so after the commit."""
        store = self.runtime.store
        step = of_entity(booking.step, self.attribution.entity) if store.blocking else booking.step
        effect = RecordUsage(store, step, on_committed=booking.on_committed)
        try:
            yield effect
        except CallerDisconnected:
            yield effect
            raise


def _failed(error: Exception) -> BackendError:
    return BackendError(f"the backend failed with {type(error).__name__}")
