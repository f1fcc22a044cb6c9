"""What comparing two runs of 100,000 rows costs, as JSON: python benchmarks/comparison.py.

The comparison is timed on predictions and scores in memory, and out of a SQLite store, where reading takes most of the
time. Beside them stands the floor: a plain loop of additions.
"""

import gc
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modelyard import open_platform
from modelyard.domain.aggregate import aggregate
from modelyard.domain.canonical import digest
from modelyard.domain.comparison import compare
from modelyard.domain.metric import Judged
from modelyard.domain.prediction import Prediction, Score
from modelyard.protocols import Tx

ROWS = 100_000
NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
MODEL = "weave:///local/bench/object/support:step1"
SCORER = "weave:///local/bench/object/tone:v0"
TARGET = 2.0
ADDITIONS = 10_000_000


def judged(run_id: str, seed: int) -> Iterator[Judged]:
    """A run with one number a row, in the order of the row digests."""
    values = random.Random(seed)
    rows = sorted((digest({"question": n}), n) for n in range(ROWS))
    for key, n in rows:
        made = Prediction(
            f"{run_id}-{n}", "local", "bench", MODEL, {"question": n}, key, NOW, run_id, n, output={"value": "x"}
        )
        value = {"value": values.random()}
        score = Score(f"{made.id}-s", "local", "bench", made.id, SCORER, NOW, run_id, value, row_digest=key)
        yield made, (score,)


def seconds(action: Any) -> float:
    """CPU seconds, the best of three."""
    spent = []
    for _ in range(3):
        started = time.process_time()
        action()
        spent.append(time.process_time() - started)
    return round(min(spent), 2)


def additions() -> None:
    total = 0
    for number in range(ADDITIONS):
        total += number


def peak() -> float:
    """The most MiB that this process ever had."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def in_memory() -> dict[str, float]:
    one, other = list(judged("a", 1)), list(judged("b", 2))
    gc.collect()
    gc.freeze()  # out of a store they would come page by page, and not stand about for the collector to walk over
    return {
        "paired comparison": seconds(lambda: compare(one, other)),
        "aggregates of one run": seconds(lambda: aggregate(one)),
    }


def out_of_a_store(folder: Path) -> dict[str, float]:
    with open_platform(folder / "yard.db", durability="process") as platform:
        runs = [platform.evaluations.create(MODEL, MODEL, project="bench") for _ in range(2)]
        for seed, run in enumerate(runs):
            fill(platform, judged(run.id, seed))
        before = peak()
        spent = seconds(lambda: platform.evaluations.compare(*runs))
        report = platform.evaluations.report(runs[0])
        page = len(report.html) / 1024
    return {
        "comparison, read from SQLite": spent,
        "extra memory, MiB": round(peak() - before, 1),
        "page of a run, KiB": round(page, 1),
    }


def fill(platform: Any, found: Iterator[Judged], batch: int = 2000) -> None:
    records: list[Any] = []
    for prediction, scores in found:
        records += [prediction, *scores]
        if len(records) >= batch:
            add(platform, records)
            records = []
    add(platform, records)


def add(platform: Any, records: list[Any]) -> None:
    def step(tx: Tx) -> None:
        for record in records:
            tx.add(record)

    platform.ports.store.transact(step)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stored = out_of_a_store(Path(folder))
    figures = {"rows": ROWS, **in_memory(), "target": TARGET, **stored}
    print(json.dumps({**figures, f"floor, {ADDITIONS:,} additions": seconds(additions)}, indent=2))
    print(f"python {sys.version.split()[0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
