"""Spans and metrics for OpenTelemetry: one trace from a request to the upstream server and the ledger."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from http_client import Client, client_of
from modelyard import EchoBackend, Pricing, UpstreamBackend, open_platform
from modelyard.asgi import asgi_app
from modelyard.backends import offer
from modelyard.errors import ModelNotFound
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.metrics.otel import instrument

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def instrument(self, platform: Any) -> None:
        instrument(platform, self.tracers, self.meters)

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    @property
    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        found = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found}


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.tracers.shutdown()
    seen.meters.shutdown()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, seen: Seen) -> Iterator[Client]:
    with open_platform(backend=EchoBackend()) as platform:
        seen.instrument(platform)
        yield client_of(platform, asynchronous=request.param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_its_completion_and_its_booking_are_one_trace(client: Client, seen: Seen, stream: bool) -> None:
    answer = client.chat("one two", stream=stream, max_tokens=9, headers=[("traceparent", PARENT)])
    assert answer.status == 200
    request, chat, record = (
        seen.spans[name] for name in ("POST /inference/v1/chat/completions", "chat echo", "record usage")
    )
    assert {f"{span.context.trace_id:032x}" for span in (request, chat, record)} == {TRACE}
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert (chat.parent.span_id, record.parent.span_id) == (request.context.span_id, chat.context.span_id)
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "http.route": "/inference/v1/chat/completions",
        "http.response.status_code": 200,
    }
    used = chat.attributes["gen_ai.usage.input_tokens"]
    assert used > 0
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "modelyard",
        "gen_ai.request.model": "echo",
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.id": chat.attributes["gen_ai.response.id"],
        "gen_ai.response.model": "echo",
        "gen_ai.usage.input_tokens": used,
        "gen_ai.usage.output_tokens": used,
        "modelyard.cost_usd": 0.0,
    }
    assert "one two" not in str([span.to_json() for span in seen.spans.values()])


def test_the_histograms_are_those_of_the_conventions(client: Client, seen: Seen) -> None:
    client.chat("one two", stream=True)
    client.chat("one two")
    points = seen.points
    (duration,) = points["gen_ai.server.request.duration"]
    assert (duration.count, duration.attributes["gen_ai.request.model"]) == (2, "echo")
    assert points["gen_ai.server.time_to_first_token"][0].count == 1
    kinds = {point.attributes["gen_ai.token.type"]: point.count for point in points["gen_ai.client.token.usage"]}
    assert kinds == {"input": 2, "output": 2}
    assert points["http.server.request.duration"][0].attributes["http.route"] == "/inference/v1/chat/completions"


def test_a_failure_is_one_in_the_trace_and_no_unknown_name_becomes_a_label(client: Client, seen: Seen) -> None:
    client.chat(model="nothing")
    chat = seen.spans["chat nothing"]
    assert (chat.attributes["error.type"], chat.status.is_ok) == ("model_not_found", False)
    (duration,) = seen.points["gen_ai.server.request.duration"]
    assert duration.attributes["error.type"] == "model_not_found"
    assert "gen_ai.request.model" not in duration.attributes


def test_a_call_in_process_is_below_the_span_of_its_caller(seen: Seen) -> None:
    with open_platform() as platform:
        seen.instrument(platform)
        tracer = seen.tracers.get_tracer("app")
        with tracer.start_as_current_span("mine") as mine:
            platform.chat.complete(model="echo", messages="hi")
        with pytest.raises(ModelNotFound):
            platform.chat.complete(model="no", messages="hi")
    assert seen.spans["chat echo"].parent.span_id == mine.get_span_context().span_id
    assert seen.spans["chat no"].parent is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_trace_continues_in_the_server_that_is_asked(asynchronous: bool) -> None:
    near, far = Seen(), Seen()
    with open_platform(backend=EchoBackend()) as remote:
        far.instrument(remote)
        key = remote.keys.create("acme").secret
        with (
            asgi_server(asgi_app(remote)) as server,
            UpstreamBackend(
                f"{server.url}/inference/v1",
                key,
                models=[offer("echo", context_length=1000, pricing=Pricing())],
            ) as upstream,
            open_platform(backend=upstream) as platform,
        ):
            near.instrument(platform)
            client = client_of(platform, asynchronous=asynchronous)
            assert client.chat("hello", headers=[("traceparent", PARENT)]).status == 200
    asked, answered = near.spans["chat echo"], far.spans["POST /inference/v1/chat/completions"]
    assert f"{answered.context.trace_id:032x}" == TRACE
    assert answered.parent.span_id == asked.context.span_id


@pytest.mark.slow
def test_spans_reach_a_receiver_of_otlp_over_http() -> None:
    received: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    tracers = TracerProvider()
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{server.server_port}/v1/traces")
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        with open_platform() as platform:
            instrument(platform, tracers, MeterProvider())
            client_of(platform).chat()
    finally:
        tracers.shutdown()
        server.shutdown()
        thread.join()
        server.server_close()
    names = [
        span.name
        for body in received
        for one in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    ]
    assert names == ["record usage", "chat echo", "POST /inference/v1/chat/completions"]


def test_a_tenant_cannot_trace() -> None:
    from modelyard.errors import Forbidden

    with open_platform() as platform:
        with pytest.raises(Forbidden):
            instrument(platform.acting_as(platform.keys.create("acme").key.principal()))


def test_the_exporter_sends_to_a_platform_what_its_calls_show() -> None:
    with open_platform() as platform:
        key = platform.keys.create("acme").secret
        with asgi_server(asgi_app(platform)) as server:
            headers = {"authorization": f"Bearer {key}", "compat-project": "acme/support"}
            tracers = TracerProvider()
            exporter = OTLPSpanExporter(f"{server.url}/v1/traces", headers=headers, compression=Compression.Gzip)
            tracers.add_span_processor(SimpleSpanProcessor(exporter))
            tracer = tracers.get_tracer("app")
            with suppress(ValueError), tracer.start_as_current_span("ask", attributes={"n": 1, "all": ["a", "b"]}):
                with tracer.start_as_current_span("chat echo") as inner:
                    inner.set_attribute("gen_ai.operation.name", "chat")
                    inner.set_attribute("gen_ai.request.model", "echo")
                raise ValueError("bad")
            tracers.shutdown()
        chat, ask = platform.compat.traces.calls.list(entity="acme", project="support")
    context = inner.get_span_context()
    assert (chat.id, chat.trace_id) == (f"{context.span_id:016x}", f"{context.trace_id:032x}")
    assert (chat.op, chat.display_name, chat.parent_id, chat.inputs) == ("chat", "chat echo", ask.id, {"model": "echo"})
    assert (ask.op, ask.parent_id, ask.attributes) == ("ask", None, {"n": 1, "all": ("a", "b")})
    assert (chat.exception, ask.status) == (None, "error")
    assert "ValueError: bad" in str(ask.exception)
