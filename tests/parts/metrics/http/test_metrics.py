"""`/metrics`, read by the parser of the Prometheus client, for the host's own keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from http_client import Client, client_of
from modelyard import JobChanged, open_platform
from modelyard.artifacts import MemoryArtifacts
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.job import Job
from modelyard.errors import StoreError
from modelyard.parts.metrics import service
from modelyard.platform.meters import BOUNDS
from modelyard.testing import ManualClock


def read(client: Client) -> dict[str, list[Any]]:
    """The samples of `/metrics` by name."""
    host = client.platform.keys.create("ops", host=True).secret
    answer = client.send("GET", "/metrics", key=host)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(answer.raw.decode()):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def one(found: Mapping[str, list[Any]], name: str, **labels: str) -> float:
    (value,) = [s.value for s in found.get(f"modelyard_{name}", []) if labels.items() <= s.labels.items()]
    return float(value)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest) -> Any:
    with open_platform() as platform:
        echo = platform.catalogue.get("echo")
        platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(request="0.25")))
        yield client_of(platform, asynchronous=request.param)


def test_requests_tokens_cost_and_times_are_counted(client: Client) -> None:
    client.chat("one two")
    client.chat("one two", stream=True)
    client.chat("x", model="nothing")
    found = read(client)
    echo = {"model": "echo"}
    assert one(found, "completions_total", status="200", **echo) == 2
    assert one(found, "completions_total", model="", status="404") == 1
    assert one(found, "completions_failed_total", code="model_not_found") == 1
    assert one(found, "prompt_tokens_total", **echo) == one(found, "completion_tokens_total", **echo) > 2
    assert one(found, "cost_usd_total", **echo) == 0.5
    assert one(found, "completion_seconds_count", **echo) == 2
    assert one(found, "first_token_seconds_count", **echo) == 1
    assert one(found, "completion_seconds_bucket", le="+Inf", **echo) == 2
    route = {"route": "/inference/v1/chat/completions", "method": "POST"}
    assert one(found, "http_requests_total", status="200", **route) == 2
    assert one(found, "http_requests_total", status="404", **route) == 1
    assert one(found, "http_request_seconds_count", **route) == 3
    assert one(found, "completions_running") == 0


def test_a_histogram_is_cumulative_and_has_every_bound(client: Client) -> None:
    client.chat()
    buckets = [s for s in read(client)["modelyard_completion_seconds_bucket"] if s.labels["model"] == "echo"]
    assert [float(s.labels["le"]) for s in buckets] == [*BOUNDS, float("inf")]
    assert sorted(s.value for s in buckets) == [s.value for s in buckets]


def test_a_tenant_s_key_is_refused_and_so_is_none(client: Client) -> None:
    assert client.send("GET", "/metrics").status == 403
    assert client.send("GET", "/metrics", key="").status == 401


def test_paths_and_methods_of_strangers_share_one_label(client: Client) -> None:
    for number in range(5):
        client.send("GET", f"/nowhere/{number}", key="", check=False)
        client.send(f"VERB{number}", "/livez", key="", check=False)
    labels = {(s.labels["method"], s.labels["route"]) for s in read(client)["modelyard_http_requests_total"]}
    assert labels == {("", "")}


def test_the_queue_is_that_of_the_store() -> None:
    clock = ManualClock()
    with open_platform(clock=clock) as platform:
        client = client_of(platform)
        model = platform.models.create("bot", base_model="tabular-mini")
        rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
        for _ in range(3):
            platform.training.sft(model, rows)
        clock.advance(7)
        found = read(client)
        assert (one(found, "queue_jobs", place="ready"), one(found, "queue_jobs", place="waiting")) == (1, 2)
        assert (one(found, "jobs", status="queued"), one(found, "queue_oldest_seconds")) == (3, 7)
        assert one(found, "workers") == 0
        platform.worker().beat()
        platform.jobs.cancel(next(iter(platform.jobs.list())).id)
        found = read(client)
        assert (one(found, "jobs", status="cancelled"), one(found, "workers")) == (1, 1)


def test_jobs_are_counted_by_the_accelerators_that_they_need() -> None:
    """So that an autoscaler sees how many workers of which kind would have work, those that have some among them."""
    seen: list[dict[tuple[str, str], float]] = []

    def look(event: object) -> None:
        if isinstance(event, JobChanged) and event.status == "running":
            samples = read(client)["modelyard_jobs_by_accelerators"]
            seen.append({(one.labels["accelerators"], one.labels["place"]): one.value for one in samples})

    with open_platform(observer=look) as platform:
        client = client_of(platform)
        for needs in ({}, {"accelerators": 2}, {"accelerators": 2, "memory": 4}, {"accelerators": 8}):
            platform.evaluations.submit("quiz", "echo", [{"prompt": "a", "expected": "a"}], project="desk", needs=needs)
        worker = platform.worker(accelerators=None)
        while worker.run_next():
            pass
    nothing = {("0", "ready"): 0, ("0", "claimed"): 0}
    assert seen == [
        {("0", "ready"): 0, ("2", "ready"): 2, ("8", "ready"): 1, ("0", "claimed"): 1},
        nothing | {("2", "ready"): 1, ("8", "ready"): 1, ("2", "claimed"): 1},
        nothing | {("8", "ready"): 1, ("2", "claimed"): 1},
        nothing | {("8", "claimed"): 1},
    ]


class Limits:
    """A snapshot that has no way to count a whole index, and notes how many jobs each question may read."""

    def __init__(self, snapshot: Any, of_jobs: list[int | None]) -> None:
        self._snapshot, self._of_jobs, self.time = snapshot, of_jobs, snapshot.time

    def select(self, cls: type, *given: Any, limit: int | None = None, **more: Any) -> Any:
        self._note(cls, limit)
        return self._snapshot.select(cls, *given, limit=limit, **more)

    def page(self, cls: type, *given: Any, limit: int | None = None, **more: Any) -> Any:
        self._note(cls, limit)
        return self._snapshot.page(cls, *given, limit=limit, **more)

    def _note(self, cls: type, limit: int | None) -> None:
        if cls is Job:
            self._of_jobs.append(limit)


def test_of_however_many_jobs_a_bounded_number_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_COUNTED", 3)
    limits: list[int | None] = []
    with open_platform() as platform:
        for _ in range(5):
            platform.evaluations.submit("quiz", "echo", [{"prompt": "a", "expected": "a"}], project="desk")
        store: Any = platform._runtime.store
        families = store.read(lambda snapshot: service._queue(platform._runtime, Limits(snapshot, limits)))
    found = {family.name: list(family.samples) for family in families}
    assert ({"status": "queued"}, 3) in found["modelyard_jobs"]
    assert ({"place": "ready"}, 3) in found["modelyard_queue_jobs"]
    assert limits
    assert all(limit is not None and limit <= 3 for limit in limits)


def test_what_other_processes_share_is_left_out_while_the_store_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform() as platform:

        def fail(*_: object) -> None:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(platform._runtime.store, "read", fail)
        text = platform.metrics.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["modelyard_store_up"].samples[0].value == 0
    assert families["modelyard_artifacts_up"].samples[0].value == 1
    assert "modelyard_jobs" not in families
    assert "modelyard_completions" in families
    assert [record.getMessage() for record in caplog.records] == ["the metrics lack those of the store: StoreError"]


def test_a_platform_in_a_file_reports_the_room_of_its_artifacts(yard_file: Path) -> None:
    with open_platform(yard_file) as platform:
        assert one(read(client_of(platform)), "artifacts_free_bytes") > 0


def test_the_room_of_artifacts_is_left_out_while_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> int:
        raise StoreError("the disk does not answer")

    monkeypatch.setattr(MemoryArtifacts, "free", fail)
    with open_platform(artifacts=MemoryArtifacts()) as platform:
        found = read(client_of(platform))
    assert one(found, "store_up") == 1
    assert one(found, "artifacts_up") == 1
    assert "modelyard_artifacts_free_bytes" not in found


def test_hostile_names_do_not_break_the_format() -> None:
    name = 'a "b"\\c'
    with open_platform(backend=EchoBackend()) as platform:
        meters = platform.metrics.count()
        platform.chat.complete(model="echo", messages="x")
        (entry,) = platform.usage.list()
        meters.booked(attrs.evolve(entry, model=name), 0.1, None)
        samples = [
            sample
            for family in text_string_to_metric_families(platform.metrics.text())
            for sample in family.samples
            if sample.name == "modelyard_prompt_tokens_total"
        ]
        assert ({"model": name}, 1) in [(sample.labels, sample.value) for sample in samples]
