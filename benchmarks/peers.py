"""Next to other libraries, in one run: python benchmarks/peers.py [--write] [--turns N] [comparison ...]

Each peer is installed by its pins into an environment of its own, cached in $MODELYARD_ENVS or the user's cache folder,
and does its work in a process of its own, in turns with ours. CPU time counts, of processes that are warm and, where
the system allows it, pinned to one processor. With `--write` the tables replace those of docs/explanation/speed.md;
otherwise they are printed, and JSON with `--json`.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "explanation" / "speed.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
TURNS = 15
TURN_NS = 40_000_000

UVICORN = ("uvicorn[standard]==0.54.0",)

PINS: dict[str, tuple[str, ...]] = {
    "langchain": ("langchain-core==1.6.13",),
    "pydantic-ai": ("pydantic-ai-slim==2.68.0",),
    "llm": ("llm==0.36",),
    "bare": (),
    "starlette": ("starlette==1.10.0",),
    "fastapi": ("fastapi==0.165.0",),
    "litellm": ("litellm==1.99.4",),
    "bare-served": UVICORN,
    "starlette-served": (*UVICORN, "starlette==1.10.0"),
    "fastapi-served": (*UVICORN, "fastapi==0.165.0"),
    "sqlite3": (),
    "sqlite3-events": (),
    "mlflow": ("mlflow-skinny==3.17.2", "sqlalchemy<3", "alembic"),
    "optuna": ("optuna==5.0.0",),
}
"""What is installed for each peer, besides the standard library."""


class Compared:
    """What is compared: our workload and those of the peers. A call of each may do several pieces of work."""

    def __init__(self, title: str, ours: tuple[str, int], peers: dict[str, tuple[str, int]]) -> None:
        self.title, self.ours, self.peers = title, ours, peers


COMPARED = {
    "answers": Compared(
        "An answer in process, ours priced and booked",
        ("completion", 1),
        {
            "llm": ("llm, a model that repeats, not logged", 1),
            "langchain": ("langchain-core, FakeListChatModel", 1),
            "pydantic-ai": ("pydantic-ai, TestModel", 1),
            "litellm": ("LiteLLM's library, mock_response", 1),
        },
    ),
    "http": Compared(
        "A chat completion through the ASGI application, without a server; ours authenticated, priced and booked",
        ("asgi", 1),
        {
            "bare": ("bare ASGI callable, constant answer", 1),
            "starlette": ("Starlette, constant answer", 1),
            "fastapi": ("FastAPI, checked request, constant answer", 1),
        },
    ),
    "served": Compared(
        "The same over HTTP, on uvicorn with uvloop and httptools, 16 connections",
        ("served", 1),
        {
            "bare-served": ("bare ASGI callable, constant answer", 1),
            "starlette-served": ("Starlette, constant answer", 1),
            "fastapi-served": ("FastAPI, checked request, constant answer", 1),
        },
    ),
    "events": Compared(
        "A step of a training run, logged in SQLite; ours fenced, with its progress",
        ("events-sqlite", 1),
        {
            "sqlite3-events": ("raw sqlite3, the same by hand", 1),
            "optuna": ("Optuna, one intermediate value", 1),
            "mlflow": ("MLflow, log_metric", 1),
        },
    ),
    "disk": Compared(
        "An answer whose ledger row is kept in SQLite, theirs a row alone",
        ("completion-sqlite", 1),
        {"sqlite3": ("raw sqlite3, one row", 1)},
    ),
}


# ---- environments and processes ----------------------------------------------------------------------------------


def environment(peer: str) -> str:
    """The Python of a peer's environment, made now unless it is cached."""
    if not PINS[peer]:
        return sys.executable
    named = os.environ.get("MODELYARD_ENVS")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    digest = hashlib.sha256("\n".join((*PINS[peer], sys.version)).encode()).hexdigest()[:16]
    home = (Path(named) if named else cache / "modelyard" / "envs") / f"peer-{peer}-{digest}"
    if not (home / "complete").exists():
        print(f"installing {' '.join(PINS[peer])}", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", *PINS[peer]], check=True)
        (home / "complete").touch()
    return str(home / "bin" / "python")


class Worker:
    """A process that does so much of its work when it is asked."""

    def __init__(self, process: "subprocess.Popen[str]", pieces: int) -> None:
        self._process, self.pieces = process, pieces
        assert self._line() == "ready\n"
        self.spend(1)
        self.calls = max(1, TURN_NS // max(self.spend(1), 1))

    def spend(self, calls: int) -> int:
        """CPU in nanoseconds of so many calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return int(self._line())

    def microseconds(self) -> float:
        """CPU of a piece of work, of a turn."""
        return self.spend(self.calls) / self.calls / self.pieces / 1000

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def worker(python: str, script: str, name: str, pieces: int) -> Iterator[Worker]:
    source = {"PYTHONPATH": str(HERE.parent / "src")} if script == "_workloads.py" else {}
    with subprocess.Popen(
        [python, str(HERE / script), name],
        env={**os.environ, **source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        try:
            yield Worker(process, pieces)
        finally:
            assert process.stdin is not None
            process.stdin.close()


# ---- figures -----------------------------------------------------------------------------------------------------


def compared(one: Compared, turns: int) -> list[dict[str, object]]:
    """CPU of each, in turns: minimum and median, and ours divided by theirs in each turn."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        workers = {"modelyard": stack.enter_context(worker(sys.executable, "_workloads.py", *one.ours))}
        for peer, (name, pieces) in one.peers.items():
            workers[name] = stack.enter_context(worker(environment(peer), "_peer_workloads.py", peer, pieces))
        for turn in range(turns):
            order = list(workers) if turn % 2 else list(reversed(workers))
            for name in order:
                found.setdefault(name, []).append(workers[name].microseconds())
    return [figures(name, found[name], found["modelyard"]) for name in workers]


def figures(name: str, theirs: Sequence[float], ours: Sequence[float]) -> dict[str, object]:
    """What is shown of one of them."""
    ratios = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
    return {
        "name": name,
        "minimum": min(theirs),
        "median": statistics.median(theirs),
        "ours / theirs": statistics.median(ratios),
        "spread": (ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]),
    }


def markdown(found: dict[str, list[dict[str, object]]]) -> str:
    """The tables, with the command, the machine and the date."""
    lines = [
        f"Measured by `python benchmarks/peers.py --write` on {datetime.now(UTC):%Y-%m-%d}: {machine()}.",
        "CPU in microseconds; the ratio is the median of those of each turn, with its 10th and 90th percentile.",
    ]
    for name, rows in found.items():
        lines += ["", f"**{COMPARED[name].title}**", "", "| | minimum | median | ours / theirs | spread |"]
        lines.append("|---|--:|--:|--:|--:|")
        lines += [row_of(row) for row in rows]
    return "\n".join(lines)


def row_of(row: dict[str, object]) -> str:
    low, high = row["spread"]  # type: ignore[misc]
    if row["name"] == "modelyard":
        return f"| **modelyard** | {row['minimum']:,.1f} | {row['median']:,.1f} | | |"
    ahead = " (ahead of us)" if row["ours / theirs"] > 1 else ""  # type: ignore[operator]
    times = f"{row['minimum']:,.1f} | {row['median']:,.1f}"
    return f"| {row['name']} | {times} | {row['ours / theirs']:.3g}{ahead} | {low:.3g} to {high:.3g} |"


def machine() -> str:
    """The interpreter and the processor."""
    model = platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(": ")[2] if names else model
    load = f", load {os.getloadavg()[0]:.1f} when it ended" if hasattr(os, "getloadavg") else ""
    return f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} x {model}{load}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*COMPARED, []], help="what to compare; all without any")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/explanation/speed.md")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: compared(COMPARED[name], options.turns) for name in options.names or COMPARED}
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{before}\n{markdown(found)}\n{after}", encoding="utf-8")
    elif options.json:
        print(json.dumps(found, indent=2))
    else:
        print(markdown(found))


if __name__ == "__main__":
    main()
