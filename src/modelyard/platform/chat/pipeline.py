"""One chat completion: resolve, check, reserve, stream, assemble, record. Written once, as a flow, for every caller."""

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import cast

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Choice, Completion, CompletionRequest, Delta, StoredCompletion, ToolMode, Usage
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.usage import Admission, LedgerEntry, most
from modelyard.errors import BackendError, ModelyardError, StoreClosed
from modelyard.flow import Call, CallerDisconnected, Emit, Flow
from modelyard.formats import converter
from modelyard.platform.chat.assembly import UNINTERRUPTED, ResponseAssembler, assemblers_of, check_length
from modelyard.platform.chat.backend_stream import BackendStream, Close, GiveWay, Open, Pull, close_deltas
from modelyard.platform.chat.capability_checks import (
    check_supported,
    check_tool_choice,
    images,
    resolve_max_tokens,
    with_details,
)
from modelyard.platform.chat.measured import Asking, MeasuredCompletion
from modelyard.platform.chat.plan import CompletionPlan, known_plan, make_plan
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.admission import reserve
from modelyard.platform.usage.booking import CompletionBooking, RecordUsage, of_entity
from modelyard.protocols import Backend, Deltas, ServedModel


@attrs.frozen
class StreamStarted:
    """The first item of a stream: nothing can be refused any more. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    entry: CatalogueEntry


@attrs.frozen
class CompletionResult:
    """What a `CompletionPipeline` returns: the completion, and the catalogue entry that priced it."""

    completion: Completion
    entry: CatalogueEntry


class CompletionPipeline(MeasuredCompletion):
    """Answers one request and records its usage on `attribution`.

    A streamed request emits its `StreamStarted`, its deltas, and its `Completion` when its usage is recorded. What can
    fail before the first token fails before the `StreamStarted`. `details` asks for log-probabilities and token ids
    where the backend has them. A caller who leaves meanwhile pays for what was produced.

    What does not wait, as a store or backend declares, is done in place: yielding it to the driver would cost more.
    """

    plan: CompletionPlan
    served: ServedModel

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        request: CompletionRequest,
        attribution: Attribution,
        details: bool = False,
        asking: Asking | None = None,
    ) -> None:
        self.runtime: Runtime = runtime
        self.asking: Asking | None = asking
        self.began: float = runtime.clock.monotonic()
        self.principal: Principal = principal
        self.given: CompletionRequest = request
        self.attribution: Attribution = attribution
        self.request: CompletionRequest = request
        self.details: bool = details
        self.id: str = runtime.ids()
        self.created: int = int(runtime.clock.now().timestamp())
        self.reserved: Admission | None = None
        self.assemblers: list[ResponseAssembler] = []
        self.choices_begun: int = 0
        self.started: bool = False
        self.stream: BackendStream | None = None
        self.cut_by: Exception | None = None

    def flow(self) -> Flow[CompletionResult]:
        """Answer the request.

        Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
        `BackendError`, `StoreError`.
        """
        if self.runtime.cache.tracing is not None:
            self.span = self.runtime.cache.tracing.begin(self)
        try:
            return (yield from self._answer())
        except CallerDisconnected:
            raise
        except Exception as error:
            self._report(error, self.given.model)
            raise
        finally:
            if self.runtime.cache.running.pop(self.id, None) is not None:
                self._leave_to_others()
            if self.span is not None:
                self.span.end()

    def _answer(self) -> Flow[CompletionResult]:
        runtime = self.runtime
        asked = runtime, self.principal, self.attribution, self.given.model
        plan = known_plan(*asked)
        if plan is None and runtime.store.blocking:
            plan = yield Call(partial(make_plan, *asked), threads=runtime.threads.store.of(self.principal.entity))
        self.plan = plan = plan or make_plan(*asked)
        self.served = plan.served if self.span is None else self.span.traced(plan.served)
        if plan.counts_in_thread:
            yield Call(self._prepare, threads=plan.served.threads)
        else:
            self._prepare()
        runtime.cache.begin(self.id, self)
        if plan.limited:
            self.reserved = yield from self._reserve()
        try:
            read = self._read if plan.waits else self._read_in_place
            for assembler in self.assemblers:
                yield from read(assembler)
            check_length(self.assemblers)
            completion = self._completion()
        except Exception as failure:
            self.failure = None if isinstance(failure, CallerDisconnected) else failure
            yield from self._record_what_was_produced()
            raise
        yield from self._record_usage(completion.usage, completion)
        if self.request.streamed:
            yield Emit(completion)
        return CompletionResult(completion, self.served.entry)

    def _leave_to_others(self) -> None:
        """Leave it to the next beat to record what an interrupt kept from being recorded."""
        if (rest := self.remainder()) is not None:
            self.runtime.cache.bookings[self.id] = rest
        if self.reserved is not None:
            self.runtime.cache.presence.release(self.id)

    # ---- before the backend answers

    def _prepare(self) -> None:
        """Make the request that the backend gets: checked against its capabilities, with a token limit and a seed."""
        entry, backend = self.served.entry, self.plan.backend
        capabilities = backend.capabilities(self.served.base_model)
        request = with_details(self.given, capabilities) if self.details else self.given
        if request.tool_choice.mode is ToolMode.REQUIRED:
            check_tool_choice(request)
        check_supported(request, entry, capabilities)
        self.prompt_tokens: int | None = backend.prompt_tokens(request, self.served)
        self.images: int = images(request)
        max_tokens = resolve_max_tokens(entry, self.prompt_tokens, request.max_tokens)
        seed = request.sampling.seed
        if seed is None:
            seed = int.from_bytes(self.runtime.randomness(8), "big", signed=True)
        self.request = request.asking(request.messages, request.sampling.seeded(seed), max_tokens)
        self.assemblers = assemblers_of(self.request, capabilities.choices)

    def _reserve(self) -> Flow[Admission | None]:
        assert self.request.max_tokens is not None
        longest, shortest = self._cost_with(self.request.max_tokens), partial(self._cost_with, 1)
        now, entity = self.runtime.clock.now(), self.attribution.entity
        admission = Admission(self.id, self.principal.key_id, entity, (), longest, now)
        return reserve(self.runtime, admission, self.principal.limits, shortest)

    def _cost_with(self, tokens: int) -> Decimal:
        """Return the most that the request can cost with answers of so many tokens."""
        entry = self.served.entry
        prompt = entry.context_length if self.prompt_tokens is None else self.prompt_tokens
        return most(Usage(prompt, tokens * self.request.n, images=self.images), entry.pricing)

    # ---- while it answers

    def _read(self, assembler: ResponseAssembler) -> Flow[None]:
        """Read the answer of a backend that may wait to one request of it."""
        stream, more = (yield self._opening(assembler)), True
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
                    deltas = deltas or iter(cast(Backend, self.plan.backend).stream(assembler.request, self.served))
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

    def _opening(self, assembler: ResponseAssembler) -> Open:
        return Open(self.plan.backend, assembler.request, self.served)

    def _emit(self, assembler: ResponseAssembler) -> Flow[None]:
        """Emit the deltas that may be shown, all at once; the choices begin in the order of their indexes."""
        if not self.started:
            self.started = True
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
        choices: list[Choice] = []
        for assembler in self.assemblers:
            choices += assembler.fold()
        return Completion(self.id, self.created, self.given.model, tuple(choices), self._usage())

    def _usage(self) -> Usage:
        """Return the usage as the backend reports it, else as it was counted; it never costs more than was admitted."""
        first, known = self.assemblers[0].report, self.prompt_tokens
        estimated = first is None and known is None
        prompt = first.prompt_tokens if first is not None else known
        if prompt is None:
            prompt = sum(len(message.text) for message in self.request.messages) // 4 + 1  # characters a token
        prompt, produced = min(prompt, self.served.entry.context_length), 0
        for assembler in self.assemblers:
            produced += assembler.completion_tokens()
            estimated = estimated or (assembler.report is not None and assembler.report.estimated)
        if known is not None and prompt > known and self.reserved is not None:
            whole = most(Usage(prompt, produced, images=self.images), self.served.entry.pricing)
            prompt = known if whole > self.reserved.reserved else prompt
        return Usage(prompt, produced, 0 if first is None else min(first.cached_tokens, prompt), self.images, estimated)

    def _record_usage(self, usage: Usage, completion: Completion) -> Flow[None]:
        stored = self._stored(completion) if self.given.store else None
        booking = CompletionBooking(
            self.runtime, self.id, self._ledger_entry(usage), self.reserved, self._booked, stored
        )
        self.whole = True
        if self.span is not None:
            self.span.record()
        if not self._claim(booking):
            raise self.cut_by or StoreClosed("this platform was closed while the request ran")
        if self.runtime.store.blocking:
            yield from self._write(booking)
        else:
            self._write_in_place(booking)

    def _record_what_was_produced(self) -> Flow[None]:
        if (rest := self.remainder()) is not None and self._claim(rest):
            yield from self._write(rest)

    def remainder(self) -> CompletionBooking | None:
        """Return what records what was produced so far, and releases what was reserved."""
        produced = any(assembler.produced for assembler in self.assemblers)
        if not produced and self.reserved is None:
            return None
        entry = self._ledger_entry(self._usage()) if produced else None
        return CompletionBooking(self.runtime, self.id, entry, self.reserved, self._booked)

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

    def _write_in_place(self, booking: CompletionBooking) -> None:
        self.runtime.store.transact(booking.step, durable=False)
        booking.on_committed()

    def _ledger_entry(self, usage: Usage) -> LedgerEntry:
        return self.plan.ledger_entry(self.id, self.attribution, usage, self.runtime.clock.now())

    def _stored(self, completion: Completion) -> StoredCompletion:
        return StoredCompletion(
            id=self.id,
            entity=self.attribution.entity,
            project=self.attribution.project,
            model=self.given.model,
            created_at=self.runtime.clock.now(),
            request=converter.unstructure_filled(self.given),
            answer=converter.unstructure_filled(completion),
            metadata=self.given.metadata,
            price=self.served.entry.pricing.texts,
            checkpoint_id=None if self.served.checkpoint is None else self.served.checkpoint.id,
        )


def _failed(error: Exception) -> BackendError:
    return BackendError(f"the backend failed with {type(error).__name__}")
