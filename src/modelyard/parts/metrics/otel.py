"""Traces and metrics for OpenTelemetry, by its semantic conventions for HTTP and for generative AI.

    from modelyard.parts.metrics.otel import instrument
    instrument(platform)

A request's span continues the trace of its `traceparent`. Below it is the span of the completion, and below that the
span in which its usage is recorded. Servers that `UpstreamBackend` asks continue the trace. No prompt and no answer is
in any span. Needs the extra `otel`; the host sets up what exports the spans, as OpenTelemetry describes.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.errors import MissingExtra, ModelyardError
from modelyard.platform.chat.booked_request import BookedRequest
from modelyard.platform.platform import Platform
from modelyard.protocols import ServedModel
from modelyard.version import __version__

try:
    from opentelemetry import metrics, trace
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ImportError as error:
    raise MissingExtra("opentelemetry-api", "otel") from error

__all__ = ["OpenTelemetry", "instrument"]

PROVIDER = "modelyard"
"""The value of `gen_ai.provider.name`."""


def instrument(platform: Platform, tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Trace and measure all requests and completions of a platform from now on.

    By default, the providers of the process are used. Only the host may call this.
    """
    platform.trace_with(OpenTelemetry(tracer_provider, meter_provider))


class OpenTelemetry:
    """The spans of requests and completions, and the histograms of the conventions. Thread-safe."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        self.tracer: trace.Tracer = trace.get_tracer("modelyard", __version__, tracer_provider)
        meter = metrics.get_meter("modelyard", __version__, meter_provider)
        self.http: metrics.Histogram = meter.create_histogram(
            "http.server.request.duration", "s", "How long HTTP requests took."
        )
        self.duration: metrics.Histogram = meter.create_histogram(
            "gen_ai.server.request.duration", "s", "How long completions took."
        )
        self.first: metrics.Histogram = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "Time to first token of streams."
        )
        self.tokens: metrics.Histogram = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens used.")

    def request_began(self, method: str, headers: Mapping[str, str]) -> Any:
        """Return the span of an HTTP request, which continues the trace that its headers name."""
        attributes = {"http.request.method": method}
        return self.tracer.start_span(method, extract(headers), SpanKind.SERVER, attributes)

    def request_ended(self, span: Any, method: str, route: str, status: int, seconds: float) -> None:
        """End the span of an HTTP request."""
        if route:
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()
        known: dict[str, Any] = {
            "http.request.method": method if route else "_OTHER",
            "http.response.status_code": status,
        }
        self.http.record(seconds, {**known, "http.route": route} if route else known)

    def begin(self, completion: BookedRequest) -> "TracedCompletion":
        """Return the span of a completion, below the span of its HTTP request."""
        given, client = completion.given, completion.client
        parent = None if client is None or client.span is None else trace.set_span_in_context(client.span)
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": completion.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": given.model,
            "gen_ai.request.stream": given.streamed,
        }
        if given.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = given.max_tokens
        span = self.tracer.start_span(f"{completion.operation} {given.model}", parent, SpanKind.CLIENT, attributes)
        return TracedCompletion(self, completion, span)


@attrs.define(eq=False)
class TracedCompletion:
    """The span of one completion, and the span in which its usage is recorded."""

    telemetry: OpenTelemetry
    completion: BookedRequest
    span: Any
    recording: Any = None

    def traced(self, served: ServedModel) -> ServedModel:
        """Return the model with the headers by which another server continues the trace."""
        headers: dict[str, str] = {}
        inject(headers, trace.set_span_in_context(self.span))
        return attrs.evolve(served, headers=headers)

    def record(self) -> None:
        if self.recording is not None:
            return
        inside = trace.set_span_in_context(self.span)
        self.recording = self.telemetry.tracer.start_span("record usage", inside, SpanKind.INTERNAL)

    def end(self) -> None:
        """End both spans, with the outcome of the completion."""
        if self.recording is not None:
            self.recording.end()
        completion, failure = self.completion, self.completion.failure
        if completion.entry is not None:
            self.span.set_attributes(self._used())
        if failure is not None:
            self.span.set_attribute("error.type", _error_type(failure))
            self.span.set_status(Status(StatusCode.ERROR))
        self._measure()
        self.span.end()

    def _used(self) -> dict[str, Any]:
        entry = self.completion.entry
        assert entry is not None
        return {
            "gen_ai.response.id": entry.id,
            "gen_ai.response.model": entry.model,
            "gen_ai.usage.input_tokens": entry.prompt_tokens,
            "gen_ai.usage.output_tokens": entry.completion_tokens,
            "modelyard.cost_usd": float(entry.cost),
        }

    def _measure(self) -> None:
        """Add to the histograms. Names of unknown models are left out: there is no end of them."""
        completion, telemetry = self.completion, self.telemetry
        plan = completion.plan
        known: dict[str, Any] = {"gen_ai.operation.name": completion.operation, "gen_ai.provider.name": PROVIDER}
        if plan is not None:
            known["gen_ai.request.model"] = plan.booked_as
        ended = known if completion.failure is None else {**known, "error.type": _error_type(completion.failure)}
        telemetry.duration.record(completion.runtime.clock.monotonic() - completion.began, ended)
        if completion.first_token is not None:
            telemetry.first.record(completion.first_token, known)
        if completion.entry is not None:
            telemetry.tokens.record(completion.entry.prompt_tokens, {**known, "gen_ai.token.type": "input"})
            telemetry.tokens.record(completion.entry.completion_tokens, {**known, "gen_ai.token.type": "output"})


def _error_type(failure: Exception) -> str:
    return failure.code if isinstance(failure, ModelyardError) else type(failure).__name__
