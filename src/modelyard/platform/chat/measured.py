"""What is measured of a completion: for the observer, the platform's meters, and the HTTP request that asked for it."""

from collections.abc import Mapping
from typing import Any, Protocol

from modelyard.domain import events
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import ModelyardError
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ServedModel


class Asking(Protocol):
    """The request of a client that a completion answers: its id, and then what was booked for it."""

    id: str
    booked: LedgerEntry | None
    span: Any


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


class MeasuredCompletion:
    """A completion on its way: when it began, when its caller got the first token, how it ended."""

    runtime: Runtime
    principal: Principal
    attribution: Attribution
    plan: Any
    asking: Asking | None
    given: CompletionRequest
    span: CompletionSpan | None = None
    entry: LedgerEntry | None = None
    began: float
    first_token: float | None = None
    whole: bool = False
    failure: Exception | None = None

    def _booked(self, entry: LedgerEntry) -> None:
        """Report a completion, or the part of it that was made, now that it is in the ledger."""
        runtime, asking, meters = self.runtime, self.asking, self.runtime.cache.meters
        self.entry = entry
        if asking is not None:
            asking.booked = entry
        if meters is None and runtime.observer is None:
            return
        seconds = runtime.clock.monotonic() - self.began
        if meters is not None:
            meters.booked(
                entry.model,
                entry.prompt_tokens,
                entry.completion_tokens,
                float(entry.cost) if entry.cost else 0.0,
                seconds if self.whole else -1.0,
                self.first_token,
            )
            if not self.whole and self.failure is None:
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
                    "" if asking is None else asking.id,
                    seconds,
                    self.first_token,
                    self._status(),
                )
            )

    def _status(self) -> int:
        if self.failure is None:
            return 200 if self.whole else events.CALLER_LEFT
        return self.failure.status if isinstance(self.failure, ModelyardError) else ModelyardError.status

    def _report(self, error: Exception, model: str) -> None:
        """Report a completion that failed; `model` is as the caller named it."""
        runtime, self.failure = self.runtime, error
        code, status = getattr(error, "code", ModelyardError.code), self._status()
        if runtime.cache.meters is not None:
            plan = getattr(self, "plan", None)  # without one, any word may have been sent as a model's name
            runtime.cache.meters.ended("" if plan is None else plan.booked_as, status, code)
        if runtime.observer is not None:
            of = self.attribution.entity, self.attribution.project, model, code
            asked = self.principal.key_id, "" if self.asking is None else self.asking.id
            seconds = runtime.clock.monotonic() - self.began
            runtime.observe(events.CompletionFailed(*of, *asked, seconds, self.first_token, status))
