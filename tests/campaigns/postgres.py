"""A PostgreSQL server that is killed, and backends that are ended, under load: what was acknowledged must be there.

    python -m tests.campaigns.postgres                             10 kills
    python -m tests.campaigns.postgres --kills 100 --seed 7        more, at other moments
    python -m tests.campaigns.postgres --sabotage                  must exit with 1

Two stores write from eight threads: each step adds a record and counts it. Meanwhile backends of the writers are ended
at random moments, and each round ends with a crash of the server, which is started again. Prints a report
as JSON; fails when an acknowledged record is missing, a refused one is there, or the count is not that of the records.
`--sabotage` has a store take a commit whose outcome is in doubt for one that took place.
"""

import argparse
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from modelyard.errors import OutcomeUnknown, StoreError
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.parts.postgres.writer import GroupWriter
from modelyard.protocols import Tx
from modelyard.stores import PostgresStore
from modelyard.testing import CONTRACT_RECORDS
from postgres_server import PostgresServer, server_folder

WRITERS = 8
PATIENCE = 0.5
_BACKENDS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'modelyard'"


@attrs.define
class Outcomes:
    """The numbers of the records, by what was reported to their writers."""

    acknowledged: list[int] = attrs.field(factory=list)
    unknown: list[int] = attrs.field(factory=list)
    refused: list[int] = attrs.field(factory=list)


def add_counted(number: int, tx: Tx) -> None:
    tx.add(Item("kept", number))
    counter = tx.get(Counter, "kept")
    tx.replace(attrs.evolve(counter, value=counter.value + 1))


def write(store: PostgresStore, numbers: Any, ended: threading.Event, outcomes: Outcomes) -> None:
    while not ended.is_set():
        number = next(numbers)
        try:
            store.transact(lambda tx, n=number: add_counted(n, tx))  # type: ignore[misc]
        except OutcomeUnknown:
            outcomes.unknown.append(number)
        except StoreError:
            outcomes.refused.append(number)
        else:
            outcomes.acknowledged.append(number)


def load_and_kill(server: PostgresServer, stores: list[PostgresStore], numbers: Any, chance: random.Random) -> Outcomes:
    """Write from all threads, end backends now and then, and kill the server."""
    outcomes, ended = Outcomes(), threading.Event()
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(write, stores[at % 2], numbers, ended, outcomes) for at in range(WRITERS)]
        for _ in range(3):
            time.sleep(chance.uniform(0.05, 0.3))
            with suppress(psycopg.Error):
                server.execute(_BACKENDS)
        time.sleep(chance.uniform(0.05, 0.3))
        server.stop("immediate")
        ended.set()
        for writer in writers:
            writer.result()
    server.start()
    return outcomes


def faults_of(outcomes: Outcomes, kept: set[int], count: int) -> list[str]:
    return [
        *(f"{number} was acknowledged and is missing" for number in sorted(set(outcomes.acknowledged) - kept)),
        *(f"{number} was refused and is there" for number in sorted(set(outcomes.refused) & kept)),
        *([f"{count} were counted and {len(kept)} are there"] if count != len(kept) else []),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="how often the server is killed (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("--sabotage", action="store_true", help="take a doubtful commit for one that took place")
    args = parser.parse_args()
    if args.sabotage:
        GroupWriter._was_stored = lambda self: True  # type: ignore[method-assign]
    folder = server_folder()
    assert folder is not None, "no PostgreSQL server is installed"
    server, whole, chance = PostgresServer(folder, fsync="on"), Outcomes(), random.Random(args.seed)
    try:
        address = server.create_database()
        stores = [PostgresStore(address, CONTRACT_RECORDS, patience=PATIENCE) for _ in range(2)]
        stores[0].transact(lambda tx: tx.add(Counter("kept")))
        numbers, faults = iter(range(10**9)), []
        for _ in range(args.kills):
            seen = load_and_kill(server, stores, numbers, chance)
            for name in ("acknowledged", "unknown", "refused"):
                getattr(whole, name).extend(getattr(seen, name))
            items, counter = stores[0].read(
                lambda s: (s.select(Item, ("number",), "by_shelf", "kept", limit=10**7), s.get(Counter, "kept"))
            )
            faults += faults_of(seen, {number for (number,) in items}, counter.value)
        for store in stores:
            store.close()
    finally:
        server.close()
    print(json.dumps({name: len(getattr(whole, name)) for name in attrs.asdict(whole)} | {"faults": faults}, indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
