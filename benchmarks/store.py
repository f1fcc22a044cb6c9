"""The stores beside raw sqlite3, as JSON: python benchmarks/store.py [folder on a real disk]. Times are microseconds.

Compared figures are measured in turns within one run, so that a busy machine slows both.
"""

import json
import platform
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from modelyard.domain.job import Claim, Job, JobEvent, JobKind, JobProgress, NewEvent
from modelyard.domain.schema import RECORDS
from modelyard.platform.jobs.claims import Claimant, claim, claim_of, record_events
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.jobs.shares import demands_of, ready_needs, take_ready
from modelyard.protocols import Store, Tx
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA = {"loss": 0.51, "entropy": 1.2, "kl_div": 0.01, "grad_norm": 0.7, "learning_rate": 5e-6, "reward": 0.4}
MANY = 10**6
_next = count().__next__


def fill(store: Store, size: int, name: str = "job") -> None:
    """Queue jobs, each of a model of its own."""
    jobs = [Job(f"{name}-{number:012d}", JobKind.RL, "t", "p", f"{name}-{number}", NOW) for number in range(size)]

    def step(tx: Tx) -> None:
        for job in jobs:
            enqueue(tx, job, MANY)

    store.transact(step)


def take(store: Store) -> Claim:
    """Claim the next job, as a worker does."""
    claimed = store.transact(
        lambda tx: claim(tx, Claimant("worker"), NOW, take_ready(tx, "t", ready_needs(tx, demands_of(tx, "t"))))
    )
    assert claimed is not None
    return claim_of(claimed[1])


class Run:
    """A training run that records its steps: fence, events and progress at once."""

    def __init__(self, store: Store) -> None:
        self._store, self._claim, self._step = store, take(store), 0

    def append(self, size: int = 1) -> None:
        """Record so many steps in one write."""
        first = self._step + 1
        self._step += size
        events = [NewEvent(f"event-{_next()}", "gradient_step", DATA, step) for step in range(first, first + size)]
        self._store.transact(lambda tx: record_events(tx, self._claim, events, NOW))


class Raw:
    """The same work by hand on the same tables."""

    def __init__(self, path: str, durability: str, job_id: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
        self.connection.execute("PRAGMA busy_timeout=5000")
        self.connection.execute(f"PRAGMA synchronous={'FULL' if durability == 'power' else 'NORMAL'}")
        self._job_id = job_id

    def append(self, size: int = 1) -> None:
        """Record so many steps in one transaction, if the claim holds."""
        execute, job_id, now = self.connection.execute, self._job_id, NOW.isoformat()
        execute("BEGIN IMMEDIATE")
        held = execute("SELECT epoch, worker_id, held, last_seq, step FROM job_progress WHERE job_id = ?", (job_id,))
        epoch, worker_id, is_held, seq, step = held.fetchone()
        assert is_held
        assert (epoch, worker_id) == (1, "worker")
        for _ in range(size):
            seq, step = seq + 1, step + 1
            values = (job_id, seq, f"event-{_next()}", "gradient_step", step, json.dumps(DATA), now, epoch)
            execute("INSERT INTO job_events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        update = "UPDATE job_progress SET last_seq = ?, step = ?, updated_at = ? WHERE job_id = ?"
        execute(update, (seq, step, now, job_id))
        execute("COMMIT")

    def row(self, seq: int) -> tuple[Any, ...]:
        """Return the row of one event of the job."""
        sql = "SELECT * FROM job_events WHERE job_id = ? AND seq = ?"
        row: tuple[Any, ...] = self.connection.execute(sql, (self._job_id, seq)).fetchone()
        return row

    def page(self) -> list[JobEvent]:
        """Return the first hundred events of the job."""
        sql = "SELECT * FROM job_events WHERE job_id = ? ORDER BY seq LIMIT 100"
        return [made_by_hand(row) for row in self.connection.execute(sql, (self._job_id,))]


def made_by_hand(row: tuple[Any, ...]) -> JobEvent:
    """The event that a row holds: what both sides return."""
    *before, data, time, epoch = row
    return JobEvent(*before, json.loads(data), datetime.fromisoformat(time), epoch)


def median_us(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """The median time and processor time of each action, run in turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), time.thread_time()
            action()
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            spent[name].append((wall * 1e6, cpu * 1e6))
    return {
        name: {"wall": round(statistics.median(wall), 2), "cpu": round(statistics.median(cpu), 2)}
        for name, (wall, cpu) in ((name, zip(*times, strict=True)) for name, times in spent.items())
    }


def ratios(times: dict[str, dict[str, float]], target: float) -> dict[str, Any]:
    """The times, and the second of them over the first."""
    first, second = times.values()
    return times | {"ratio": {kind: round(second[kind] / first[kind], 2) for kind in first}, "target": target}


def appends(folder: Path, durability: str, rounds: int) -> dict[str, Any]:
    """Steps of a run, each side in a file of its own; and one at a time in one file, which both then share.

    In the last, each reads again what the other has changed, as two processes do that write in turns.
    """
    paths = [folder / f"{durability}-{name}.db" for name in ("raw", "store")]
    files = [SqliteStore(path, RECORDS, durability) for path in paths]
    for store in files:
        fill(store, 2)
    run, jobs = Run(files[1]), [take(store).job_id for store in files]
    files[0].close()
    raw, beside = (Raw(str(path), durability, job) for path, job in zip(paths, jobs, strict=True))
    one = median_us({"raw": raw.append, "store": run.append}, rounds)
    batch = median_us({"raw": lambda: raw.append(100), "store": lambda: run.append(100)}, rounds // 10)
    shared = median_us({"raw": beside.append, "store": run.append}, rounds)
    for side in (raw, beside):
        side.connection.close()
    files[1].close()
    return {
        "one": ratios(one, 1.25),
        "batch of 100": ratios(batch, 1.15),
        "one, in turns in one file": ratios(shared, 1.25),
    }


def reads(folder: Path, rounds: int) -> dict[str, Any]:
    """Reads of events, each made from its row by both."""
    path = str(folder / "reads.db")
    store = SqliteStore(path, RECORDS, "process")
    fill(store, 1)
    run = Run(store)
    run.append(200)
    raw = Raw(path, "process", job_id := "job-000000000000")
    pages = {
        "raw": raw.page,
        "store": lambda: store.read(lambda snapshot: snapshot.page(JobEvent, "by_job", job_id, limit=100)),
    }
    gets = {
        "raw": lambda: made_by_hand(raw.row(7)),
        "store": lambda: store.read(lambda snapshot: snapshot.get(JobEvent, job_id, 7)),
    }
    for both in (gets, pages):
        assert both["raw"]() == both["store"]()
    rows = gets | {"raw": lambda: raw.row(7)}
    report = {
        "get": ratios(median_us(gets, rounds), 1.5),
        "get, raw: the row alone": ratios(median_us(rows, rounds), 1.5),
        "page of 100": ratios(median_us(pages, rounds // 10), 1.1),
    }
    raw.connection.close()
    store.close()
    return report


def rate(store: Store, threads: int, calls: int) -> float:
    """Appends per second by this many threads, each to its own job."""
    runs = [Run(store) for _ in range(threads)]

    def work(run: Run) -> None:
        for _ in range(calls):
            run.append()

    crowd = [threading.Thread(target=work, args=(run,)) for run in runs]
    started = time.perf_counter()
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return threads * calls / (time.perf_counter() - started)


def writers(folder: Path, threads: int = 8, calls: int = 200) -> dict[str, Any]:
    """Milliseconds of an append while so many threads append at once: the median, and the slowest of 100."""
    store = SqliteStore(folder / "writers.db", RECORDS)
    fill(store, threads)
    runs, took = [Run(store) for _ in range(threads)], list[float]()

    def work(run: Run) -> None:
        for _ in range(calls):
            began = time.perf_counter()
            run.append()
            took.append(1e3 * (time.perf_counter() - began))

    crowd = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    store.close()
    parts = statistics.quantiles(took, n=100)
    return {"p50 ms": round(parts[49], 2), "p99 ms": round(parts[98], 2), "p99 / p50": round(parts[98] / parts[49], 1)}


def grouping(folder: Path) -> dict[str, Any]:
    store = SqliteStore(folder / "group.db", RECORDS)
    fill(store, 5 * (1 + 64))
    pairs = [(rate(store, 1, 200), rate(store, 64, 20)) for _ in range(5)]
    store.close()
    alone, crowd = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(many / one for one, many in pairs)
    return {
        "1 thread, per second": round(alone),
        "64 threads, per second": round(crowd),
        "ratio": round(ratio, 1),
        "target": 16,
    }


def claims(stores: Mapping[int, Store], rounds: int) -> dict[str, Any]:
    """Claims with a short and a long queue."""

    def turn(store: Store) -> Callable[[], None]:
        return lambda: take(store)

    for queued, store in stores.items():
        fill(store, queued + rounds)
    return ratios(median_us({f"{queued} queued": turn(store) for queued, store in stores.items()}, rounds), 1.5)


def memory(rounds: int) -> dict[str, dict[str, float]]:
    store = MemoryStore(RECORDS)
    fill(store, 1)
    run = Run(store)
    return median_us(
        {
            "empty": lambda: store.transact(lambda tx: None),
            "get": lambda: store.read(lambda snapshot: snapshot.get(JobProgress, "job-000000000000")),
            "append": run.append,
        },
        rounds,
    )


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        queues: dict[int, Store] = {n: SqliteStore(folder / f"claim-{n}.db", RECORDS, "process") for n in (100, 10_000)}
        report = {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "append, durability power": appends(folder, "power", 300),
            "append, durability process": appends(folder, "process", 1500),
            "read": reads(folder, 3000),
            "threads, durability power": grouping(folder),
            "8 writers, durability power": writers(folder),
            "claim, sqlite": claims(queues, 500),
            "claim, memory": claims({n: MemoryStore(RECORDS) for n in (100, 10_000)}, 2000),
            "memory": memory(2000),
        }
        for store in queues.values():
            store.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
