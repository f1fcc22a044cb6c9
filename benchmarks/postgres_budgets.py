"""Servers on one PostgreSQL whose requests share a budget, or do not, as JSON: python benchmarks/postgres_budgets.py.

Each of four servers is a process with 16 threads. A request is admitted in one step and booked in another, as a
completion is; by hand it is two transactions on a connection of its thread, which change the row of the budget.
Requests a second, in turns within one run. At the end no budget may be overspent, and budgets and totals must agree.
"""

import json
import multiprocessing
import statistics
import sys
import threading
import time
from contextlib import closing
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "shared")]

from benchmarks.store import NOW  # noqa: E402

from modelyard import open_platform  # noqa: E402
from modelyard.domain.identity import Limits  # noqa: E402
from modelyard.domain.schema import RECORDS  # noqa: E402
from modelyard.domain.usage import ENTITY, KEY_OF_API, Admission, Budget, LedgerEntry, UsageTotal  # noqa: E402
from modelyard.domain.worker import PROCESS  # noqa: E402
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection  # noqa: E402
from modelyard.platform.runtime import Runtime  # noqa: E402
from modelyard.platform.usage.admission import admit  # noqa: E402
from modelyard.platform.usage.booking import book, settle  # noqa: E402
from modelyard.platform.usage.presence import presence_of  # noqa: E402
from modelyard.protocols import DomainStep, Tx  # noqa: E402
from modelyard.stores import PostgresStore  # noqa: E402
from postgres_server import PostgresServer, server_folder  # noqa: E402

SERVERS, THREADS, REQUESTS, ROUNDS = 4, 16, 25, 3
COST = Decimal("0.001")
SPAWN = multiprocessing.get_context("spawn")
BY_HAND = "one budget by hand"
KINDS = ("one budget", "a budget for each server", "no budget", BY_HAND)

_RESERVE = "UPDATE modelyard.budgets SET reserved = (reserved::numeric + 0.002)::text WHERE id = 'raw'"
_SPEND = (
    "UPDATE modelyard.budgets SET reserved = (reserved::numeric - 0.002)::text,"
    " spent = (spent::numeric + 0.001)::text WHERE id = 'raw'"
)
_LEDGER = """INSERT INTO modelyard.ledger
    (id, entity, project, key_id, model, base_model, prompt_tokens, completion_tokens, cached_tokens, images, estimated,
     created_at, cost, trained_tokens)
    VALUES (%s, 'raw', 'p', 'k', 'm', 'm', 10, 10, 0, 0, false, %s, '0.001', 0)"""
_TOTAL = """INSERT INTO modelyard.usage_totals AS kept
    VALUES ('raw', '2026-01-01', 'p', 'k', 'm', 1, 10, 0, 10, 0, '0.001', 0)
    ON CONFLICT (entity, day, project, key_id, model) DO UPDATE SET requests = kept.requests + 1,
    prompt_tokens = kept.prompt_tokens + 10, completion_tokens = kept.completion_tokens + 10,
    cost = (kept.cost::numeric + excluded.cost::numeric)::text"""


def by_hand(connection: Any, name: str, seconds: float) -> None:
    """Reserve and book in two transactions, each of one round trip that takes so much more time."""
    for statements in ([(_RESERVE, None)], [(_LEDGER, (name, NOW)), (_TOTAL, None), (_SPEND, None)]):
        time.sleep(seconds)
        with connection.pipeline():
            connection.execute("BEGIN", prepare=True)
            connection.execute("SET LOCAL synchronous_commit TO off")
            for sql, values in statements:
                connection.execute(sql, values, prepare=True)
            connection.execute("COMMIT", prepare=True)


def request(runtime: Runtime, entity: str, name: str) -> None:
    """Admit a request and book it."""
    here = presence_of(runtime)
    asked = Admission(name, "k", entity, (), COST * 2, NOW)
    step = partial(admit, admission=asked, limits=Limits(), least=lambda: COST, here=here)
    domains = [(ENTITY, entity), (KEY_OF_API, "k"), (PROCESS, here.id)]
    held = runtime.store.transact(DomainStep(step, domains), durable=False)
    entry = LedgerEntry(name, entity, "p", "k", "m", "m", None, 10, 0, 10, 0, False, COST, NOW)

    def record(tx: Tx) -> None:
        if book(tx, entry) and held is not None:
            settle(tx, held, entry.cost)

    runtime.store.transact(DomainStep(record, [(ENTITY, entity)]), durable=False)


def server(number: int, address: str, milliseconds: int, start: Any, answers: Any) -> None:
    """Answer requests in each way, in turns with the other servers. Each round trip takes so much more time."""
    round_trip = PipelinedConnection.round_trip

    def later(connection: PipelinedConnection, statements: Any) -> Any:
        time.sleep(milliseconds / 1000)
        return round_trip(connection, statements)

    PipelinedConnection.round_trip = later  # type: ignore[method-assign]
    names = count()
    own = threading.local()

    def one(kind: str) -> None:
        name = f"{milliseconds}-{number}-{next(names)}"
        if kind != BY_HAND:
            entity = {"one budget": "shared", "no budget": "free"}.get(kind, f"own-{number}")
            request(platform._runtime, entity, name)
            return
        if not hasattr(own, "connection"):
            own.connection = psycopg.connect(address, autocommit=True)
        by_hand(own.connection, f"raw-{name}", milliseconds / 1000)

    def work(kind: str, together: threading.Barrier) -> None:
        one(kind)
        together.wait()
        together.wait()
        for _ in range(REQUESTS):
            one(kind)

    with open_platform(address, artifacts="/tmp/yard-budgets") as platform:
        for kind in KINDS * ROUNDS:
            together = threading.Barrier(THREADS + 1)
            threads = [threading.Thread(target=work, args=(kind, together)) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            together.wait()
            start.wait()
            together.wait()
            began = time.perf_counter()
            for thread in threads:
                thread.join()
            answers.put((kind, time.perf_counter() - began))
            start.wait()


def measure(address: str, milliseconds: int) -> dict[str, Any]:
    """Measure all kinds, with round trips that take so many milliseconds more."""
    start, answers = SPAWN.Barrier(SERVERS + 1), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=server, args=(number, address, milliseconds, start, answers)) for number in range(SERVERS)
    ]
    for process in processes:
        process.start()
    rates: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for kind in KINDS * ROUNDS:
        start.wait()
        slowest = max(answers.get()[1] for _ in processes)
        start.wait()
        rates[kind].append(round(SERVERS * THREADS * REQUESTS / slowest))
    for process in processes:
        process.join()
    middle = {kind: statistics.median(found) for kind, found in rates.items()}
    floor = middle[BY_HAND]
    return {"a second": rates, "over by hand": {kind: round(rate / floor, 2) for kind, rate in middle.items()}}


def check(store: PostgresStore) -> dict[str, int]:
    """Return how many requests each budget has paid, all of them and none twice."""
    found = {}
    requests = 2 * SERVERS * THREADS * (REQUESTS + 1) * ROUNDS
    for entity in ("shared", "raw", *(f"own-{number}" for number in range(SERVERS))):
        budget = store.read(lambda s, e=entity: s.get(Budget, e))  # type: ignore[misc]
        totals = store.read(lambda s, e=entity: s.page(UsageTotal, "by_entity", e))  # type: ignore[misc]
        paid = sum(total.requests for total in totals)
        assert (budget.reserved, budget.spent) == (0, COST * paid), (entity, budget, paid)
        assert paid == (requests if entity in ("shared", "raw") else requests // SERVERS), (entity, paid)
        found[entity] = paid
    return found


def main() -> None:
    folder = server_folder()
    assert folder is not None, "no PostgreSQL server is installed"
    postgres = PostgresServer(
        folder, fsync="on", full_page_writes="on", autovacuum="on", max_worker_processes="8", max_connections="200"
    )
    try:
        address = postgres.create_database()
        with closing(PostgresStore(address, RECORDS)) as store:
            for entity in ("shared", "raw", *(f"own-{number}" for number in range(SERVERS))):
                store.transact(lambda tx, e=entity: tx.add(Budget(e, e, Decimal(10_000))))  # type: ignore[misc]
            far = {f"{more} ms more": measure(address, more) for more in (0, 1)}
            print(json.dumps({**far, "requests paid": check(store)}, indent=1))
    finally:
        postgres.close()


if __name__ == "__main__":
    main()
