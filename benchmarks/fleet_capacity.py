"""Where a fleet of a size that is not here waits for its database: python benchmarks/fleet_capacity.py [--slower 2].

A simulation, not a measurement. Steps arrive at random at one database, which serves them one after the other. A
booking, an event and a claim take the time that `python benchmarks/postgres.py` and `postgres_fleet.py` found on two
busy cores; the times of a look and a heartbeat are assumed. Prints, for each goal, how busy the database is and how
long a step waits. `--slower` multiplies all times.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Mapping

BOOKING, EVENT, CLAIM, LOOK, BEAT = 0.00017, 0.0006, 0.0025, 0.0002, 0.0003
"""Seconds of the database for a booking in a group, an event, a claim, a look at the queue, and a heartbeat."""

WORKERS_POLL, BEATS = 0.5, 3 / 30
"""Seconds between two looks of an idle process without notices, and heartbeats a second of each."""

WATCHING = 3 * 2 / 0.5
"""Looks a second at the dead by the three processes that watch over all."""

Rates = Mapping[float, float]
"""How many steps a second, by the seconds that each takes."""

GOALS: Mapping[str, Rates] = {
    "100 requests a second": {BOOKING: 100},
    "1,000 requests a second": {BOOKING: 1_000},
    "100,000 jobs a day of 1,000 events": {CLAIM: 1.2, EVENT: 1_160, BEAT: 12},
    "the same in batches of 100 events": {CLAIM: 1.2, EVENT: 11.6, BEAT: 12},
    "1,000 idle processes of workers that poll": {LOOK: 1_000 / WORKERS_POLL, BEAT: 1_000 * BEATS},
    "1,000 idle processes of workers that are woken": {LOOK: 2 * 1_000 / 30 + WATCHING, BEAT: 1_000 * BEATS},
    "1,000 idle workers of 4 processes": {LOOK: 2 * 4 / 30 + WATCHING, BEAT: 4 * BEATS},
}


def arrivals(rates: Rates, chance: random.Random) -> Iterator[tuple[float, float]]:
    """Yield the time and the seconds of one step after the other."""
    times, weights, now = list(rates), list(rates.values()), 0.0
    total = sum(weights)
    while True:
        now += chance.expovariate(total)
        yield now, chance.choices(times, weights)[0]


def waits(rates: Rates, slower: float, steps: int = 50_000, seed: int = 1) -> list[float]:
    """Return the seconds that each step waits before it is served, sorted."""
    free, found = 0.0, []
    for (arrived, takes), _ in zip(arrivals(rates, random.Random(seed)), range(steps), strict=False):
        begun = max(arrived, free)
        found.append(begun - arrived)
        free = begun + takes * slower
    return sorted(found)


def main() -> int:
    """Print a row for each goal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slower", type=float, default=1.0)
    slower = parser.parse_args().slower
    print("| goal | the database is busy | a step waits, p50 | p99 |\n| --- | --- | --- | --- |")
    for goal, rates in GOALS.items():
        busy = sum(takes * rate for takes, rate in rates.items()) * slower
        found = waits(rates, slower)
        p50, p99 = (f"{found[int(len(found) * share)] * 1000:.2f} ms" for share in (0.5, 0.99))
        print(f"| {goal} | {busy:.0%} | {p50 if busy < 1 else 'ever longer'} | {p99 if busy < 1 else 'ever longer'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
