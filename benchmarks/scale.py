"""Large bodies, long event lists and long queues, as JSON: python benchmarks/scale.py. Each in a process of its own.

Memory is resident memory of the process, in MiB. Compared times are medians of turns taken within one run.
"""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from modelyard import Settings, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.asgi import asgi_app
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.job import JobEvent
from modelyard.domain.models import Model
from modelyard.domain.record import Page
from modelyard.domain.training import GRADIENT_STEP
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.platform import Platform
from modelyard.protocols import ServedModel, Tx
from modelyard.report.terminal import Show

MIB = 2**20
CHUNK = 2**16
TICK, IDLE_SECONDS = 0.001, 5.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROW = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
METRICS = {"loss": 0.51, "entropy": 1.2, "kl_div": 0.01, "grad_norm": 0.7, "learning_rate": 5e-6, "reward": 0.4}
IDLE = Settings(lease=3600.0, max_queued_jobs=100_000)
"""For a worker that is alive for as long as anything here takes, also if it never beats again."""


# ---- a large body ------------------------------------------------------------------------------------------------


def trajectory(tokens: int) -> bytes:
    """A trajectory of one sampled turn, with logprobs, of about 100 bytes a token."""
    content = [
        {"token": f"token_id:{number}", "logprob": -0.123456789, "bytes": [116, 111, 107], "top_logprobs": []}
        for number in range(100_000, 100_000 + tokens)
    ]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x" * tokens}}
    turns = [{"role": "user", "content": "hello"}, choice | {"logprobs": {"content": content}}]
    return json.dumps({"messages_and_choices": turns, "reward": 0.5}).encode()


def rl_body(model_id: str, trajectories: int, tokens: int, group_size: int = 10) -> Iterator[bytes]:
    """The body of an RL job, made piece by piece."""
    one = trajectory(tokens)
    yield b'{"model_id": "%s", "trajectory_groups": [' % model_id.encode()
    for number in range(trajectories):
        first, last = number % group_size == 0, number % group_size == group_size - 1 or number == trajectories - 1
        yield (b", " if first and number else b"") + (b'{"trajectories": [' if first else b", ")
        yield one
        yield b"]}" if last else b""
    yield b"]}"


def chunks(pieces: Iterator[bytes], size: int = CHUNK) -> Iterator[bytes]:
    """The same bytes, as they come from a socket."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    yield bytes(buffer)


async def post(platform: Platform, path: str, body: Iterator[bytes]) -> tuple[int, bytes]:
    """Send a body to the platform's ASGI application; status and answer."""
    headers = [(b"authorization", f"Bearer {platform.keys.create('acme').secret}".encode())]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    following, sent = chain(body, [None]), list[Any]()
    waiting = next(following)

    async def receive() -> dict[str, Any]:
        nonlocal waiting
        if waiting is None:
            return await asyncio.Event().wait()  # type: ignore[return-value]  # it waits for ever
        chunk, waiting = waiting, next(following)
        return {"type": "http.request", "body": chunk, "more_body": waiting is not None}

    async def send(message: Any) -> None:
        sent.append(message)

    await asgi_app(platform)(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


def announce_worker(platform: Platform) -> None:
    """Have the platform see a worker that is alive, which takes no job."""
    platform.worker().beat()


async def accept(platform: Platform, model: Model, trajectories: int, tokens: int) -> str:
    """Have an RL job accepted; its id. A worker must be alive."""
    status, answer = await post(platform, "/v1/preview/training-jobs", chunks(rl_body(model.id, trajectories, tokens)))
    assert status == 200, answer
    job_id: str = json.loads(answer)["id"]
    return job_id


class Delays:
    """By how many milliseconds an event loop was late whenever a task wanted to go on, while this was entered."""

    async def __aenter__(self) -> "Delays":
        self._times: list[float] = []
        self._task = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(TICK)
            self._times.append((time.perf_counter() - started - TICK) * 1e3)

    @property
    def figures(self) -> dict[str, float]:
        """The median, the 99th percentile and the longest."""
        ordered = sorted(self._times)
        return {
            "p50": round(ordered[len(ordered) // 2], 1),
            "p99": round(ordered[len(ordered) * 99 // 100], 1),
            "max": round(ordered[-1], 1),
        }


def resident() -> float:
    """MiB of memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def peak() -> float:
    """The most MiB that it ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large_body(folder: Path, trajectories: int = 1000, tokens: int = 2000) -> dict[str, Any]:
    """What a job of 200 MB costs the process that accepts it."""
    with open_platform(folder / "yard.db", settings=IDLE) as platform:
        announce_worker(platform)
        model = platform.models.create("m", project="p", base_model="tabular-mini", entity="acme")

        async def measure() -> tuple[float, float, Delays, Delays]:
            await accept(platform, model, 1, 1)
            async with Delays() as idle:
                await asyncio.sleep(IDLE_SECONDS)
            before, started = resident(), time.perf_counter()
            async with Delays() as busy:
                await accept(platform, model, trajectories, tokens)
            return before, time.perf_counter() - started, idle, busy

        before, seconds, idle, busy = asyncio.run(measure())
    largest = len(trajectory(tokens)) / MIB
    return {
        "body, MiB": round(sum(map(len, rl_body(model.id, trajectories, tokens))) / MIB, 1),
        "seconds": round(seconds, 1),
        "extra memory, MiB": round(peak() - before, 1),
        "target": f"64 + {largest:.1f} for the largest trajectory",
        "event loop late by, ms": {"idle": idle.figures, "accepting": busy.figures},
    }


# ---- many events -------------------------------------------------------------------------------------------------


def add_events(platform: Platform, job_id: str, size: int, batch: int = 1000) -> None:
    """Give a job a long history."""
    for first in range(1, size + 1, batch):
        numbers = range(first, min(first + batch, size + 1))
        added = [JobEvent(job_id, seq, f"event-{seq:09}", GRADIENT_STEP, seq, METRICS, NOW) for seq in numbers]

        def step(tx: Tx, added: Sequence[JobEvent] = added) -> None:
            for event in added:
                tx.add(event)

        platform._runtime.store.transact(step)


def pages(platform: Platform, job_id: str) -> Iterator[Callable[[], Page[Any]]]:
    """Reading each page of a job's events, one after the other."""
    after: list[str | None] = [None]

    def read() -> Page[Any]:
        page = platform.training.events(job_id).page(after=after[0], limit=100)
        after[0] = page.items[-1].id if page.has_more else None
        return page

    yield read
    while after[0] is not None:
        yield read


def seconds_of(action: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def many_events(folder: Path, size: int = 1_000_000) -> dict[str, Any]:
    """Paging through a job's events, and the first pages beside the last."""
    with open_platform(folder / "yard.db", durability="process") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        job_id = platform.training.sft("p/m", [ROW]).id
        add_events(platform, job_id, size)
        read = pages(platform, job_id)
        for page in islice(read, 100):
            page()
        before = resident()
        ids = [page().items[-1].id for page in read]
        starts = {"first": [None, *ids[:99]], "last": [*ids[-101:-1]]}
        spent: dict[str, list[float]] = {name: [] for name in starts}
        for turn in range(100):
            for name, after in starts.items():
                place = after[turn]
                spent[name].append(seconds_of(lambda place=place: platform.training.events(job_id).page(after=place)))  # type: ignore[misc]
    return {
        "events": size,
        "pages read": len(ids) + 100,
        "growth of memory over them, MiB": round(peak() - before, 1),
        "page, ms": {name: round(statistics.median(times) * 1e3, 3) for name, times in spent.items()},
        "ratio": round(statistics.median(spent["last"]) / statistics.median(spent["first"]), 2),
        "target": 1.1,
    }


# ---- a long queue ------------------------------------------------------------------------------------------------


def fill_queue(platform: Platform, jobs: int, lanes: int) -> None:
    """Put jobs into the queue, on so many models in turn."""
    dataset = platform.training.upload("data", [ROW], project="p")
    models = [platform.models.create(f"m{n}", project="p", base_model="tabular-mini") for n in range(lanes)]
    for number in range(jobs):
        rate = 1e-5 * (1 + number // lanes)  # equal requests would be one job
        platform.training.sft(models[number % lanes], dataset.url, learning_rate=rate)


def claim_and_return(platform: Platform) -> None:
    """Claim the first job of the queue, and give it back."""
    runner = Runner(platform._runtime)
    hold = runner.claim()
    assert hold is not None
    runner.give_back(hold)


def long_queue(folder: Path, sizes: tuple[int, int] = (100, 10_000), rounds: int = 300) -> dict[str, Any]:
    """Claiming a job and giving it back, with a short queue and a long one, on models of their own and on one."""
    figures = {}
    for name, lanes in {"a model each": sizes, "one model": (1, 1)}.items():
        opened = [
            open_platform(
                folder / f"{size}-{lane}.db", durability="process", artifacts=MemoryArtifacts(), settings=IDLE
            )
            for size, lane in zip(sizes, lanes, strict=True)
        ]
        for platform, size, lane in zip(opened, sizes, lanes, strict=True):
            fill_queue(platform, size, lane)
        spent: list[list[float]] = [[], []]
        for _ in range(rounds):
            for times, platform in zip(spent, opened, strict=True):
                times.append(seconds_of(lambda platform=platform: claim_and_return(platform)))  # type: ignore[misc]
        for platform in opened:
            platform.close()
        short, long = map(statistics.median, spent)
        figures[name] = {"us": [round(short * 1e6), round(long * 1e6)], "ratio": round(long / short, 2), "target": 1.5}
    return {"queued": sizes, **figures}


# ---- many rows of an evaluation --------------------------------------------------------------------------------------


class Asked(EchoBackend):
    """An echo that knows when it was `first` asked, since that was forgotten."""

    first: float | None = None

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """What the echo says."""
        self.first = self.first or time.perf_counter()
        return super().stream(request, model)


def evaluated(platform: Platform, size: int, show: Show) -> None:
    """Evaluate the echo on so many rows."""
    rows = ({"prompt": f"question number {at}", "expected": f"question number {at}"} for at in range(size))
    platform.evaluations.run("bench", "echo", rows, project="bench", progress=show)


def many_rows(folder: Path, size: int) -> dict[str, Any]:
    """A run of the engine, broken off at its last rows and resumed: its pace first and last, its memory, its end."""
    reached, turn, backend = list[tuple[int, float]](), min(1000, size // 4), Asked()

    def show(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        reached.append((done, time.process_time()))
        if done >= size - 10:
            raise KeyboardInterrupt

    with open_platform(folder / "yard.db", durability="process", backend=backend) as platform:
        before = resident()
        with suppress(KeyboardInterrupt):
            evaluated(platform, size, show)
        (run,) = platform.evaluations.runs.list(project="bench")
        working = peak()
        backend.first, resumed = None, time.perf_counter()
        result = platform.evaluations.resume(run.id)
        assert result.run.summary is not None
        assert backend.first is not None
        assert (result.score, result.run.summary["scored"]) == (1.0, size)
        ended = time.perf_counter()
    return {
        "rows": size,
        "a row, CPU us": {"first": pace(reached, 0, turn), "last": pace(reached[1:], size - 10 - turn, size - 10)},
        "growth of memory, MiB": {"while asking": round(working - before, 1), "in the end": round(peak() - before, 1)},
        "resumed, ms until a row is asked": round((backend.first - resumed) * 1e3, 1),
        "resumed, seconds until the end": round(ended - resumed, 1),
    }


def pace(reached: Sequence[tuple[int, float]], first: int, last: int) -> int:
    """Microseconds of processor time that a row took between two counts of rows."""
    turn = [one for one in reached if first <= one[0] <= last]
    (rows, begun), (more, ended) = turn[0], turn[-1]
    return round((ended - begun) / (more - rows) * 1e6)


# ---- all -----------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    part.__name__: part for part in (large_body, many_events, long_queue)
} | {f"{size}_rows": partial(many_rows, size=size) for size in (1_000, 10_000, 100_000)}


def main() -> None:
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(PARTS[sys.argv[1]](Path(folder))))
        return
    figures = {}
    for part in PARTS:
        done = subprocess.run([sys.executable, __file__, part], check=True, stdout=subprocess.PIPE, text=True)
        figures[part] = json.loads(done.stdout)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
