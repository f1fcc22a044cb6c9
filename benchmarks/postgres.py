"""The PostgreSQL store beside hand-written psycopg and beside SQLite, as JSON: python benchmarks/postgres.py.

It starts a server of its own, with fsync, in a temporary folder. Compared figures are measured in turns within one run,
so that a busy machine slows all; `cpu` is the client's, in microseconds. Rates are per second.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "shared")]

from benchmarks.store import DATA, NOW, Run, fill, median_us, ratios, take  # noqa: E402

from modelyard.domain.job import JobEvent  # noqa: E402
from modelyard.domain.schema import RECORDS  # noqa: E402
from modelyard.domain.usage import LedgerEntry  # noqa: E402
from modelyard.platform.usage.booking import book  # noqa: E402
from modelyard.protocols import Store  # noqa: E402
from modelyard.stores import PostgresStore, SqliteStore  # noqa: E402
from postgres_server import PostgresServer, server_folder  # noqa: E402

ROUNDS = 100


class Raw:
    """The same work by hand on the same tables: as few round trips as can be, and one statement for many rows."""

    def __init__(self, address: str, job_id: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._connection.execute("SET search_path TO modelyard")
        self._job_id, self._next = job_id, 0

    def append(self, size: int = 1) -> None:
        """Record so many steps in one transaction, if the claim holds."""
        execute, job_id = partial(self._connection.execute, prepare=True), self._job_id
        with self._connection.pipeline():
            execute("BEGIN")
            execute("SELECT pg_advisory_xact_lock(1)")
            progress = execute("SELECT epoch, held, last_seq, step FROM job_progress WHERE job_id = %s", (job_id,))
        epoch, held, seq, step = progress.fetchone()  # type: ignore[misc]
        assert held
        rows = [(job_id, seq + n, f"raw-{seq + n}", step + n, json.dumps(DATA)) for n in range(1, size + 1)]
        with self._connection.pipeline():
            columns = "(job_id, seq, id, type, step, data, created_at, epoch)"
            if size == 1:
                sql = f"INSERT INTO job_events {columns} VALUES (%s, %s, %s, 'gradient_step', %s, %s, %s, %s)"
                execute(sql, (*rows[0], NOW, epoch))
            else:
                lists = [[*column] for column in zip(*rows, strict=True)]
                arrays = "unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[]) AS u(a, b, c, d, e)"
                select = f"SELECT a, b, c, 'gradient_step', d, e, %s, %s FROM {arrays}"
                execute(f"INSERT INTO job_events {columns} {select}", (NOW, epoch, *lists))
            update = "UPDATE job_progress SET last_seq = %s, step = %s, updated_at = %s WHERE job_id = %s"
            execute(update, (seq + size, step + size, NOW, job_id))
            execute("COMMIT")

    def page(self) -> list[JobEvent]:
        """Read 100 events, and make their records."""
        columns = "job_id, seq, id, type, step, data, created_at, epoch"
        sql = f"SELECT {columns} FROM job_events WHERE job_id = %s AND seq > %s ORDER BY seq LIMIT 100"
        rows = self._connection.execute(sql, (self._job_id, 0), prepare=True)
        return [JobEvent(*row[:5], json.loads(row[5]), *row[6:]) for row in rows]


def booked(store: Store, names: Any, entity: str = "t") -> None:
    """Book a completion, which settles what it has reserved where there is a budget."""
    entry = LedgerEntry(
        id=f"entry-{next(names)}",
        entity=entity,
        project="p",
        key_id="k",
        model="m",
        base_model="m",
        checkpoint_step=None,
        prompt_tokens=10,
        completion_tokens=10,
        cached_tokens=0,
        images=0,
        estimated=False,
        created_at=NOW,
        cost=Decimal("0.001"),
    )
    store.transact(lambda tx: book(tx, entry), durable=False)


def crowd(action: Callable[[int], object], threads: int, calls: int) -> float:
    """How often a second so many threads do this."""
    start = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        start.wait()
        for _ in range(calls):
            action(number)

    with ThreadPoolExecutor(threads) as pool:
        ended = [pool.submit(work, number) for number in range(threads)]
        start.wait()
        began = time.perf_counter()
        for each in ended:
            each.result()
    return round(threads * calls / (time.perf_counter() - began))


def claims(store: Store) -> float:
    """Claims per second by eight threads."""
    return crowd(lambda _: take(store), 8, 10)


def main() -> None:
    folder = server_folder()
    assert folder is not None, "no PostgreSQL server is installed"
    server = PostgresServer(folder, fsync="on", full_page_writes="on", autovacuum="on", max_worker_processes="8")
    try:
        with tempfile.TemporaryDirectory() as files:
            address = server.create_database()
            with (
                closing(PostgresStore(address, RECORDS)) as store,
                closing(SqliteStore(Path(files, "yard.db"), RECORDS)) as file,
            ):
                print(json.dumps(figures(address, store, file), indent=2))
    finally:
        server.close()


def figures(address: str, store: PostgresStore, file: SqliteStore) -> dict[str, Any]:
    for each in (store, file):
        fill(each, 300)
    names, raw, run = iter(range(10**9)), Raw(address, take(store).job_id), Run(store)
    for _ in range(10):
        for action in (raw.append, run.append, raw.page, partial(raw.append, 100), partial(run.append, 100)):
            action()
        booked(store, names)
    job = run._claim.job_id

    def page() -> list[JobEvent]:
        return store.read(lambda snapshot: snapshot.page(JobEvent, "by_job", job, after=(0,)))

    one = median_us({"raw": raw.append, "store": run.append}, ROUNDS)
    many = median_us({"raw": lambda: raw.append(100), "store": lambda: run.append(100)}, ROUNDS // 4)
    pages = median_us({"raw": raw.page, "store": page}, ROUNDS)
    booking = median_us({"sqlite": lambda: booked(file, names), "store": lambda: booked(store, names)}, ROUNDS)
    kinds: dict[str, Store] = {"sqlite": file, "postgresql": store}
    runs = {name: [Run(each) for _ in range(64)] for name, each in kinds.items()}
    return {
        "append one": ratios(one, 1.25),
        "append 100": ratios(many, 1.5),
        "page of 100": ratios(pages, 1.5),
        "booking, beside SQLite": ratios(booking, 0),
        "64 threads append": {name: crowd(partial(_append, runs[name]), 64, 10) for name in kinds},
        "64 threads book": {name: crowd(lambda _, e=each: booked(e, names), 64, 10) for name, each in kinds.items()},
        "8 threads claim": {name: claims(each) for name, each in kinds.items()},
    }


def _append(runs: list[Run], number: int) -> None:
    runs[number].append()


if __name__ == "__main__":
    main()
