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

import attrs

from modelyard.domain.record import Index, Record, frozen_mapping
from modelyard.protocols import Store, Tx
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA = {"loss": 0.51, "entropy": 1.2, "kl_div": 0.01, "grad_norm": 0.7, "learning_rate": 5e-6, "reward": 0.4}


@attrs.frozen
class Job:
    id: str
    tenant: str
    model_id: str
    kind: str
    status: str
    epoch: int
    worker: str
    last_seq: int
    step: int
    created_at: datetime
    error: str | None = None


@attrs.frozen
class Event:
    job_id: str
    seq: int
    id: str
    type: str
    created_at: datetime
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)


RECORDS = (
    Record(Job, "jobs", ("id",), indexes={"by_status": Index(("status",), ("created_at",))}),
    Record(Event, "events", ("job_id", "seq"), {"id": ("id",)}, {"by_job": Index(("job_id",), ("seq",))}),
)
_next = count().__next__


def fill(store: Store, size: int, status: str = "queued") -> list[str]:
    jobs = [Job(f"job-{_next():012d}", "t", "m", "rl", status, 0, "", 0, 0, NOW) for _ in range(size)]

    def step(tx: Tx) -> None:
        for job in jobs:
            tx.add(job)

    store.transact(step)
    return [job.id for job in jobs]


def append(store: Store, job_id: str, size: int = 1) -> None:
    """The step that a training run makes most: fence, events, progress."""
    ids = [f"event-{_next()}" for _ in range(size)]

    def step(tx: Tx) -> None:
        job = tx.get(Job, job_id)
        for seq, event_id in enumerate(ids, job.last_seq + 1):
            tx.add(Event(job_id, seq, event_id, "gradient_step", NOW, DATA))
        tx.replace(attrs.evolve(job, last_seq=job.last_seq + size))

    store.transact(step)


def claim(store: Store) -> None:
    def step(tx: Tx) -> None:
        (job,) = tx.page(Job, "by_status", "queued", limit=1)
        tx.replace(attrs.evolve(job, status="running", epoch=job.epoch + 1, worker="w"))

    store.transact(step)


class Raw:
    """The same work by hand on the same tables."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
        self.connection.execute("PRAGMA busy_timeout=5000")
        self.connection.execute(f"PRAGMA synchronous={synchronous}")

    def append(self, job_id: str, size: int = 1) -> None:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        row = execute("SELECT epoch, worker, status, last_seq FROM jobs WHERE id = ?", (job_id,)).fetchone()
        for seq in range(row[3] + 1, row[3] + 1 + size):
            values = (job_id, seq, f"event-{_next()}", "gradient_step", NOW.isoformat(), json.dumps(DATA))
            execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", values)
        execute("UPDATE jobs SET last_seq = ? WHERE id = ?", (row[3] + size, job_id))
        execute("COMMIT")


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
    path = str(folder / f"append-{durability}.db")
    store = SqliteStore(path, RECORDS, durability)
    raw = Raw(path, "FULL" if durability == "power" else "NORMAL")
    ours, theirs = fill(store, 2, "running")
    one = median_us({"raw": lambda: raw.append(theirs), "store": lambda: append(store, ours)}, rounds)
    batch = median_us({"raw": lambda: raw.append(theirs, 100), "store": lambda: append(store, ours, 100)}, rounds // 10)
    raw.connection.close()
    store.close()
    return {"one": ratios(one, 1.5), "batch of 100": ratios(batch, 1.25)}


def rate(store: Store, threads: int, calls: int) -> float:
    """Appends per second by this many threads, each to its own job."""
    jobs = fill(store, threads, "running")

    def work(job_id: str) -> None:
        for _ in range(calls):
            append(store, job_id)

    crowd = [threading.Thread(target=work, args=(job_id,)) for job_id in jobs]
    started = time.perf_counter()
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return threads * calls / (time.perf_counter() - started)


def grouping(folder: Path) -> dict[str, Any]:
    store = SqliteStore(folder / "group.db", RECORDS)
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
        return lambda: claim(store)

    for queued, store in stores.items():
        fill(store, queued + rounds)
    return ratios(median_us({f"{queued} queued": turn(store) for queued, store in stores.items()}, rounds), 1.5)


def memory(rounds: int) -> dict[str, dict[str, float]]:
    store = MemoryStore(RECORDS)
    (job_id,) = fill(store, 1, "running")
    return median_us(
        {
            "empty": lambda: store.transact(lambda tx: None),
            "get": lambda: store.read(lambda snapshot: snapshot.get(Job, job_id)),
            "append": lambda: append(store, job_id),
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
            "threads, durability power": grouping(folder),
            "claim, sqlite": claims(queues, 500),
            "claim, memory": claims({n: MemoryStore(RECORDS) for n in (100, 10_000)}, 2000),
            "memory": memory(2000),
        }
        for store in queues.values():
            store.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
