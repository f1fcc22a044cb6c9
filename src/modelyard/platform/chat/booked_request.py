"""What requests of every kind have in common: they are measured, may reserve a budget, and are booked once."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar, Protocol

import attrs

from modelyard.domain import events
from modelyard.domain.completion import CompletionRequest, Usage
from modelyard.domain.frozen_fast import maker
from modelyard.domain.identity import Attribution, Principal, RateStand
from modelyard.domain.usage import ENTITY, Admission, LedgerEntry, cost
from modelyard.errors import ModelyardError, StoreClosed
from modelyard.flow import CallerDisconnected, Flow
from modelyard.part import Capture
from modelyard.platform.chat.backend_stream import BackendStream
from modelyard.platform.chat.completion_plan import CompletionPlan
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage import presence
from modelyard.platform.usage.booking import CompletionBooking, RecordUsage
from modelyard.protocols import DomainStep, ServedModel, Tx

_entry, _domain_step = maker(LedgerEntry), maker(DomainStep)

BOOKED: ContextVar[list[LedgerEntry] | None] = ContextVar("what is booked within a function", default=None)


class RequestInProgress(Protocol):
    """The request of a client that a completion answers: its id, when it began by the monotonic clock, its key's rate,
    the name it `asked` for where a part serves that, and then what was booked for it."""

    id: str
    began: float
    asked: str
    booked: LedgerEntry | None
    span: Any

    def see_rate(self, stand: RateStand) -> None:
        """Note what is left of the rate of the key."""


class CompletionSpan(Protocol):
    """The span of a completion in a trace."""

    def traced(self, served: ServedModel) -> ServedModel:
        """Return the model with the headers by which another server continues the trace."""

    def record(self) -> None:
        """Begin the span of recording the usage."""

    def end(self) -> None:
        """End both, with what the completion has become."""


class Tracing(Protocol):
    """Traces requests and completions (`modelyard.otel`)."""

    def request_began(self, method: str, headers: Mapping[str, str]) -> Any:
        """Return the span of an HTTP request, which continues the trace that its headers name."""

    def request_ended(self, span: Any, method: str, route: str, status: int, seconds: float) -> None:
        """End the span of an HTTP request."""

    def begin(self, completion: "BookedRequest") -> CompletionSpan:
        """Return the span of a completion, below that of the request that asked for it."""


class BookedRequest:
    """A request to a model: what is measured of it, and how its usage is recorded, once, however it ends.

    `plan` is None until the model was found; `captures` keeps the answers. `began` and `first_token` are seconds of the
    monotonic clock, and `answered_at` is when an answer came that was whole at once. `entry` is what was booked, and
    `whole` is whether that is a whole answer. `failure` is what it ended with. `sent` is whether another server has the
    request now.
    """

    operation: ClassVar[str]
    plan: CompletionPlan | None = None
    captures: Capture | None = None
    served: ServedModel
    stream: BackendStream | None = None
    entry: LedgerEntry | None = None
    first_token: float | None = None
    answered_at: datetime | None = None
    whole: bool = False
    failure: Exception | None = None
    sent: bool = False

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        given: CompletionRequest,
        attribution: Attribution,
        client: RequestInProgress | None = None,
    ) -> None:
        self.runtime: Runtime = runtime
        self.client: RequestInProgress | None = client
        self.began: float = runtime.clock.monotonic()
        self.arrived: float = self.began if client is None else client.began
        self.principal: Principal = principal
        self.given: CompletionRequest = given
        self.attribution: Attribution = attribution
        self.id: str = runtime.ids()
        self.reserved: Admission | None = None
        self.cut_by: Exception | None = None
        self.span: CompletionSpan | None = None

    @property
    def asked(self) -> tuple[Runtime, Principal, Attribution, str]:
        """What a plan is found by."""
        return self.runtime, self.principal, self.attribution, self.given.model

    def begin_span(self) -> None:
        """Begin the span of the request, where the host traces."""
        if self.runtime.cache.tracing is not None:
            self.span = self.runtime.cache.tracing.begin(self)

    def follow(self) -> None:
        """Note from here on whether another server has the request."""
        self.served = attrs.evolve(self.served, on_sent=self._note_sent)

    def _note_sent(self, sent: bool) -> None:
        self.sent = sent

    def remainder(self) -> CompletionBooking | None:
        raise NotImplementedError

    def cut(self, error: Exception) -> None:
        """End with this error as soon as the backend yields."""
        self.cut_by = self.failure = error
        if self.stream is not None:
            self.stream.stop()

    def _booking(self, usage: Usage | None) -> CompletionBooking:
        """Return what records this usage, None for nothing to record, and releases what was reserved."""
        plan, entry = self.plan, None
        if usage is not None and plan is not None:
            model, attribution = plan.served, self.attribution
            entry = _entry(
                self.id,
                attribution.entity,
                attribution.project,
                plan.principal.key_id,
                plan.booked_as,
                model.base_model,
                None if model.checkpoint is None else model.checkpoint.step,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                usage.images,
                usage.estimated,
                cost(usage, model.entry.pricing),
                self.answered_at or self.runtime.clock.now(),
            )
        return CompletionBooking(self.runtime, self.id, entry, self.reserved, self._booked)

    def _booked(self, entry: LedgerEntry) -> None:
        """Report what is in the ledger now."""
        self.entry = entry
        if (noted := BOOKED.get()) is not None:
            noted.append(entry)
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
            presence.presence_of(self.runtime).release(self.id)
        return True

    def _claim_whole(self, booking: CompletionBooking) -> CompletionBooking:
        """Claim the right to record the whole answer. Raises what it was cut off by."""
        self.whole = True
        if self.span is not None:
            self.span.record()
        if not self._claim(booking):
            raise self.cut_by or StoreClosed("this platform was closed while the request ran")
        return booking

    def _write(self, booking: CompletionBooking) -> Flow[None]:
        """Commit a booking. A caller who leaves meanwhile does so after the commit."""
        effect = RecordUsage(self.runtime.store, self.step_of(booking), booking.durable, booking=booking)
        try:
            yield effect
        except CallerDisconnected:
            yield effect
            raise

    def step_of(self, booking: CompletionBooking) -> Callable[[Tx], None]:
        """Return the step that records a booking, which says that it stays within the entity."""
        if self.runtime.store.blocking:
            return _domain_step(booking.step, [(ENTITY, self.attribution.entity)])
        return booking.step

    def _leave(self) -> None:
        """End the request; what an interrupt kept from being recorded is left to the next beat."""
        cache = self.runtime.cache
        if cache.running.pop(self.id, None) is not None:
            if (rest := self.remainder()) is not None:
                cache.bookings[self.id] = rest
            if self.reserved is not None:
                presence.presence_of(self.runtime).release(self.id)
        if self.span is not None:
            self.span.end()


def report_booked(completion: BookedRequest, entry: LedgerEntry) -> None:
    """Report a completion, or the part of it that was made, now that it is in the ledger."""
    runtime, client, meters = completion.runtime, completion.client, completion.runtime.cache.meters
    seconds = runtime.clock.monotonic() - completion.began
    if meters is not None:
        meters.booked(entry, seconds if completion.whole else -1.0, completion.first_token)
        if not completion.whole and completion.failure is None:
            meters.ended(entry.model, events.CALLER_LEFT, None)
    if runtime.observer is not None:
        named, sent = None if completion.plan is None else completion.plan.named, "" if client is None else client.id
        of = entry.id, entry.entity, entry.project, entry.model, entry.prompt_tokens, entry.completion_tokens
        how = seconds, completion.first_token, _status(completion), "" if named is None else named.name
        runtime.observe(events.CompletionBooked(*of, entry.cost, entry.key_id, sent, *how))


def report_failed(completion: BookedRequest, error: Exception) -> None:
    """Report a completion that failed."""
    runtime, plan = completion.runtime, completion.plan
    completion.failure = error
    code, status = getattr(error, "code", ModelyardError.code), _status(completion)
    runtime.cache.note_failure(completion.attribution.entity, completion.principal.key_id, code)
    if runtime.cache.meters is not None:  # without a plan, any word may have been sent as a model's name
        runtime.cache.meters.ended("" if plan is None else plan.booked_as, status, code)
    if runtime.observer is not None:
        of = completion.attribution.entity, completion.attribution.project, completion.given.model, code
        asked = completion.principal.key_id, "" if completion.client is None else completion.client.id
        seconds = runtime.clock.monotonic() - completion.began
        runtime.observe(events.CompletionFailed(*of, *asked, seconds, completion.first_token, status))


def _status(completion: BookedRequest) -> int:
    failure = completion.failure
    if failure is None:
        return 200 if completion.whole else events.CALLER_LEFT
    return failure.status if isinstance(failure, ModelyardError) else ModelyardError.status


def report_unread(
    runtime: Runtime, principal: Principal, wrong: ModelyardError, model: object, *whose: str | None
) -> None:
    """Report what was asked in Python with parameters that cannot be read."""
    entity, project = whose
    of = entity or principal.entity, project or "", str(model)
    runtime.observe(events.CompletionFailed(*of, wrong.code, principal.key_id, status=wrong.status))
