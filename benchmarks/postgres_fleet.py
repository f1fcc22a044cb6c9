"""Many processes on one PostgreSQL, as JSON: python benchmarks/postgres_fleet.py [claims lag idle enqueue ...].

It starts a server of its own, with fsync, in a temporary folder, and processes that share it. Claims are compared with
hand-written psycopg in turns within one run, so that a busy machine slows both. `idle` counts transactions that the
server has ended a second, with that many workers in four processes.
"""

import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import psycopg

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "shared")]

from benchmarks.postgres import Raw, booked, crowd  # noqa: E402
from benchmarks.store import MANY, NOW, Run, fill, median_us, ratios, take  # noqa: E402

from modelyard import open_platform  # noqa: E402
from modelyard.clock import SystemClock  # noqa: E402
from modelyard.domain.job import Claim, Job, JobEvent, JobKind, JobProgress, NewEvent, QueueState  # noqa: E402
from modelyard.domain.schema import RECORDS  # noqa: E402
from modelyard.parts.postgres.wire import Wire  # noqa: E402
from modelyard.platform.job_types import job_types_of  # noqa: E402
from modelyard.platform.jobs.claims import (  # noqa: E402
    Claimant,
    claim,
    job_topic,
    record_events,
)
from modelyard.platform.jobs.queue import enqueue  # noqa: E402
from modelyard.platform.jobs.runner import Runner  # noqa: E402
from modelyard.platform.jobs.shares import announce_ready, take_ready  # noqa: E402
from modelyard.platform.jobs.wakeups import JobWaiter  # noqa: E402
from modelyard.protocols import DomainStep, Tx  # noqa: E402
from modelyard.stores import PostgresStore  # noqa: E402
from postgres_server import PostgresServer, server_folder  # noqa: E402

PROCESSES, THREADS, QUEUED = 4, 2, 10_000
SPAWN = multiprocessing.get_context("spawn")

_RAW_CLAIM = """
WITH j AS (SELECT id FROM jobs WHERE place = 'ready' AND entity = 't' AND kind = 'rl' AND base_model = ''
           AND accelerators = 0 AND memory = 0 ORDER BY rank, seq LIMIT 1 FOR UPDATE SKIP LOCKED),
     u AS (UPDATE jobs SET status = 'running', place = 'claimed', attempts = attempts + 1, started_at = now()
           FROM j WHERE jobs.id = j.id RETURNING jobs.id)
UPDATE job_progress p SET epoch = epoch + 1, worker_id = 'w', held = true, updated_at = now()
FROM u WHERE p.job_id = u.id RETURNING p.job_id"""


# ---- claims --------------------------------------------------------------------------------------------------------


def queue_jobs(store: PostgresStore, size: int, name: str = "job") -> None:
    """Queue jobs that are ready, of a model each, without looking for their lanes."""
    for first in range(0, size, 1000):
        jobs = [
            Job(f"{name}-{at:09d}", JobKind.RL, "t", "p", f"{name}-model-{at}", NOW, place=QueueState.READY)
            for at in range(first, min(size, first + 1000))
        ]

        def step(tx: Tx, jobs: list[Job] = jobs) -> None:
            announce_ready(tx, "t", jobs[0].needs)
            for job in jobs:
                tx.add(job)
                tx.add(JobProgress(job.id, NOW))

        store.transact(step, durable=False)


def _claim(store: PostgresStore) -> str:
    needs = [Job("", JobKind.RL, "", "", "", NOW).needs]
    found = store.transact(DomainStep(lambda tx: claim(tx, Claimant("w"), NOW, take_ready(tx, "t", needs)), ()))
    assert found is not None
    return found[0].id


def claimer(kind: str, address: str, times: int, start: Any, answers: Any) -> None:
    """Claim in two threads; answer the ids and the seconds."""
    got: list[str] = []

    def work() -> None:
        if kind == "raw":
            connection = psycopg.connect(address, autocommit=True, options="-c search_path=modelyard")
            for _ in range(times):
                got.append(connection.execute(_RAW_CLAIM, prepare=True).fetchone()[0])  # type: ignore[index]
        elif kind == "claims":
            got.extend(_claim(platform._runtime.store) for _ in range(times))  # type: ignore[arg-type]
        else:
            runner = Runner(
                platform._runtime, {JobKind.RL: attrs.evolve(job_types_of(())[JobKind.RL], can_run=lambda *_: True)}
            )
            for _ in range(times):
                claimed = runner.claim()
                assert claimed is not None
                runner.drop(claimed)
                got.append(claimed.job.id)

    with open_platform(address, artifacts="/tmp/yard-claims") as platform:
        start.wait()
        began = time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers.put((got, time.perf_counter() - began))


def _database(address: str) -> str:
    return urlsplit(address).path.strip("/")


def claims_a_second(kind: str, address: str, times: int = 60) -> float:
    start, answers = SPAWN.Barrier(PROCESSES), SPAWN.Queue()
    processes = [SPAWN.Process(target=claimer, args=(kind, address, times, start, answers)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    told = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    ids = [one for got, _ in told for one in got]
    assert len(ids) == len({*ids}) == PROCESSES * THREADS * times, "a job was claimed twice"
    return round(len(ids) / max(seconds for _, seconds in told))


def claims(server: PostgresServer) -> dict[str, Any]:
    """Claims a second by eight workers in four processes, with 10,000 jobs queued: three rounds in turns."""
    address = server.create_database()
    with closing(PostgresStore(address, RECORDS)) as store:
        queue_jobs(store, QUEUED)
    server.execute("ANALYZE", _database(address))
    kinds = ("raw", "claims", "claims of workers")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(5):
        for kind in kinds:
            rates[kind].append(claims_a_second(kind, address))
    middle = {kind: statistics.median(each) for kind, each in rates.items()}
    over = {f"raw over {kind}": round(middle["raw"] / middle[kind], 2) for kind in kinds[1:]}
    return rates | over | {"target": 2}


# ---- events --------------------------------------------------------------------------------------------------------


def record_some(address: str, job_claim: Claim, count: int) -> None:
    """Record events that say when they were, twenty a second."""
    with closing(PostgresStore(address, RECORDS)) as store:
        for step in range(1, count + 1):
            time.sleep(0.05)
            event = NewEvent(f"e-{step}", "gradient_step", {"at": time.time()}, step)
            store.transact(lambda tx, e=event: record_events(tx, job_claim, [e], NOW))  # type: ignore[misc]


def lag(server: PostgresServer, count: int = 200) -> dict[str, Any]:
    """Milliseconds from before an event is written in one process until another, which follows the job, reads it."""
    address = server.create_database()
    with closing(PostgresStore(address, RECORDS)) as store:
        fill(store, 1)
        job_claim, seen, seq = take(store), [], 0
        with closing(JobWaiter(SystemClock(), store)) as waiter:
            waiter.watch(job_topic(job_claim.job_id))
            process = SPAWN.Process(target=record_some, args=(address, job_claim, count))
            process.start()
            while len(seen) < count:
                page = store.read(lambda s, a=seq: s.page(JobEvent, "by_job", job_claim.job_id, after=(a,)))  # type: ignore[misc]
                for event in page:
                    seen.append(1e3 * (time.time() - event.data["at"]))
                    seq = event.seq
                if not page:
                    waiter.sleep(0.5)
            process.join()
    parts = statistics.quantiles(seen, n=20)
    return {"p50 ms": round(parts[9], 1), "p95 ms": round(parts[18], 1), "max ms": round(max(seen), 1), "target": 100}


# ---- idle workers --------------------------------------------------------------------------------------------------


def idle_workers(address: str, number: int, ready: Any, ended: Any) -> None:
    """Run so many workers that have nothing to do."""
    with open_platform(address, artifacts="/tmp/yard-idle") as platform, ExitStack() as running:
        for _ in range(number):
            running.enter_context(platform.worker())
        ready.wait()
        ended.wait()


def transactions(server: PostgresServer, database: str) -> int:
    sql = f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{database}'"
    return int(server.execute(sql)[0][0])


def idle_rate(server: PostgresServer, number: int, seconds: float = 15.0) -> float:
    address = server.create_database()
    database = _database(address)
    PostgresStore(address, RECORDS).close()
    ready, ended = SPAWN.Barrier(PROCESSES + 1), SPAWN.Event()
    given = (address, number // PROCESSES, ready, ended)
    processes = [SPAWN.Process(target=idle_workers, args=given) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    ready.wait()
    time.sleep(15.0)  # each has found out whether it watches over the others, and sleeps if not
    before, began = transactions(server, database), time.monotonic()
    time.sleep(seconds)
    rate = (transactions(server, database) - before) / (time.monotonic() - began)
    ended.set()
    for process in processes:
        process.join()
    return round(rate, 1)


def idle(server: PostgresServer) -> dict[str, Any]:
    """Transactions a second of workers that have nothing to do."""
    return {f"{number} workers": idle_rate(server, number) for number in (40, 400, 1000)}


# ---- the queue, and distance ---------------------------------------------------------------------------------------


def enqueues(server: PostgresServer) -> dict[str, Any]:
    """The time to queue a job, with none and with 10,000 queued by its entity."""
    names, result = iter(range(10**9)), {}
    for queued in (0, QUEUED):
        with closing(PostgresStore(server.create_database(), RECORDS)) as store:
            queue_jobs(store, queued)

            def one(store: PostgresStore = store) -> None:
                name = f"new-{next(names)}"
                store.transact(lambda tx: enqueue(tx, Job(name, JobKind.RL, "t", "p", name, NOW), MANY))

            result[f"{queued} queued"] = median_us({"enqueue": one}, 60)["enqueue"]
    return result


def later(action: Callable[..., Any]) -> Callable[..., Any]:
    """Return the action with a millisecond before it, as a network would take."""

    def delayed(*given: Any) -> Any:
        time.sleep(0.001)
        return action(*given)

    return delayed


class FarRaw(Raw):
    """Hand-written psycopg whose every round trip takes a millisecond more."""

    def __init__(self, address: str, job_id: str) -> None:
        super().__init__(address, job_id)
        self._pipeline, self._connection.pipeline = self._connection.pipeline, self._far  # type: ignore[method-assign]

    def _far(self) -> Any:
        time.sleep(0.001)
        return self._pipeline()


def distance(server: PostgresServer) -> dict[str, Any]:
    """Appends where each round trip takes a millisecond more."""
    address = server.create_database()
    with closing(PostgresStore(address, RECORDS)) as store:
        fill(store, 70)
        raw, run = FarRaw(address, take(store).job_id), Run(store)
        Wire.many = later(Wire.many)  # type: ignore[method-assign]
        for _ in range(10):
            raw.append()
            run.append()
        return {"append one": ratios(median_us({"raw": raw.append, "store": run.append}, 60), 1.25)}


_RAW_ROW = """INSERT INTO ledger
    (id, entity, project, key_id, model, base_model, prompt_tokens, completion_tokens, cached_tokens, images, estimated,
     created_at, cost, trained_tokens)
    VALUES (%s, 't', 'p', 'k', 'm', 'm', 10, 10, 0, 0, false, %s, '0.001', 0)"""
_RAW_TOTAL = """INSERT INTO usage_totals AS kept
    VALUES ('t', '2026-01-01', 'p', 'k', 'raw', 1, 10, 0, 10, 0, '0.001', 0)
    ON CONFLICT (entity, day, project, key_id, model) DO UPDATE SET requests = kept.requests + 1,
    prompt_tokens = kept.prompt_tokens + 10, completion_tokens = kept.completion_tokens + 10,
    cost = (kept.cost::numeric + excluded.cost::numeric)::text"""


class RawBooking:
    """A completion that is booked by hand, in one round trip: a row, and the total of all. A connection a thread."""

    def __init__(self, address: str) -> None:
        self._address, self._own, self._names = address, threading.local(), iter(range(10**9))
        self.milliseconds = 0

    def __call__(self, _: int) -> None:
        if not hasattr(self._own, "connection"):
            self._own.connection = psycopg.connect(self._address, autocommit=True)
            self._own.connection.execute("SET search_path TO modelyard")
        time.sleep(self.milliseconds / 1000)
        connection = self._own.connection
        with connection.pipeline():
            connection.execute("BEGIN", prepare=True)
            connection.execute("SET LOCAL synchronous_commit TO off")
            connection.execute(_RAW_ROW, (f"raw-{next(self._names)}", NOW), prepare=True)
            connection.execute(_RAW_TOTAL, prepare=True)
            connection.execute("COMMIT", prepare=True)


def bookings(server: PostgresServer, threads: int = 64, calls: int = 30) -> dict[str, Any]:
    """Completions of one entity that are booked a second by so many threads, near and a millisecond away."""
    address, result = server.create_database(), {}
    with closing(PostgresStore(address, RECORDS)) as store:
        names, raw, many = iter(range(10**9)), RawBooking(address), Wire.many
        for milliseconds in (0, 1):
            raw.milliseconds = milliseconds
            Wire.many = later(many) if milliseconds else many  # type: ignore[method-assign]
            rounds = [
                {
                    "raw": crowd(raw, threads, calls),
                    "store": crowd(lambda _: booked(store, names), threads, calls),
                }
                for _ in range(3)
            ]
            found = {kind: statistics.median(each[kind] for each in rounds) for kind in ("raw", "store")}
            result[f"{milliseconds} ms more"] = {**found, "store / raw": round(found["store"] / found["raw"], 2)}
        Wire.many = many  # type: ignore[method-assign]
    return result


def main() -> None:
    folder = server_folder()
    assert folder is not None, "no PostgreSQL server is installed"
    server = PostgresServer(
        folder, fsync="on", full_page_writes="on", autovacuum="on", max_worker_processes="8", max_connections="200"
    )
    parts = {
        "claims": claims,
        "lag": lag,
        "idle": idle,
        "enqueue": enqueues,
        "distance": distance,
        "bookings": bookings,
    }
    try:
        for name in sys.argv[1:] or parts:
            print(json.dumps({name: parts[name](server)}, indent=1), flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
