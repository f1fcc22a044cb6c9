"""What the stores cost among more and more records, as JSON: python benchmarks/growth.py [--queued N] [size ...].

CPU microseconds, the least of turns within one run, in which stores of every size take part; "growth" is that of the
largest store over that of the smallest. A store has so many ledger rows, events of one job and queued jobs (of these at
most `--queued`, or 100,000: to queue a million takes minutes).
"""

import json
import platform
import sqlite3
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from store import DATA, NOW, Run, fill, take

from modelyard.domain.job import JobEvent
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import LedgerEntry
from modelyard.platform.usage.booking import book
from modelyard.protocols import Snapshot, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore

SIZES = (10**4, 10**5, 10**6)
MOST_QUEUED = 10**5
AT_ONCE = 1000
TURNS, CALLS = 60, 10
PRICE = Decimal("0.000004")
_next = count().__next__

Action = Callable[[], object]


def entry() -> LedgerEntry:
    """A ledger row that no other is."""
    tokens = 5, 0, 7, 0
    return LedgerEntry(f"entry-{_next():012}", "acme", "p", "k", "echo", "echo", None, *tokens, False, PRICE, NOW)


def event(number: int) -> JobEvent:
    """An event of a job that nobody works on."""
    return JobEvent("long", number, f"long-{number}", "gradient_step", number, DATA, NOW)


def add(store: Store, records: Iterable[object]) -> None:
    """Add these records in one step."""
    made = tuple(records)

    def step(tx: Any) -> None:
        for record in made:
            tx.add(record)

    store.transact(step, durable=False)


def filled(store: Store, size: int, most_queued: int) -> Mapping[str, Action]:
    """Fill a store, and return what is measured on it."""
    for first in range(0, size, AT_ONCE):
        add(store, (entry() for _ in range(AT_ONCE)))
        add(store, (event(number) for number in range(first, first + AT_ONCE)))
    fill(store, 1)
    run = Run(store)
    queued = min(size, most_queued)
    fill(store, queued, "queued")

    def booking() -> None:
        made = entry()
        store.transact(lambda tx: book(tx, made), durable=False)

    def page(cls: type, index: str, *where: str, descending: bool = False) -> Action:
        def query(snapshot: Snapshot) -> int:
            return len(snapshot.page(cls, index, *where, limit=100, descending=descending))

        return lambda: store.read(query)

    return {
        "booking": booking,
        "event": run.append,
        "first page of events": page(JobEvent, "by_job", "long"),
        "last page of events": page(JobEvent, "by_job", "long", descending=True),
        "listing of the ledger": page(LedgerEntry, "by_entity", "acme", descending=True),
        "claim": lambda: take(store),
    }


def least_us(actions: Sequence[Action]) -> list[float]:
    """The least CPU of a call of each, in turns."""
    least = [float("inf")] * len(actions)
    for _ in range(TURNS):
        for at, action in enumerate(actions):
            begun = time.process_time_ns()
            for _ in range(CALLS):
                action()
            least[at] = min(least[at], (time.process_time_ns() - begun) / CALLS / 1000)
    return least


def growth(stores: Mapping[int, Store], most_queued: int) -> dict[str, Any]:
    """What each action takes in stores of these sizes."""
    actions = {}
    for size, store in stores.items():
        print(f"filling {type(store).__name__} with {size:,}", file=sys.stderr, flush=True)
        actions[size] = filled(store, size, most_queued)
    report = {}
    for name in next(iter(actions.values())):
        times = least_us([of_store[name] for of_store in actions.values()])
        report[name] = {f"{size:,}": round(us, 1) for size, us in zip(stores, times, strict=True)}
        report[name]["growth"] = round(times[-1] / times[0], 2)
    return report


def main() -> None:
    arguments = ArgumentParser()
    arguments.add_argument("--queued", type=int, default=MOST_QUEUED)
    arguments.add_argument("sizes", type=int, nargs="*", default=SIZES)
    given = arguments.parse_args()
    sizes = given.sizes
    with tempfile.TemporaryDirectory() as folder:
        on_disk = {size: SqliteStore(Path(folder, f"{size}.db"), RECORDS, "process") for size in sizes}
        report = {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "memory": growth({size: MemoryStore(RECORDS) for size in sizes}, given.queued),
            "SQLite": growth(on_disk, given.queued),
        }
        for store in on_disk.values():
            store.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
