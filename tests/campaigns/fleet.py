"""Four servers and four workers over one PostgreSQL, ended in any way under load: nothing is lost or spent twice.

    python -m tests.campaigns.fleet                             3 rounds
    python -m tests.campaigns.fleet --rounds 30 --seed 7        more, at other moments
    python -m tests.campaigns.fleet --sabotage                  must exit with 1

In each round a server and a worker are killed (SIGKILL) or stopped (SIGTERM) while callers spend a budget and a run in
shards is worked on. Prints a report as JSON; fails when a budget is overrun, an answered request is not booked, or the
summary of a run is another than that of one process. `--sabotage` has the servers see ten times the
budget that is checked.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from fleet_site import SIZE, Fleet
from modelyard import Platform, Pricing
from polling import until
from postgres_server import PostgresServer, server_folder

PRICE = Decimal("0.01")
AFFORDABLE = 60
ROWS = [{"prompt": f"row {n}", "expected": f"row {n}" if n % 3 else "other"} for n in range(60)]


def priced(platform: Platform, secret_of: str) -> str:
    """Offer a model with a price, and return the secret of a new key of an entity."""
    echo = platform.catalogue.get("echo")
    platform.catalogue.register(attrs.evolve(echo, id="priced", pricing=Pricing(request=PRICE)), answers_as="echo")
    secret: str = platform.keys.create(secret_of).secret
    return secret


def numbers(summary: Any) -> dict[str, Any]:
    """Return a summary without the count of rows that a worker which ended may have asked twice: it is to differ."""
    return {name: value for name, value in summary.items() if name != "possibly_repeated"}


def one_round(fleet: Fleet, number: int, chance: random.Random, more: int) -> dict[str, Any]:
    """Spend a budget and work on a run while a server and a worker end; return what was seen."""
    entity, platform = f"spender-{number}", fleet.platform
    secret = priced(platform, entity)
    platform.usage.set_budget(AFFORDABLE * PRICE * more, entity=entity)
    run = platform.evaluations.submit("quiz", "echo", ROWS, seed=5, shards=SIZE)
    ended, statuses, lost = threading.Event(), Counter[int](), Counter[str]()

    def spend(first: int) -> None:
        at = first
        while not ended.is_set():
            at += 1
            try:
                statuses[fleet.complete(at, secret, "priced").status] += 1
            except OSError as error:
                lost[type(error).__name__] += 1

    how = chance.choice([signal.SIGKILL, signal.SIGTERM])
    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(spend, first) for first in range(4)]
        try:
            fleet.restart(chance.randrange(SIZE), how)
            summary = numbers(platform.evaluations.wait(run.id, timeout=180).run.summary)
            until(lambda: statuses[402] >= 2 * SIZE or statuses[200] > AFFORDABLE)
        finally:
            ended.set()
        for caller in callers:
            caller.result()
    budget, totals = platform.usage.get_budget(entity=entity), list(platform.usage.total(entity=entity))
    assert budget is not None
    booked = sum(total.requests for total in totals)
    answered = statuses[200]
    right = numbers(platform.evaluations.run("quiz", "echo", ROWS, seed=5).run.summary)
    return {
        "how": how.name,
        "statuses": dict(statuses),
        "lost": dict(lost),
        "booked": booked,
        "spent": str(budget.spent),
        "broken": [
            *(["overrun"] if budget.spent > AFFORDABLE * PRICE or answered > AFFORDABLE else []),
            *(["not booked"] if not answered <= booked <= answered + sum(lost.values()) else []),
            *(["spent is not booked"] if budget.spent != booked * PRICE else []),
            *(["summary"] if summary != right else []),
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    options = parser.parse_args()
    folder, chance = server_folder(), random.Random(options.seed)
    assert folder is not None, "no PostgreSQL is installed"
    postgres = PostgresServer(folder)
    try:
        with tempfile.TemporaryDirectory() as artifacts:
            more = 10 if options.sabotage else 1
            with Fleet(postgres.create_database(), Path(artifacts)) as fleet:
                rounds = [one_round(fleet, number, chance, more) for number in range(options.rounds)]
    finally:
        postgres.close()
    print(json.dumps(rounds, indent=1))
    return int(any(one["broken"] for one in rounds))


if __name__ == "__main__":
    sys.exit(main())
