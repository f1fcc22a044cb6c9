"""What is measured of a completion: for the observer, the platform's meters, and the HTTP request that asked for it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from modelyard.domain import events
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.identity import Attribution, Principal, RateStand
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import ModelyardError
from modelyard.platform.chat.plan import CompletionPlan
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ServedModel


class RequestInProgress(Protocol):
    """The request of a client that a completion answers: its id, its key's rate, and then what was booked for it."""

    id: str
    booked: LedgerEntry | None
    span: Any

    def see_rate(self, stand: RateStand) -> None:
        """Note what is left of the rate of the key."""
        ...


class CompletionSpan(Protocol):
    """The span of a completion in a trace."""

    def traced(self, served: ServedModel) -> ServedModel:
        """Return the model with the headers by which another server continues the trace."""
        ...

    def record(self) -> None:
        """Begin the span of recording the usage."""
        ...

    def end(self) -> None:
        """End both, with what the completion has become."""
        ...


class Tracing(Protocol):
    """Traces requests and completions (`modelyard.otel`)."""

    def request_began(self, method: str, headers: Mapping[str, str]) -> Any:
        """Return the span of an HTTP request, which continues the trace that its headers name."""
        ...

    def request_ended(self, span: Any, method: str, route: str, status: int, seconds: float) -> None:
        """End the span of an HTTP request."""
        ...

    def begin(self, completion: "MeasuredCompletion") -> CompletionSpan:
        """Return the span of a completion, below that of the request that asked for it."""
        ...


class MeasuredCompletion(Protocol):
    """What is measured of a completion: when it began, when its caller got the first token, how it ended.

    `plan` is None until the model was found. `entry` is what was booked, and `whole` is whether that is a whole answer.
    """

    operation: ClassVar[str]
    runtime: Runtime
    principal: Principal
    attribution: Attribution
    plan: CompletionPlan | None
    client: RequestInProgress | None
    given: CompletionRequest
    entry: LedgerEntry | None
    began: float
    first_token: float | None
    whole: bool
    failure: Exception | None


def report_booked(completion: MeasuredCompletion, entry: LedgerEntry) -> None:
    """Report a completion, or the part of it that was made, now that it is in the ledger."""
    runtime, client, meters = completion.runtime, completion.client, completion.runtime.cache.meters
    seconds = runtime.clock.monotonic() - completion.began
    if meters is not None:
        spent = float(entry.cost) if entry.cost else 0.0
        whole = seconds if completion.whole else -1.0
        meters.booked(entry.model, entry.prompt_tokens, entry.completion_tokens, spent, whole, completion.first_token)
        if not completion.whole and completion.failure is None:
            meters.ended(entry.model, events.CALLER_LEFT, None)
    if runtime.observer is not None:
        runtime.observe(
            events.CompletionBooked(
                entry.id,
                entry.entity,
                entry.project,
                entry.model,
                entry.prompt_tokens,
                entry.completion_tokens,
                entry.cost,
                entry.key_id,
                "" if client is None else client.id,
                seconds,
                completion.first_token,
                _status(completion),
            )
        )


def report_failed(completion: MeasuredCompletion, error: Exception) -> None:
    """Report a completion that failed."""
    runtime, plan = completion.runtime, completion.plan
    completion.failure = error
    code, status = getattr(error, "code", ModelyardError.code), _status(completion)
    if runtime.cache.meters is not None:  # without a plan, any word may have been sent as a model's name
        runtime.cache.meters.ended("" if plan is None else plan.booked_as, status, code)
    if runtime.observer is not None:
        of = completion.attribution.entity, completion.attribution.project, completion.given.model, code
        asked = completion.principal.key_id, "" if completion.client is None else completion.client.id
        seconds = runtime.clock.monotonic() - completion.began
        runtime.observe(events.CompletionFailed(*of, *asked, seconds, completion.first_token, status))


def _status(completion: MeasuredCompletion) -> int:
    failure = completion.failure
    if failure is None:
        return 200 if completion.whole else events.CALLER_LEFT
    return failure.status if isinstance(failure, ModelyardError) else ModelyardError.status
