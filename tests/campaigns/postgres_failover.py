"""A PostgreSQL server that is killed under load, and its standby that takes over: what was acknowledged must be there.

    python -m tests.campaigns.postgres_failover                    3 failovers
    python -m tests.campaigns.postgres_failover --failovers 20     more
    python -m tests.campaigns.postgres_failover --sabotage         must exit with 1

Each round starts two servers, the second a synchronous standby of the first. Two stores write from eight threads; the
first server is killed at a random moment, and the standby is promoted. The stores find it by the hosts of their
address. Prints a report as JSON; fails when an acknowledged record is missing, a refused one is there, or the count is
not that of the records. With `--sabotage` commits do not wait for the standby, which is cut off for a while.
"""

import argparse
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
from tests.campaigns.postgres import WRITERS, Outcomes, faults_of, write

from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.stores import PostgresStore
from modelyard.testing import CONTRACT_RECORDS

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from postgres_server import PostgresServer, server_folder

PATIENCE = 60.0


def fail_over(chance: random.Random, sabotage: bool) -> tuple[Outcomes, list[str], float]:
    """Run one round. Returns the outcomes, what is wrong, and the seconds from the kill to the next commit."""
    folder = server_folder()
    assert folder is not None, "no PostgreSQL server is installed"
    primary = PostgresServer(folder, fsync="on")
    standby = PostgresServer(folder, of=primary)
    try:
        primary.create_database()
        if not sabotage:
            primary.follow_synchronously()
        hosts = f"{primary.folder},{standby.folder}"
        address = f"postgresql://yard@/yard1?host={hosts}&target_session_attrs=read-write"
        stores = [PostgresStore(address, CONTRACT_RECORDS, patience=PATIENCE) for _ in range(2)]
        stores[0].transact(lambda tx: tx.add(Counter("kept")))
        outcomes, seconds = load_and_promote(primary, standby, stores, chance, sabotage)
        items, counter = stores[0].read(
            lambda s: (s.select(Item, ("number",), "by_shelf", "kept", limit=10**7), s.get(Counter, "kept"))
        )
        for store in stores:
            store.close()
        return outcomes, faults_of(outcomes, {number for (number,) in items}, counter.value), seconds
    finally:
        standby.close()
        primary.close()


def load_and_promote(
    primary: PostgresServer,
    standby: PostgresServer,
    stores: list[PostgresStore],
    chance: random.Random,
    sabotage: bool,
) -> tuple[Outcomes, float]:
    outcomes, ended, numbers = Outcomes(), threading.Event(), iter(range(10**9))
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(write, stores[at % 2], numbers, ended, outcomes) for at in range(WRITERS)]
        time.sleep(chance.uniform(0.2, 1.0))
        if sabotage:
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            time.sleep(1.0)
        primary.stop("immediate")
        killed, before = time.monotonic(), len(outcomes.acknowledged)
        standby.promote()
        while len(outcomes.acknowledged) == before:
            time.sleep(0.01)
        seconds = time.monotonic() - killed
        time.sleep(0.2)
        ended.set()
        for writer in writers:
            writer.result()
    return outcomes, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failovers", type=int, default=3, help="how often a standby takes over (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("--sabotage", action="store_true", help="do not wait for the standby, and cut it off")
    args = parser.parse_args()
    whole, faults, pauses, chance = Outcomes(), [], [], random.Random(args.seed)
    for _ in range(args.failovers):
        seen, wrong, seconds = fail_over(chance, args.sabotage)
        for name in ("acknowledged", "unknown", "refused"):
            getattr(whole, name).extend(getattr(seen, name))
        faults += wrong
        pauses.append(round(seconds, 2))
    report = {name: len(getattr(whole, name)) for name in attrs.asdict(whole)}
    print(json.dumps(report | {"seconds without a commit": pauses, "faults": faults[:20]}, indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
