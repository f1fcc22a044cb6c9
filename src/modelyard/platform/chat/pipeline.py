"""One chat completion: resolve, check, reserve, stream, assemble, record. Written once, as a flow, for every caller."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from struct import Struct
from typing import Any, ClassVar

from modelyard.clock import unix_seconds
from modelyard.domain.completion import Choice, Completion, CompletionRequest, Delta, Message, Role, ToolMode, Usage
from modelyard.domain.frozen import maker
from modelyard.domain.usage import Admission
from modelyard.errors import ModelyardError, StoreClosed
from modelyard.flow import Call, CallerDisconnected, Emit, Flow, Transact
from modelyard.platform.chat import capability_checks as checks
from modelyard.platform.chat.assembly import (
    UNINTERRUPTED,
    ResponseAssembler,
    assemblers_of,
    check_length,
)
from modelyard.platform.chat.backend_stream import (
    Close,
    CompletionResult,
    GiveWay,
    Open,
    Pull,
    StreamStarted,
    backend_failed,
    close_deltas,
)
from modelyard.platform.chat.booked_request import BookedRequest, report_failed
from modelyard.platform.chat.plan import known_plan, make_plan, storing
from modelyard.platform.chat.whole_answer import failing, is_whole
from modelyard.platform.usage.admission import reserve
from modelyard.platform.usage.booking import CompletionBooking
from modelyard.protocols import Deltas

_completion, _choice, _message = maker(Completion), maker(Choice), maker(Message)
_usage, _result, _admission = maker(Usage), maker(CompletionResult), maker(Admission)
_NOTHING = ()  # no deltas
_SEED = Struct(">q")
_ASSISTANT, _REQUIRED = Role.ASSISTANT, ToolMode.REQUIRED  # a constant is read in a twentieth of the time


class CompletionPipeline(BookedRequest):
    """Answers one request and records its usage on `attribution`.

    A streamed request emits its `StreamStarted`, its deltas, and its `Completion` when its usage is recorded. What can
    fail before the first token fails before the `StreamStarted`. A caller who leaves meanwhile pays for what was
    produced.

    What does not wait, as a store or backend declares, is done in place: yielding it to the driver would cost more.
    `reserves_first` is for a driver who stores usage in transactions of its own: what an answer may cost is then always
    reserved before the backend is asked.
    """

    operation: ClassVar[str] = "chat"
    backend: Any
    request: CompletionRequest
    details: bool = False
    created: int
    prompt_tokens: int | None = None
    max_tokens: int
    images: int = 0
    makes_choices: bool = False
    assemblers: Sequence[ResponseAssembler] = ()
    first: Any = None
    rest: Iterator[Deltas] | None = None
    answered: bool = False
    longest: Decimal
    choices_begun: int = 0
    reserves_first: bool = False

    def flow(self, details: bool = False) -> Flow[CompletionResult]:
        """Answer the request, with log-probabilities and token ids for `details`, where the backend has them.

        Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
        `BackendError`, `StoreError`.
        """
        runtime, given = self.runtime, self.given
        cache, store = runtime.cache, runtime.store
        self.details = details
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
            if plan.budgets and not self.reserves_first and self._affordable():
                completion = yield from self._answer_first()
                if completion is not None:
                    return _result(completion, self.served.entry)
            if plan.limited:
                self.reserved = yield from self._reserve()
            try:
                completion = None if plan.waits else self._whole()
                self.answered = completion is not None
                if completion is None:
                    self.created = unix_seconds(runtime.clock.now())
                    self.assemblers = assemblers_of(self.request, self.makes_choices)
                    for assembler in self.assemblers:
                        yield from self._read(assembler) if plan.waits else self._read_in_place(assembler)
                    completion = self._completion()
            except Exception as failure:
                self.failure = None if isinstance(failure, CallerDisconnected) else failure
                if (rest := self.remainder()) is not None and self._claim(rest):
                    yield from self._write(rest)
                raise
            booking = self._claim_whole(self._whole_booking(completion))
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
            self._close_begun()
            report_failed(self, error)
            raise
        finally:
            self._leave()

    # ---- before the backend answers

    def _prepare(self) -> None:
        """Make the request that the backend gets: checked against its capabilities, with a token limit and a seed."""
        entry, backend, request = self.served.entry, self.backend, self.given
        capabilities = backend.capabilities(self.served.base_model)
        if self.details:
            request = checks.with_details(request, capabilities)
        if request.tool_choice.mode is _REQUIRED:
            checks.check_tool_choice(request)
        self.images = checks.check_supported(request, entry, capabilities)
        self.prompt_tokens = backend.prompt_tokens(request, self.served)
        self.max_tokens = checks.resolve_max_tokens(entry, self.prompt_tokens, request)
        sampling = request.sampling
        if sampling.seed is None:
            (seed,) = _SEED.unpack(self.runtime.randomness(8))
            sampling = sampling.seeded(seed)
        self.request = request.asking(request.messages, sampling, self.max_tokens)
        self.makes_choices = capabilities.choices

    def _cost_with(self, tokens: int) -> Decimal:
        """Return what the request costs at most, with so many tokens in each answer."""
        assert self.plan is not None
        return self.plan.most(self.prompt_tokens, self.images, tokens * self.request.n)

    def _reserve(self) -> Flow[Admission | None]:
        key_id, entity, now = self.principal.key_id, self.attribution.entity, self.runtime.clock.now()
        admission = _admission(self.id, key_id, entity, (), self._cost_with(self.max_tokens), now)
        see = None if self.client is None else self.client.see_rate
        least = partial(self._cost_with, min(1, self.max_tokens))
        return reserve(self.runtime, admission, self.principal.limits, least, see)

    # ---- where it is answered before its budgets are asked

    def _affordable(self) -> bool:
        """Return whether the budgets had what the request may cost when this process last saw them."""
        assert self.plan is not None
        self.longest = longest = self._cost_with(self.max_tokens)
        seen = self.runtime.cache.budgets
        for id_ in self.plan.budgets:  # noqa: SIM110 - a generator would cost as much as the sums
            if id_ not in seen or longest > seen[id_].remaining:
                return False
        return True

    def _answer_first(self) -> Flow[Completion | None]:
        """Answer, then admit and record in one transaction. Returns None where that is not possible.

        The request goes on then as one that has reserved nothing: what was answered is neither seen nor paid.
        """
        completion, cache, store = self._whole(), self.runtime.cache, self.runtime.store
        if completion is None and self.cut_by is None:
            return None
        if completion is None or cache.running.pop(self.id, None) is None:
            raise self.cut_by or StoreClosed("this platform was closed while the request ran")
        booking = self._whole_booking(completion).after_answer(self.longest)
        if self.span is not None:
            self.span.record()
        if store.blocking:
            yield Transact(store, self._step(booking), durable=False)
        else:
            store.transact(booking.step, durable=False)
        if not booking.admitted:
            cache.begin(self.id, self)
            return None
        self.whole = True
        booking.report()
        return completion

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
                raise backend_failed(error) from error
            if assembler.shown:
                yield from self._emit(assembler)
        yield Close(stream)

    def _whole(self) -> Completion | None:
        """Return the completion where a backend that never waits gives all of a plain one at once.

        From what else it has begun to give, `_read_in_place` goes on.
        """
        request = self.request
        if request.n > 1 or request.streamed or request.stop or request.logprobs or self.prompt_tokens is None:
            return None
        if self.rest is None:
            if self.cut_by is not None:
                return None
            try:
                self.rest = rest = iter(self.backend.stream(request, self.served))
                self.first = next(rest, _NOTHING)
            except Exception as error:  # noqa: BLE001 - it is raised where the rest is read
                self.first, self.rest = _NOTHING, failing(error)
        delta = self.first
        if not is_whole(delta, self.max_tokens):
            return None
        if hasattr(self.rest, "close"):
            self._close_begun()
        choice = _choice(0, _message(_ASSISTANT, delta.text), delta.finish_reason)
        usage = _usage(self.prompt_tokens, delta.tokens, 0, self.images)
        self.answered_at = now = self.runtime.clock.now()
        return _completion(self.id, unix_seconds(now), self.given.model, (choice,), usage)

    def _read_in_place(self, assembler: ResponseAssembler) -> Flow[None]:
        """Read the answer of a backend that never waits, and give way to others now and then."""
        begun = self.rest
        source = None if begun is None else chain((self.first,), begun)
        deltas: Any = None
        more, taken = True, 0
        try:
            while more and not assembler.done:
                if self.cut_by is not None:
                    raise self.cut_by
                try:
                    if source is None:
                        source = deltas = iter(self.backend.stream(assembler.request, self.served))
                    more = any(map(assembler.take, source))
                except ModelyardError:
                    raise
                except Exception as error:
                    raise backend_failed(error) from error
                if assembler.shown:
                    taken += len(assembler.shown)
                    yield from self._emit(assembler)
                if taken + assembler.details >= UNINTERRUPTED:
                    taken = assembler.details = 0
                    yield GiveWay()
        finally:
            if begun is None:
                close_deltas(deltas)
            else:
                self._close_begun()

    def _close_begun(self) -> None:
        """Close what `_whole` has begun, once."""
        rest, self.rest = self.rest, iter(())
        close_deltas(rest)

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
        check_length(self.assemblers)
        choices = [choice for assembler in self.assemblers for choice in assembler.fold()]
        return _completion(self.id, self.created, self.given.model, tuple(choices), self._usage())

    def _usage(self) -> Usage:
        """Return the usage as the backend reports it, else as it was counted; it never costs more than was admitted."""
        first, known = self.assemblers[0].report, self.prompt_tokens
        estimated = first is None and known is None
        prompt = first.prompt_tokens if first is not None else known
        prompt = checks.estimated_prompt(self.request) if prompt is None else prompt
        prompt, produced, reasoning = min(prompt, self.served.entry.context_length), 0, 0
        for assembler in self.assemblers:
            produced += assembler.completion_tokens()
            reasoning += assembler.reasoning_tokens()
            estimated = estimated or (assembler.report is not None and assembler.report.estimated)
        if known is not None and prompt > known and self.reserved is not None and self.plan is not None:
            prompt = known if self.plan.most(prompt, self.images, produced) > self.reserved.reserved else prompt
        cached = 0 if first is None else min(first.cached_tokens, prompt)
        return _usage(prompt, produced, cached, self.images, estimated, reasoning)

    def _whole_booking(self, completion: Completion) -> CompletionBooking:
        """Return what records the completion."""
        booking = self._booking(completion.usage)
        if self.given.store:
            now = self.runtime.clock.now()
            booking.keep = storing(self.given, completion, self.attribution, self.served, now)
        return booking

    def remainder(self) -> CompletionBooking | None:
        """Return what records what was produced so far, and releases what was reserved."""
        if self.answered and not self.assemblers:
            self.assemblers = assemblers_of(self.request, self.makes_choices)
            self.assemblers[0].take(self.first)
        if any(assembler.produced for assembler in self.assemblers):
            return self._booking(self._usage())
        return None if self.reserved is None else self._booking(None)

    def cut(self, error: Exception) -> None:
        """End with this error at the next delta."""
        super().cut(error)
        for assembler in self.assemblers:
            assembler.cut = True
