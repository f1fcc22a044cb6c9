"""What runs of 100,000 rows cost to compare and to read, as JSON: python benchmarks/comparison.py [rows].

The comparison is timed on predictions and scores in memory, and out of a SQLite store, where reading takes most of the
time. Each way to read is timed in a process of its own, with the memory by which that grew. The rows lie in the file in
the order of the dataset, as the engine writes them, and are read by their digests. Beside them stands the floor: a
plain loop of additions.
"""

import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modelyard import open_platform
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.aggregate import aggregate
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.pairing import compare
from modelyard.domain.evaluation.run import Prediction, Score
from modelyard.platform.evaluations.service import Evaluations
from modelyard.protocols import Tx
from modelyard.report.evaluations.comparison import ComparisonReport

ROWS = 100_000
NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
MODEL = "weave:///local/bench/object/support:step1"
SCORER = "weave:///local/bench/object/tone:v0"
TARGET = "0.6 s in memory, 2.5 times as much out of SQLite"
ADDITIONS = 10_000_000


def scored(run_id: str, seed: int, rows: int = ROWS) -> Iterator[ScoredPrediction]:
    """A run with one number a row, in the order of the dataset."""
    values = random.Random(seed)
    for n in range(rows):
        key = digest({"question": n})
        made = Prediction(
            f"{run_id}-{n}", "local", "bench", MODEL, {"question": n}, key, NOW, run_id, n, output={"value": "x"}
        )
        value = {"value": values.random()}
        score = Score(f"{made.id}-s", "local", "bench", made.id, SCORER, NOW, run_id, value, row_digest=key)
        yield made, (score,)


def in_order(found: Iterator[ScoredPrediction]) -> list[ScoredPrediction]:
    """The same in the order of the row digests."""
    return sorted(found, key=lambda one: one[0].row_digest)


def seconds(action: Callable[[], object], times: int = 3) -> float:
    """CPU seconds, the best of several."""
    spent = []
    for _ in range(times):
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


def in_memory(rows: int) -> dict[str, float]:
    one, other = in_order(scored("a", 1, rows)), in_order(scored("b", 2, rows))
    gc.collect()
    gc.freeze()  # out of a store they would come page by page, and not stand about for the collector to walk over
    return {
        "paired comparison": seconds(lambda: compare(one, other)),
        "aggregates of one run": seconds(lambda: aggregate(one)),
    }


# ---- out of a store ----------------------------------------------------------------------------------------------


def results(evaluations: Evaluations, runs: Sequence[str], **options: Any) -> int:
    """The rows of a page, read."""
    found = evaluations.results(runs, project="bench", **options)
    return sum(1 for _ in found.rows)


def compared(evaluations: Evaluations, runs: Sequence[str]) -> ComparisonReport:
    return evaluations.compare(baseline=runs[0], candidate=runs[1])


def drained(pieces: Iterator[bytes]) -> int:
    return sum(map(len, pieces))


TONE = "scores.tone"
READ: dict[str, Callable[[Evaluations, Sequence[str]], object]] = {
    "comparison": compared,
    "comparison as HTML": lambda evaluations, runs: len(compared(evaluations, runs).html),
    "comparison as CSV": lambda evaluations, runs: drained(compared(evaluations, runs).export("csv")),
    "report as HTML": lambda evaluations, runs: len(evaluations.report(runs[0]).html),
    "export as JSON Lines": lambda evaluations, runs: drained(evaluations.export(runs[0])),
    "export as CSV": lambda evaluations, runs: drained(evaluations.export(runs[0], "csv")),
    "rows of a result": lambda evaluations, runs: sum(1 for _ in evaluations.result(runs[0]).rows),
    "results of both, 100": lambda evaluations, runs: results(evaluations, runs, limit=100, summarise=False),
    "results of both, 100 with summary": lambda evaluations, runs: results(evaluations, runs, limit=100),
    "results of both, 100 by a score": lambda evaluations, runs: results(
        evaluations, runs, limit=100, sort="scores.tone"
    ),
    "results of both, all": lambda evaluations, runs: results(evaluations, runs, summarise=False),
}


def read(name: str, path: str, *runs: str) -> dict[str, float]:
    """What one way to read costs this process."""
    with open_platform(path, durability="process") as platform:
        results(platform.evaluations, runs, limit=0, summarise=False)  # what loads at first use is loaded
        before = peak()
        spent = seconds(lambda: READ[name](platform.evaluations, runs), times=1)
    return {"CPU seconds": spent, "extra memory, MiB": round(peak() - before, 1)}


def out_of_a_store(folder: Path, rows: int) -> dict[str, Any]:
    path = str(folder / "yard.db")
    with open_platform(path, durability="process") as platform:
        runs = [platform.evaluations.runs.create(MODEL, MODEL, project="bench").id for _ in range(2)]
        for seed, run in enumerate(runs):
            fill(platform, scored(run, seed, rows))
    found = {}
    for name in READ:
        done = subprocess.run(
            [sys.executable, __file__, name, path, *runs], check=True, stdout=subprocess.PIPE, text=True
        )
        found[name] = json.loads(done.stdout)
    return found


def fill(platform: Any, found: Iterator[ScoredPrediction], batch: int = 2000) -> None:
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

    platform._runtime.store.transact(step)


def main() -> None:
    if len(sys.argv) > 2:
        print(json.dumps(read(*sys.argv[1:])))
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        stored = out_of_a_store(Path(folder), rows)
    figures = {"rows": rows, "in memory, CPU seconds": in_memory(rows), "target": TARGET, "out of SQLite": stored}
    print(json.dumps({**figures, f"floor, {ADDITIONS:,} additions": seconds(additions)}, indent=2))
    print(f"python {sys.version.split()[0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
