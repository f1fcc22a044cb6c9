"""Next to other libraries, in one run: python benchmarks/peers.py [--write] [--turns N] [comparison ...]

Each peer is installed by its pins into an environment of its own (`_peer_environments.py`), and does its work
(`_peer_workloads.py`) in a process of its own, in turns with ours. CPU time counts, of all processes of a peer, when
they are warm and, where the system allows it, pinned to one processor. What cannot be installed or started here is left
out, and why is printed. With `--write` each table replaces its older one in docs/explanation/speed.md, and the others
stay; otherwise they are printed, and JSON with `--json`.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import attrs
from _peer_environments import NotInstalled, cache, environment
from _peer_models import ROWS, TOKENS
from _peer_workloads import EVALUATED

HERE = Path(__file__).parent
SOURCE = str(HERE.parent / "src")
PAGE = HERE.parent / "docs" / "explanation" / "speed.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
OURS = "modelyard"
TURNS = 15
TURN_NS = 40_000_000
WARM_TURNS = 2

LOCAL = ("torch", "vllm", "llama.cpp")
"""The environments that read the local model."""


@attrs.frozen
class Peer:
    """Who is measured: a workload, what the table calls it, its environment, and how much one call does."""

    workload: str
    name: str
    environment: str
    pieces: int = 1


@attrs.frozen
class Compared:
    """What is compared: our workload and those of the peers."""

    title: str
    ours: Peer
    peers: tuple[Peer, ...]


def our(workload: str, pieces: int = 1, environment: str = "here") -> Peer:
    return Peer(workload, OURS, environment, pieces)


def local(rows: int) -> Compared:
    """A tiny local model on the processor: so many answers at once."""
    pieces, at_once = rows * TOKENS, f"{rows} answer{'s at once' * (rows > 1)}"
    return Compared(
        f"A token of a local model of 25 million weights on one core, 32-bit floats, greedy, {at_once}",
        our(f"engine-{rows}", pieces, "torch"),
        (
            Peer(f"generate-{rows}", "transformers, generate()", "torch", pieces),
            Peer(f"vllm-{rows}", "vLLM", "vllm", pieces),
            Peer(f"llama.cpp-{rows}", "llama.cpp (xllamacpp)", "llama.cpp", pieces),
        ),
    )


COMPARED = {
    "answers": Compared(
        "An answer in process, ours priced and booked",
        our("completion"),
        (
            Peer("llm", "llm, a model that repeats, not logged", "llm"),
            Peer("langchain", "langchain-core, FakeListChatModel", "langchain"),
            Peer("pydantic-ai", "pydantic-ai, TestModel", "pydantic-ai"),
            Peer("litellm", "LiteLLM's library, mock_response", "litellm"),
        ),
    ),
    "http": Compared(
        "A chat completion through the ASGI application, without a server; ours authenticated, priced and booked",
        our("asgi"),
        (
            Peer("bare", "bare ASGI callable, constant answer", "here"),
            Peer("starlette", "Starlette, constant answer", "starlette"),
            Peer("fastapi", "FastAPI, checked request, constant answer", "fastapi"),
        ),
    ),
    "served": Compared(
        "The same over HTTP, 16 connections, the applications on uvicorn with uvloop and httptools",
        our("served"),
        (
            Peer("bare-served", "bare ASGI callable, constant answer", "bare-served"),
            Peer("starlette-served", "Starlette, constant answer", "starlette-served"),
            Peer("fastapi-served", "FastAPI, checked request, constant answer", "fastapi-served"),
            Peer("aimock", "aimock on Node.js, a fixture", "aimock"),
        ),
    ),
    "hop": Compared(
        "A whole answer of 32 tokens passed on over HTTP from a constant server, the CPU of that server not counted",
        our("served-hop"),
        (Peer("litellm-proxy", "LiteLLM's proxy, without keys and a database", "litellm-proxy"),),
    ),
    "hop-stream": Compared(
        "The same as a stream of 32 tokens",
        our("served-hop-stream"),
        (Peer("litellm-proxy-stream", "LiteLLM's proxy, without keys and a database", "litellm-proxy"),),
    ),
    "evaluation": Compared(
        "A row of an evaluation run of 200 rows, 8 at once; ours in SQLite, theirs in a log file",
        our("evaluation-sqlite-8", EVALUATED),
        (Peer("inspect", "Inspect, mockllm", "inspect", EVALUATED),),
    ),
    "events": Compared(
        "A step of a training run, logged in SQLite; ours fenced, with its progress",
        our("events-sqlite"),
        (
            Peer("sqlite3-events", "raw sqlite3, the same by hand on the same tables", "here"),
            Peer("optuna", "Optuna, one intermediate value", "optuna"),
            Peer("mlflow", "MLflow, log_metric", "mlflow"),
        ),
    ),
    "disk": Compared(
        "An answer whose ledger row is kept in SQLite, theirs a row alone",
        our("completion-sqlite"),
        (Peer("sqlite3", "raw sqlite3, one row", "here"),),
    ),
    **{f"local-{rows}": local(rows) for rows in ROWS},
}


# ---- processes ---------------------------------------------------------------------------------------------------


class NotStarted(Exception):
    """A process that has ended before its work. The text is what it complained of."""


class Worker:
    """A process that does so much of its work when it is asked."""

    def __init__(self, process: "subprocess.Popen[str]", pieces: int) -> None:
        self._process, self.pieces, self.calls = process, pieces, 1

    def warm(self) -> None:
        """Find how many calls make a turn, and make some turns. Raises EOFError where it has ended."""
        assert self._line() == "ready\n"
        self.spend(1)
        self.calls = max(1, TURN_NS // max(self.spend(1), 1))
        for _ in range(WARM_TURNS):
            self.spend(self.calls)

    def spend(self, calls: int) -> int:
        """CPU in nanoseconds of so many calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return int(self._line())

    def microseconds(self) -> float:
        """CPU of a piece of work, of a turn."""
        return self.spend(self.calls) / self.calls / self.pieces / 1000

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        raise EOFError


@contextmanager
def worker(peer: Peer) -> Iterator[Worker]:
    """The process of a peer when it is warm. Raises NotInstalled or NotStarted where it cannot do its work."""
    place = environment(peer.environment)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PEER_HOME": str(place.home), "PYTHONPATH": ""}
    if peer.name == OURS or peer.environment in ("here", "torch"):  # see `_peer_workloads.py`
        environ["PYTHONPATH"] = SOURCE
    if peer.environment in LOCAL:
        environ["PEER_MODEL"] = str(model_folder())
    script = "_workloads.py" if (peer.name, peer.environment) == (OURS, "here") else "_peer_workloads.py"
    command = [place.python, str(HERE / script), peer.workload]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=complaints, text=True) as process,
    ):
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        one = Worker(process, peer.pieces)
        try:
            warm(one, complaints)
            yield one
        finally:
            one.close()


def warm(one: Worker, complaints: IO[str]) -> None:
    """Warm it, or raise NotStarted with what it wrote last."""
    try:
        one.warm()
    except EOFError:
        complaints.seek(0)
        raise NotStarted("\n".join(complaints.read().splitlines()[-20:])) from None


def model_folder() -> Path:
    """The local model, written by our script and kept beside the environments."""
    digest = hashlib.sha256((HERE / "_peer_models.py").read_bytes()).hexdigest()[:16]
    folder = cache() / f"peer-model-{digest}"
    if not (folder / "expected.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(
            [environment("torch").python, HERE / "_peer_models.py", folder],
            env={**os.environ, "PYTHONPATH": SOURCE},
            check=True,
        )
    return folder


# ---- figures -----------------------------------------------------------------------------------------------------


def measured(one: Compared, turns: int) -> list[dict[str, Any]]:
    """The rows of a table. What cannot be installed or started is left out, and why is printed."""
    workers: dict[str, Worker] = {}
    left_out: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for peer in (one.ours, *one.peers):
            try:
                workers[peer.name] = stack.enter_context(worker(peer))
            except (NotInstalled, NotStarted) as error:
                print(f"{peer.name} is left out: {error}", file=sys.stderr, flush=True)
                left_out.append({"name": peer.name, "left out": str(error)})
        found = in_turns(workers, turns)
    if OURS not in found:
        return left_out
    return [figures(name, found[name], found[OURS]) for name in workers] + left_out


def in_turns(workers: Mapping[str, Worker], turns: int) -> dict[str, list[float]]:
    """CPU of a piece of the work of each, in each turn."""
    found: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns):
        for name in list(workers) if turn % 2 else reversed(list(workers)):
            found[name].append(workers[name].microseconds())
    return found


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


def table(one: Compared, rows: Sequence[dict[str, Any]]) -> str:
    """A table, with the machine and the date."""
    lines = [f"**{one.title}**", "", f"{datetime.now(UTC):%Y-%m-%d}, {machine()}.", ""]
    lines += ["| | minimum | median | ours / theirs | spread |", "|---|--:|--:|--:|--:|"]
    return "\n".join([*lines, *map(row_of, rows)])


def row_of(row: dict[str, Any]) -> str:
    if "left out" in row:  # the reason, which is printed, may be a matter of this machine
        return f"| {row['name']} | could not be run here | | | |"
    if row["name"] == OURS:
        return f"| **{OURS}** | {row['minimum']:,.1f} | {row['median']:,.1f} | | |"
    low, high = row["spread"]
    ahead = " (ahead of us)" if row["ours / theirs"] > 1 else ""
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


def written(page: str, name: str, text: str) -> str:
    """The page with a table in its place among the others, which stay."""
    before, _, rest = page.partition(BEGIN)
    section, _, after = rest.partition(END)
    intro, *tables = re.split(r"\n\n(?=\*\*)", section.strip())
    kept = {title_of(one): one for one in tables} | {COMPARED[name].title: text}
    shown = [kept[one.title] for one in COMPARED.values() if one.title in kept]
    return "\n\n".join([f"{before}{BEGIN}\n{intro}", *shown]) + f"\n{END}{after}"


def title_of(text: str) -> str:
    return text.split("**")[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*COMPARED, []], help="what to compare; all without any")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/explanation/speed.md")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in options.names or COMPARED:
        found[name] = measured(COMPARED[name], options.turns)
        text = table(COMPARED[name], found[name])
        if options.write:
            PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), name, text), encoding="utf-8")
        elif not options.json:
            print(f"{text}\n", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
