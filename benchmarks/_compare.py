"""Two commits next to each other: the same workloads, in turns within one run, and their instructions where countable.

The workloads are those of this checkout. Each commit has a process of its own for each workload; both are warm before
the first turn, and who comes first changes from turn to turn. "B / A" is the median of the ratios of each turn.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks._instructions import WORKLOADS as SCRIPT
from benchmarks._instructions import can_count, environment, per_call
from benchmarks._revisions import source_of
from benchmarks._workloads import REPEATABLE, WORKLOADS

TURNS = 20
TURN_NS = 50_000_000
"""CPU of a turn, about."""


class CannotRun(Exception):
    """A commit cannot run this workload, for a reason that its process has printed."""


class Worker:
    """A process that runs a workload of one commit when it is asked."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self._name = process, name
        self._line()

    def spend(self, calls: int) -> int:
        """CPU in nanoseconds of so many calls. Raises `CannotRun` where the process has ended in one of them."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no line, either
            self._process.stdin.write(f"{calls}\n")
            self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise CannotRun(self._name)
        return line


@contextmanager
def worker(source: Path, name: str) -> Iterator[Worker]:
    command = [sys.executable, str(SCRIPT), name]
    with subprocess.Popen(
        command, env=environment(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Worker(process, name)
        finally:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # of a process that has ended
                process.stdin.close()


def in_turns(sources: Sequence[Path], name: str) -> dict[str, Any]:
    """CPU microseconds a call of both, and the ratios."""
    with ExitStack() as stack:
        a, b = (stack.enter_context(worker(source, name)) for source in sources)
        for one in (a, b):
            one.spend(1)
        calls = max(1, TURN_NS // max(a.spend(1), 1))
        turns = []
        for turn in range(TURNS):
            pair = (a, b) if turn % 2 else (b, a)
            spent = {one: one.spend(calls) / calls / 1000 for one in pair}
            turns.append((spent[a], spent[b]))
    return {
        "A": _figures([first for first, _ in turns]),
        "B": _figures([second for _, second in turns]),
        "B / A": round(statistics.median(second / first for first, second in turns), 3),
    }


def _figures(found: Sequence[float]) -> dict[str, float]:
    return {"minimum": round(min(found), 1), "median": round(statistics.median(found), 1)}


def compare(first: str, second: str, *names: str) -> Iterator[dict[str, Any]]:
    """The report of these workloads, or of all that both commits can run, again and again as it grows.

    Raises `SystemExit` for a name that does not exist, or that was named and cannot run.
    """
    if unknown := set(names) - set(WORKLOADS):
        raise SystemExit(f"no workload {', '.join(sorted(unknown))}; there are: {', '.join(WORKLOADS)}")
    report: dict[str, Any] = {"A": first, "B": second, "call, CPU us": {}, "call, instructions": {}}
    with source_of(first) as a, source_of(second) as b:
        for name in names or WORKLOADS:
            print(name, file=sys.stderr, flush=True)
            try:
                report["call, CPU us"][name] = in_turns((a, b), name)
            except CannotRun:
                if names:
                    raise SystemExit(f"a commit cannot run {name}, for the reason above") from None
                print(f"left out, as a commit cannot run it: {name}", file=sys.stderr, flush=True)
            yield report
        counted = [name for name in report["call, CPU us"] if name in REPEATABLE] if can_count() else []
        before, after = per_call(a, counted), per_call(b, counted)
    for name in counted:
        ratio = round(after[name] / before[name], 3)
        report["call, instructions"][name] = {"A": before[name], "B": after[name], "B / A": ratio}
    yield report


def main(first: str, second: str, *names: str) -> None:
    """Print the report as JSON: what was measured, also where something fails or it is interrupted."""
    report: dict[str, Any] = {}
    try:
        for grown in compare(first, second, *names):
            report = grown
    finally:
        print(json.dumps(report, indent=2))
