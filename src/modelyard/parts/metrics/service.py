"""`platform.metrics`: figures for Prometheus, of this process and of the records that it shares with others."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobStatus, QueueState
from modelyard.errors import Forbidden, InvalidInput, StoreError
from modelyard.lazy import log
from modelyard.parts.metrics.exposition import MetricFamily, exposition
from modelyard.parts.metrics.records import KEPT_FOR, SlowAnswer
from modelyard.parts.metrics.slowest import SlowestHere, slowest_in
from modelyard.platform.jobs.announced import live_workers
from modelyard.platform.meters import Meters, TimeHistogram
from modelyard.platform.operations.readiness import artifacts_reached
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.service import Period, month_of
from modelyard.protocols import Snapshot
from modelyard.version import __version__

DAY = timedelta(days=1)
SHOWN = 10
MOST_COUNTED = 1000
"""How many jobs of a status are counted, so that a scrape takes as long after years as after a day."""

Samples = Iterator[tuple[Mapping[str, object], float | TimeHistogram]]


class Metrics:
    """The figures of a platform. Only the host may use them: they are of all entities.

    platform.metrics.count()  # from now on
    print(platform.metrics.text())
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        if principal.scope.entity is not None:
            raise Forbidden("only the host may read the metrics: they are of all entities; use a host key")
        self._runtime = runtime

    def count(self) -> Meters:
        """Begin to count requests, tokens, cost and times in this process. Returns what it counts. Idempotent."""
        return self._runtime.cache.count()

    def text(self) -> str:
        """Return all figures in the text format of Prometheus, version 0.0.4.

        The counters are of this process since it began to count. The state of the queue is that of the store; it is
        left out, and `modelyard_store_up` is 0, while the store cannot be read.
        """
        meters = self.count()
        with meters.lock:
            counted = exposition([*_about(self._runtime), *_completions(meters), *_requests(meters), *_losses(meters)])
        return counted + exposition(self._shared())

    def slowest(
        self,
        limit: int = SHOWN,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        month: str | None = None,
        entity: str | None = None,
    ) -> Sequence[SlowAnswer]:
        """Return the slowest whole answers of all processes that count, the slowest first.

        The store keeps the 20 slowest of each entity and day, in UTC, for 31 days; `since`, `until` and `month` choose
        those that ended then. A process that is served adds its own each second; another adds them when this is
        called, of 500 entities and days at most. Raises `InvalidInput`.
        """
        if type(limit) is not int or not 1 <= limit <= MOST_COUNTED:
            raise InvalidInput.at("limit", msg=f"must be a whole number from 1 to {MOST_COUNTED}")
        if month is not None:
            if since is not None or until is not None:
                raise InvalidInput.at("month", msg="leave it out, or since and until")
            since, until = month_of(month)
        runtime, now = self._runtime, self._runtime.clock.now()
        period = Period.of(since, until)
        first = max(period.since or now - KEPT_FOR, now - KEPT_FOR)
        last = min(period.until or now + DAY, now + DAY)
        runtime.cache.slot_of(SlowestHere, lambda: SlowestHere(runtime)).store()
        return runtime.store.read(lambda snapshot: slowest_in(snapshot, limit, first, last, entity))

    def _shared(self) -> list[MetricFamily]:
        runtime, clock = self._runtime, self._runtime.clock
        artifacts = _gauge("artifacts_up", "Whether the artifacts can be reached.", int(artifacts_reached(runtime)))
        began = clock.monotonic()
        try:
            counts = runtime.store.read(lambda snapshot: _queue(runtime, snapshot))
        except Exception as fault:  # noqa: BLE001 - the figure says that it failed
            log.warning("the metrics lack those of the store: %s", type(fault).__name__)
            return [_gauge("store_up", "Whether the store can be read.", 0), artifacts]
        seconds = clock.monotonic() - began
        return [
            _gauge("store_up", "Whether the store can be read.", 1),
            artifacts,
            _gauge("store_read_seconds", "How long the read of these figures took.", seconds),
            *_room(runtime),
            *counts,
        ]


def _about(runtime: Runtime) -> Iterator[MetricFamily]:
    labels = {"version": __version__}
    yield MetricFamily("modelyard_build_info", "gauge", "The version of modelyard.", [(labels, 1)])
    yield _gauge("completions_running", "Completions under way in this process.", len(runtime.cache.running))
    retries = getattr(runtime.backend, "retries", 0)
    yield _counter("upstream_retries", "Attempts at other servers that were made again.", [({}, retries)])
    yield from _prefixes(runtime)


def _prefixes(runtime: Runtime) -> Iterator[MetricFamily]:
    """Yield what local models that are loaded know of earlier prompts."""
    known: dict[str, tuple[int, int]] = {}
    for one in (*runtime.engines, runtime.backend):
        known |= getattr(one, "prefix_counts", dict)()
    words = "Tokens of prompts that a local model did not read again.", "Answers that it forgot, for want of memory."
    for place, name in enumerate(("prefix_tokens", "prefixes_evicted")):
        if known:
            yield _counter(name, words[place], [({"model": model}, counts[place]) for model, counts in known.items()])


def _completions(meters: Meters) -> Iterator[MetricFamily]:
    models = meters.models

    def each(value: Callable[[Any], float | TimeHistogram]) -> Samples:
        return (({"model": model}, value(meter)) for model, meter in models.items())

    def times(value: Callable[[Any], TimeHistogram]) -> Samples:
        return (({"model": model}, value(meter)) for model, meter in models.items() if any(value(meter).counts))

    ended = (
        ({"model": model, "status": status}, count)
        for model, meter in models.items()
        for status, count in meter.requests.items()
    )
    yield _counter("completions", "Completions that ended, by HTTP status; 499 is a caller who left.", ended)
    refused = (({"code": code}, count) for code, count in meters.refusals.items())
    yield _counter("completions_failed", "Completions that failed, by the code of the error.", refused)
    yield _counter("prompt_tokens", "Tokens of prompts.", each(lambda meter: meter.prompt_tokens))
    yield _counter("completion_tokens", "Tokens of answers.", each(lambda meter: meter.completion_tokens))
    yield _counter("cost_usd", "Cost in USD, rounded; the ledger is exact.", each(lambda meter: float(meter.cost)))
    yield _times("completion_seconds", "How long whole answers took.", times(lambda meter: meter.seconds))
    yield _times("first_token_seconds", "Time to first token of streams.", times(lambda meter: meter.first_token))


def _requests(meters: Meters) -> Iterator[MetricFamily]:
    routes = meters.routes.items()
    answered = (
        ({"method": method, "route": route, "status": status}, count)
        for (method, route), meter in routes
        for status, count in meter.requests.items()
    )
    yield _counter("http_requests", "HTTP requests, by route and status.", answered)
    times: Samples = (({"method": method, "route": route}, meter.seconds) for (method, route), meter in routes)
    yield _times("http_request_seconds", "How long HTTP requests took, streams to their end.", times)


def _losses(meters: Meters) -> Iterator[MetricFamily]:
    words = "Jobs that this process took from a lost worker, to be run again."
    yield _counter("jobs_taken", words, [({}, meters.lost_leases)])


def _queue(runtime: Runtime, snapshot: Snapshot) -> list[MetricFamily]:
    jobs = [({"status": status.value}, _up_to(snapshot, "by_state", status)) for status in JobStatus]
    waiting = QueueState.READY, QueueState.HELD_BACK, QueueState.WAITING
    depth = [({"place": place.value}, _up_to(snapshot, "by_place", place)) for place in waiting]
    first = [job.created_at for place in waiting for job in snapshot.page(Job, "by_place", place, limit=1)]
    given = [
        ({"accelerators": count, "place": place.value}, jobs)
        for place in (QueueState.READY, QueueState.CLAIMED)
        for count, jobs in sorted(_by_accelerators(snapshot, place).items())
    ]
    age = max((runtime.clock.now() - min(first)).total_seconds(), 0.0) if first else 0.0
    return [
        MetricFamily("modelyard_jobs", "gauge", f"Jobs, by status; no more than {MOST_COUNTED} are counted.", jobs),
        MetricFamily(
            "modelyard_queue_jobs",
            "gauge",
            "Queued jobs: ready, held back after no place was found, or waiting for their turn.",
            depth,
        ),
        MetricFamily("modelyard_jobs_by_accelerators", "gauge", "Ready and claimed jobs, by what each needs.", given),
        _gauge("queue_oldest_seconds", "How long the oldest queued job has waited.", age),
        _gauge("workers", "Workers that are alive.", len(live_workers(runtime, snapshot))),
    ]


def _by_accelerators(snapshot: Snapshot, place: QueueState) -> Counter[int]:
    found = snapshot.select(Job, ("accelerators",), "by_place", place, limit=MOST_COUNTED)
    return Counter({0: 0, **Counter(count for (count,) in found)})


def _up_to(snapshot: Snapshot, index: str, value: str) -> int:
    """Count jobs without reading more of them than `MOST_COUNTED`."""
    return len(snapshot.select(Job, ("seq",), index, value, limit=MOST_COUNTED))


def _room(runtime: Runtime) -> Iterator[MetricFamily]:
    try:
        free = runtime.artifacts.free()
    except StoreError as fault:
        log.warning("the metrics lack the room for artifacts: %s", fault)
        return
    if free is not None:
        yield _gauge("artifacts_free_bytes", "Free bytes on the disk of the artifacts.", free)


def _gauge(name: str, help: str, value: float) -> MetricFamily:
    return MetricFamily(f"modelyard_{name}", "gauge", help, [({}, value)])


def _counter(name: str, help: str, samples: Any) -> MetricFamily:
    return MetricFamily(f"modelyard_{name}_total", "counter", help, samples)


def _times(name: str, help: str, samples: Samples) -> MetricFamily:
    return MetricFamily(f"modelyard_{name}", "histogram", help, samples)
