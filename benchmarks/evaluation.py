"""What the engine adds to a row beside a plain loop, and its memory, as JSON: python benchmarks/evaluation.py [rows].

The loop calls the same model and the same scorer and keeps the scores in a list. Both use a SQLite file that survives
the death of the process. They take turns within one run, because an absolute time says more about the machine.
"""

import json
import platform as machine
import sys
import tempfile
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.platform.platform import Platform

ROUNDS, ROWS = 9, 1_500
TARGETS = {1: 80, 8: 50, 64: 40}
"""Microseconds a row that the engine may add, by concurrency."""

FEW, MANY = 1_000, 100_000


def scorer(output: str, row: Mapping[str, Any]) -> bool:
    return output == row["expected"]


def rows(count: int) -> Iterator[dict[str, Any]]:
    return ({"prompt": f"question number {at}", "expected": f"question number {at}"} for at in range(count))


def plain_loop(platform: Platform, count: int) -> None:
    scores = []
    for row in rows(count):
        answer = platform.chat.complete(model="echo", messages=row["prompt"], project="bench")
        scores.append(scorer(answer.text, row))
    assert all(scores)


def engine(platform: Platform, count: int, **options: Any) -> None:
    result = platform.evaluations.run("bench", "echo", rows(count), scorer, project="bench", **options)
    assert result.score == 1.0


def named(concurrency: int) -> str:
    return f"engine, concurrency {concurrency}"


def microseconds_a_row(platform: Platform) -> dict[str, float]:
    calls: dict[str, Callable[[], None]] = {
        "plain loop": lambda: plain_loop(platform, ROWS),
        **{named(number): partial(engine, platform, ROWS, concurrency=number) for number in TARGETS},
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begun = time.process_time_ns()
            call()
            times[name].append((time.process_time_ns() - begun) / ROWS / 1000)
    return {name: round(min(found), 1) for name, found in times.items()}


def peak_mib(platform: Platform, count: int) -> float:
    """The most that Python objects held beyond what there was before."""
    tracemalloc.start()
    engine(platform, count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(peak / 2**20, 2)


def pace() -> float:
    """How fast this machine is at this hour; a quiet one of today takes 6 to 10."""
    return round(min(timeit.repeat(lambda: sum(range(1000)), timer=time.process_time, number=500)) / 500 * 1e6, 1)


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    with (
        tempfile.TemporaryDirectory() as folder,
        open_platform(Path(folder) / "yard.db", durability="process", backend=EchoBackend()) as platform,
    ):
        figures = microseconds_a_row(platform)
        peaks = {count: peak_mib(platform, count) for count in (FEW, many)}
    added = {name: round(us - figures["plain loop"], 1) for name, us in figures.items() if name != "plain loop"}
    report = {
        "python": machine.python_version(),
        "sum(range(1000)), CPU us, for scale": pace(),
        "a row, CPU us": figures,
        "added by the engine, CPU us": added,
        "targets": {named(number): target for number, target in TARGETS.items()},
        "added, times the plain loop": {name: round(us / figures["plain loop"], 2) for name, us in added.items()},
        "within the targets": all(added[named(number)] <= target for number, target in TARGETS.items()),
        "peak of Python's memory by rows, MiB": peaks,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
