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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
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
from modelyard.parts.postgres.connections import Connector  # noqa: E402
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
KINDS = ("raw", "one statement", "known job", "worker")
ROUNDS = 7
SPAWN = multiprocessing.get_context("spawn")

_FIRST = """FROM jobs WHERE place = 'ready' AND entity = 't' AND kind = 'rl' AND base_model = ''
    AND accelerators = 0 AND memory = 0 ORDER BY rank, seq LIMIT 1 FOR UPDATE SKIP LOCKED"""
_BEGIN = [("BEGIN", ()), ("SET LOCAL synchronous_commit TO off", ()), (f"SELECT * {_FIRST}", ())]
_TAKE = """UPDATE jobs SET status = 'running', place = 'claimed', attempts = attempts + 1, started_at = now()
    WHERE id = $1"""
_HOLD = """UPDATE job_progress SET epoch = epoch + 1, worker_id = 'w', held = true, updated_at = now()
    WHERE job_id = $1"""
_ONE_STATEMENT = f"""
WITH j AS (SELECT id {_FIRST}),
     u AS (UPDATE jobs SET status = 'running', place = 'claimed', attempts = attempts + 1, started_at = now()
           FROM j WHERE jobs.id = j.id RETURNING jobs.id)
UPDATE job_progress p SET epoch = epoch + 1, worker_id = 'w', held = true, updated_at = now()
FROM u WHERE p.job_id = u.id RETURNING p.job_id"""


def raw_claim(connection: Any) -> str:
    """Claim with SKIP LOCKED in two round trips: the first job that is free, then its rows and the commit."""
    job_id: str = connection.rows_of(connection.round_trip(_BEGIN)[-1])[0][0]
    connection.round_trip([(_TAKE, (job_id,)), (_HOLD, (job_id,)), ("COMMIT", ())])
    return job_id


def one_statement(connection: Any) -> str:
    """Claim with SKIP LOCKED in one statement, which returns the name of the job alone."""
    found: list[tuple[str]] = connection.rows_of(*connection.round_trip([(_ONE_STATEMENT, ())]))
    return found[0][0]


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


def claimer(address: str, threads: int, times: int, start: Any, answers: Any) -> None:
    """Claim in so many threads, in each way by turns; answer the ids and the seconds of each round."""

    def by_store() -> Callable[[], str]:
        return lambda: _claim(platform._runtime.store)  # type: ignore[arg-type]

    def by_worker() -> Callable[[], str]:
        able = attrs.evolve(job_types_of(())[JobKind.RL], can_run=lambda *_: True)
        runner = Runner(platform._runtime, {JobKind.RL: able})

        def one() -> str:
            claimed = runner.claim()
            assert claimed is not None
            runner.drop(claimed)
            return claimed.job.id

        return one

    def by_hand(claim_it: Callable[[Any], str]) -> Callable[[], str]:
        connection = Connector(f"{address}&options=-csearch_path%3Dmodelyard", 10.0).connect()
        connection.execute("SET synchronous_commit TO off")
        return partial(claim_it, connection)

    with open_platform(address, artifacts="/tmp/yard-claims") as platform, ThreadPoolExecutor(threads) as pool:
        ways = {"raw": partial(by_hand, raw_claim), "one statement": partial(by_hand, one_statement)}
        ways |= {"known job": by_store, "worker": by_worker}
        claims = {kind: [way() for _ in range(threads)] for kind, way in ways.items()}
        for number in range(-1, ROUNDS):
            for kind, each in claims.items():
                start.wait()
                began = time.perf_counter()
                got = [*pool.map(lambda one: [one() for _ in range(times)], each)]
                answers.put((number, kind, [*chain.from_iterable(got)], time.perf_counter() - began))


def _database(address: str) -> str:
    return urlsplit(address).path.strip("/")


def claims_a_second(address: str, processes: int, threads: int, times: int = 60) -> list[dict[str, float]]:
    """The rates of each round; the first one, in which statements are prepared, is left out."""
    start, answers = SPAWN.Barrier(processes), SPAWN.Queue()
    running = [SPAWN.Process(target=claimer, args=(address, threads, times, start, answers)) for _ in range(processes)]
    for process in running:
        process.start()
    told = [answers.get() for _ in range(processes * (ROUNDS + 1) * len(KINDS))]
    for process in running:
        process.join()
    ids = [one for _, _, got, _ in told for one in got]
    assert len(ids) == len({*ids}), "a job was claimed twice"
    claimed = processes * threads * times
    return [
        {kind: claimed / max(last for at, of, _, last in told if (at, of) == (number, kind)) for kind in KINDS}
        for number in range(ROUNDS)
    ]


def claims(server: PostgresServer) -> dict[str, Any]:
    """Claims a second with thousands of jobs queued, in rounds that take turns; and how many times as fast those by
    hand are, the median of the rounds."""
    result: dict[str, Any] = {"target": {"raw / worker": 2}}
    for processes, threads in ((1, 1), (PROCESSES, THREADS)):
        address = server.create_database()
        with closing(PostgresStore(address, RECORDS)) as store:
            queue_jobs(store, 3 * QUEUED)
        server.execute("ANALYZE", _database(address))
        rounds = claims_a_second(address, processes, threads)
        rates = {kind: round(statistics.median(each[kind] for each in rounds)) for kind in KINDS}
        over = {
            f"{hand} / {own}": round(statistics.median(each[hand] / each[own] for each in rounds), 2)
            for own in KINDS[2:]
            for hand in KINDS[:2]
        }
        result[f"{processes * threads} workers"] = rates | over
    return result


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
