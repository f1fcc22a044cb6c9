"""Nothing reads real time where a clock is given: by the source, and by a whole loop in which real time raises."""

import ast
import asyncio
import importlib
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest

import modelyard
from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.clock import SystemClock
from modelyard.errors import MissingExtra
from modelyard.executors.inline import InlineExecutor
from modelyard.testing.clock import ManualClock
from source_trees import tree_of

SOURCE = Path(modelyard.__file__).parent
START = datetime(2030, 1, 1, tzinfo=UTC)

# ---- by the source -------------------------------------------------------------------------------------------------

ALLOWED: dict[str, tuple[set[str], str]] = {
    "clock.py": (
        {"import time", "datetime.now", "event.wait", "woken.wait", "asyncio.sleep"},
        "the real clock itself, and ids where no clock is given",
    ),
    "cli/terminal.py": ({"import time"}, "waits for a store that is away, before there is a platform with a clock"),
    "platform/jobs/worker.py": ({"leaving.join"}, "a process leaves in bounded real time while its store is away"),
    "parts/upstream/transport.py": ({"asyncio.timeout"}, "its deadline is set anew by what the clock says"),
    "artifacts/folder.py": ({"import time"}, "compares the times that the file system gives to parts of files"),
    "parts/objects/store.py": (
        {"import time"},
        "asks a short question first if the object store has not answered for a while",
    ),
    "parts/episodes/environments/processes.py": ({"wait.wait"}, "asks a server from a process without a platform"),
    "parts/rollouts/mirror.py": (
        {"import time.monotonic", "import time.sleep"},
        "lets callers of its process, which wait in real time, go first",
    ),
    "parts/objects/direct.py": ({"datetime.now"}, "compares the times that the object store gives to parts"),
    "parts/upstream/connections.py": (
        {"import time", "asyncio.timeout", "asyncio.wait"},
        "a server closes idle connections, and connecting fails, in real time",
    ),
    "parts/upstream/adapters/calls.py": (
        {"asyncio.timeout", "asyncio.wait"},
        "a server answers in real time; what ends the wait is a sleep by the clock",
    ),
    "stores/sqlite/fair_lock.py": (
        {"import time"},
        "waits for other processes at a file's lock: they do not know this platform's clock",
    ),
    "stores/group_commit.py": ({"import time"}, "gathers calls for a part of what the disk takes to sync"),
    "stores/pending_steps.py": ({"import time"}, "a call's patience with other processes begins when it comes"),
    "stores/sqlite/writer.py": ({"import time"}, "measures what the disk takes to sync"),
    "stores/sqlite/store.py": (
        {"import time"},
        "reads again what other processes may have changed: they do not know this platform's clock",
    ),
    "parts/postgres/connections.py": (
        {"import time", "self._free.acquire"},
        "waits for a server and for other readers: they do not know this platform's clock",
    ),
    "parts/postgres/writer.py": ({"import time"}, "waits for a server, and measures what its disk takes to sync"),
    "parts/postgres/notices.py": (
        {"import time", "self._thread.join", "self._closed.wait"},
        "waits for a server in a thread of its own",
    ),
    "parts/postgres/months.py": ({"datetime.now"}, "makes room for the months to come on a real server"),
    "parts/postgres/store.py": ({"import time"}, "looks once a day at the months of a real server"),
    "parts/server/bounded_heads.py": ({"self.loop.call_later"}, "the pace of a client on a socket is real"),
    "parts/server/uvicorn_server.py": ({"import time.monotonic"}, "those who send requests stop in real time"),
    "platform/operations/readiness.py": ({"looking.join"}, "a probe gives up in real time while a disk hangs"),
    "stores/sqlite/notices.py": ({"self._closed.wait"}, "looks at a file in a thread, for what other processes change"),
    "platform/jobs/wakeups.py": ({"asyncio.timeout", "loop.time"}, "ends the sleep of a task now, whatever its length"),
    "executors/thread.py": (
        {"import time", "thread.join"},
        "real threads end in real time; a clock that stands still would hang `close`",
    ),
    "parts/torch/mapped_weights.py": ({"import time"}, "bounds what the system takes of the processor"),
    "parts/torch/training/shared_base.py": ({"threading.Timer"}, "frees memory a while after its last use"),
    "executors/subprocess.py": (
        {"import time", "self.listener.join", "self.process.wait"},
        "real processes end in real time",
    ),
    "worker.py": ({"Event.wait"}, "a process of its own has to leave in real time, whatever its platform's clock"),
    "platform/periodic.py": ({"self._thread.join"}, "a real thread ends in real time"),
    "platform/evaluations/pools.py": ({"thread.join", "asyncio.wait"}, "a real thread ends in real time"),
    "http/sse_keep_alive.py": (
        {"self._loop.call_later", "self._loop.time"},
        "the silence of a server's socket is measured by proxies in real time",
    ),
    "asgi.py": (
        {"asyncio.timeout", "loop.call_at", "loop.time"},
        "the pace of a client on a server's socket is the event loop's to measure; sleep(0) is a turn",
    ),
    "parts/doubles/clients/server.py": (
        {"thread.join", "asyncio.wait_for", "asyncio.sleep"},
        "a real server's thread ends, and its loop ticks, in real time; sleep(0) is a turn",
    ),
    "parts/upstream/fake_vllm/misbehaviour.py": (
        {"self._arrivals.acquire"},
        "waits for a real server's request",
    ),
    "parts/upstream/fake_vllm/exchange.py": (
        {"asyncio.wait", "self._ended.wait"},
        "a real server's request ends in real time",
    ),
    "testing/clock.py": (
        {"self._changed.wait"},
        "what acts in real threads is waited for, in bounded real time",
    ),
    "parts/contracts/executor_trials.py": (
        {"import time", "self._go_on.wait", "Event.wait"},
        "tries real threads and processes",
    ),
    "parts/contracts/store_queues.py": ({"woken.wait"}, "waits for a store's notice"),
    "parts/contracts/store_settings.py": ({"import time"}, "waits for another store, which has no clock of ours"),
    "parts/doubles/own_sleeps.py": ({"import time"}, "replaces the sleeps of the application"),
    "parts/contracts/store_steps.py": (
        {"asyncio.sleep", "import time"},
        "sleep(0) is a turn; a store's own clock is compared with the real one",
    ),
}
"""Where real time is right, and why."""

NAPS = {"sleep", "timeout", "timeout_at", "call_later", "call_at", "Timer", "monotonic", "time_ns", "perf_counter"}
LOOKS = {"datetime": {"now", "utcnow", "today"}, "date": {"today"}, "loop": {"time"}, "asyncio": {"wait_for"}}
ENDS = {"wait", "join", "acquire", "result"}
NOT_TIMED = {"engine", "driver", "limiter", "result", "self", "path", "shlex", "evaluations", "job", "SEPARATOR"} | {
    "training",
    "handle",
    "found",
    "samplers",
    "cache",
    "pathsep",
}
"""Whose `wait` or `acquire` takes no time, or whose it is to say what it does with it."""

ON_THE_CLOCK = {"clock", "time", "pause", "pauses", "item", "waiter"}
"""Whose time is the platform's clock's."""


WORDS = re.compile(
    r"^\s*(?:import .*\btime\b|from (?:time|asyncio) import)"
    rf"|(?<![\s(._]clock)\.(?:{'|'.join(NAPS.union(*LOOKS.values()))})\b"
    rf"|(?<!['\"])\.(?:{'|'.join(ENDS)})\((?!\))",
    re.MULTILINE,
)
"""Some of this is in every source with something to find; most sources need no syntax tree."""


def name_of(receiver: ast.expr) -> str:
    if isinstance(receiver, ast.Call):
        receiver = receiver.func
        return receiver.attr if isinstance(receiver, ast.Attribute) else ast.unparse(receiver)
    return ast.unparse(receiver)


def real_time(path: Path) -> Iterator[str]:
    """What of a module's source reads real time or waits by it."""
    if WORDS.search(path.read_text(encoding="utf-8")) is None:
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name == "time")
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            yield from (f"import {node.module}.{alias.name}" for alias in node.names if alias.name in NAPS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver, method = name_of(node.func.value), node.func.attr
            whose = receiver.rpartition(".")[2].lstrip("_")
            text = isinstance(node.func.value, ast.Constant | ast.JoinedStr)
            ends = method in ENDS and bool(node.args or node.keywords) and whose not in NOT_TIMED and not text
            if whose not in ON_THE_CLOCK and (method in NAPS or method in LOOKS.get(whose, ()) or ends):
                yield f"{receiver}.{method}"


@pytest.mark.slow
def test_only_these_modules_know_real_time() -> None:
    found = {path.relative_to(SOURCE).as_posix(): set(real_time(path)) for path in SOURCE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {
        path: names for path, (names, _) in ALLOWED.items() if (SOURCE / "parts").exists() or "parts/" not in path
    }


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", "import time"),
        ("from time import monotonic", "import time.monotonic"),
        ("datetime.now(UTC)", "datetime.now"),
        ("self._loop.time()", "self._loop.time"),
        ("asyncio.sleep(1)", "asyncio.sleep"),
        ("async def f():\n async with asyncio.timeout(3): pass", "asyncio.timeout"),
        ("self.done.wait(3)", "self.done.wait"),
        ("threading.Event().wait(timeout=3)", "Event.wait"),
        ("thread.join(3)", "thread.join"),
    ],
)
def test_real_time_is_found(tmp_path: Path, source: str, found: str) -> None:
    path = tmp_path / "source.py"
    path.write_text(source)
    assert list(real_time(path)) == [found]


@pytest.mark.parametrize(
    "source",
    [
        "self.runtime.clock.sleep(1)",
        "clock.now()",
        "clock.wait(event, 3)",
        "event.wait()",
        "', '.join(words)",
        "f(now())",
    ],
)
def test_given_time_is_not_mistaken_for_real_time(tmp_path: Path, source: str) -> None:
    path = tmp_path / "source.py"
    path.write_text(source)
    assert list(real_time(path)) == []


# ---- by a whole loop -----------------------------------------------------------------------------------------------


@contextmanager
def suppress_missing(*packages: str) -> Iterator[None]:
    """Modules of an extra that is not installed here take no part."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
    except MissingExtra as error:
        if error.package not in packages:
            raise


@pytest.fixture
def no_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time raises when the library asks for it, and is as ever for everybody else."""
    for module in pkgutil.walk_packages(modelyard.__path__, "modelyard."):
        with suppress_missing("gguf", "huggingface_hub", "mcp", "torch", "transformers", "tokenizers", "safetensors"):
            importlib.import_module(module.name)
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"):
        monkeypatch.setattr(time, name, refused_to_modelyard(getattr(time, name)))
    monkeypatch.setattr(SystemClock, "monotonic", no_monotonic)  # it holds the function itself
    for module in list(sys.modules.values()):
        if module.__name__.startswith("modelyard.") and vars(module).get("datetime") is datetime:
            monkeypatch.setattr(module, "datetime", NoNow)


def no_monotonic(clock: SystemClock) -> NoReturn:
    raise AssertionError("modelyard.clock asks for monotonic")


def refused_to_modelyard(function: Callable[..., Any]) -> Callable[..., Any]:
    def instead(*args: Any) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        assert not caller.startswith("modelyard."), f"{caller} asks for {function.__name__}"
        return function(*args)

    return instead


class NoNow(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> NoReturn:
        raise AssertionError("the library looks at the wall clock")


ROWS = [{"prompt": f"question {n}", "expected": f"answer {n}"} for n in range(4)]
EXAMPLES = [
    {"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["expected"]}]}
    for row in ROWS
]


def whole_loop(clock: ManualClock) -> list[Any]:
    """Ask, train with a worker, evaluate; and when each of it happened."""
    with open_platform(clock=clock) as platform:
        answer = platform.chat.complete(model="echo", messages="hello")
        model = platform.models.create("support", project="desk", base_model="tabular-mini")
        clock.advance(minutes=1)
        job = platform.training.sft("desk/support", EXAMPLES)
        platform.worker(executor=InlineExecutor()).run_until_idle()
        checkpoint = job.result()
        result = platform.evaluations.run("exam", "local/desk/support", ROWS, project="desk", max_tokens=8)
        ids = [answer.id, model.id, job.id, checkpoint.id, result.run.id]
        seconds = [datetime.fromtimestamp(int(id[:8] + id[9:13], 16) / 1000, UTC) - START for id in ids]
        return [one.total_seconds() for one in seconds] + [checkpoint.created_at - START, clock.monotonic()]


@pytest.mark.parts
def test_a_whole_loop_runs_on_given_time_alone(no_real_time: None) -> None:
    with pytest.raises(AssertionError, match=r"modelyard\.clock asks for monotonic"):
        SystemClock().monotonic()
    with pytest.raises(AssertionError, match="wall clock"):
        SystemClock().now()
    first, again = whole_loop(ManualClock(START)), whole_loop(ManualClock(START))
    assert first == again
    assert first[:3] == [0, 0, 60]


@pytest.mark.parts
def test_the_thread_of_a_worker_runs_on_given_time_alone(no_real_time: None) -> None:
    with open_platform(clock=ManualClock(START)) as platform:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        with platform.worker(executor=InlineExecutor()):
            assert platform.training.sft("desk/support", EXAMPLES).result(timeout=60).metrics


def test_ids_take_their_time_from_the_clock() -> None:
    clock = ManualClock(START)
    with open_platform(clock=clock) as platform:
        before = platform._runtime.ids()
        clock.advance(days=1)
        after = platform._runtime.ids()
    assert int(after[:8] + after[9:13], 16) - int(before[:8] + before[9:13], 16) == 86_400_000


def test_a_served_platform_is_synced_each_second_of_its_clock() -> None:
    clock = ManualClock(START)

    async def served(platform: Any) -> int:
        synced = []
        platform._runtime.store.sync = lambda: synced.append(clock.monotonic())
        begun, over = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, str]:
            if not begun.is_set():
                begun.set()
                return {"type": "lifespan.startup"}
            await over.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Any) -> None:
            pass

        serving = asyncio.create_task(asgi_app(platform)({"type": "lifespan"}, receive, send))
        await begun.wait()
        await asyncio.sleep(0)
        await clock.aadvance(3)
        over.set()
        await serving
        return synced

    with open_platform(clock=clock) as platform:
        assert asyncio.run(served(platform)) == [1, 2, 3, 3]


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_stores_time_is_the_given_clocks(tmp_path: Path, on_disk: bool) -> None:
    clock = ManualClock(START)
    with open_platform(tmp_path / "yard.db" if on_disk else None, clock=clock) as platform:
        clock.advance(90)
        seen = [
            read(lambda view: view.time) for read in (platform._runtime.store.read, platform._runtime.store.transact)
        ]
    assert seen == [START.timestamp() + 90] * 2
