"""An evaluation whose process is killed: what was stored is never requested again, and what may be is marked."""

import subprocess
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from modelyard import Settings, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.evaluation.run import RunState
from modelyard.platform.evaluations.row_evaluation import RunLimits
from warm_python import WarmPython

pytestmark = pytest.mark.crash

ROWS, CONCURRENCY = 200, 4
UNCOMMITTED = RunLimits(concurrency=CONCURRENCY).uncommitted

PROGRAM = """
import os, signal, sys, threading
from modelyard import open_platform

path, log, deadly = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock = threading.Lock()

def model(row):
    with lock:
        with open(log, "a") as file:
            file.write(f"{row['number']}\\n")
        if row["number"] == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
    return row["prompt"]

with open_platform(path, durability="process") as platform:
    rows = ({"prompt": f"q{at}", "expected": f"q{at}", "number": at} for at in range(int(sys.argv[4])))
    platform.evaluations.run("e", model, rows, project="p", concurrency=int(sys.argv[5]))
"""


@pytest.mark.parametrize("deadly", [0, 7, 123, ROWS - 1])
def test_a_kill_repeats_no_stored_row_and_only_calls_that_were_not_committed(
    warm_python: WarmPython, tmp_path: Path, deadly: int
) -> None:
    path, log = tmp_path / "yard.db", tmp_path / "calls"
    arguments = [path, log, *map(str, (deadly, ROWS, CONCURRENCY))]
    killed = subprocess.run([warm_python.executable, "-c", PROGRAM, *arguments], check=False, timeout=300)
    assert killed.returncode == -9
    with open_platform(path, durability="process", settings=Settings(lease=0.2, poll=0.02)) as platform:
        (run,) = platform.evaluations.runs.list(project="p")
        assert run.state is RunState.RUNNING
        stored = {row.index for row in platform.evaluations.result(run.id).rows}
        before = [int(line) for line in log.read_text().split()]
        after: list[int] = []

        def model(row: Mapping[str, Any]) -> str:
            after.append(row["number"])
            return str(row["prompt"])

        result = platform.evaluations.resume(run.id, model=model)
        assert (result.score, len(result.rows)) == (1.0, ROWS)
        assert sorted(after) == sorted(set(range(ROWS)) - stored)
        repeated = Counter(before + after)
        assert max(repeated.values()) <= 2
        assert sum(count - 1 for count in repeated.values()) <= UNCOMMITTED
        assert result.run.summary is not None
        assert result.run.summary["possibly_repeated"] == min(UNCOMMITTED, ROWS - len(stored))
        assert list(platform._runtime.artifacts.names()) == []


def test_five_times_the_rows_take_no_more_memory(tmp_path: Path) -> None:
    filler = "x" * 3_000

    def rows(count: int) -> Iterator[dict[str, Any]]:
        return ({"prompt": f"{at} {filler}", "expected": "x"} for at in range(count))

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            result = platform.evaluations.run("e", "echo", rows(count), project="p")
            assert sum(row.score == 0.0 for row in result.rows) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    with open_platform(tmp_path / "yard.db", durability="process", backend=EchoBackend()) as platform:
        few, many = peak(300), peak(1_500)  # a row is 6 kB, in and out: keeping them would take 7.2 MB more
    assert many < few + 2**22  # what waits for its commit is bounded, and more of it waits on a busy machine
