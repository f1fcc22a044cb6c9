"""Small repeatable workloads over the public API, so that any two commits can run them.

    python benchmarks/_workloads.py NAME               reads a number of calls a line, prints their CPU in nanoseconds
    python benchmarks/_workloads.py CALLS NAME ...     makes the calls of each in a fork, for a counter to watch

Clock, ids and randomness are fixed: with PYTHONHASHSEED=0, a workload without threads and sockets executes the same
instructions each time. `PYTHONPATH` says whose `modelyard` runs.
"""

import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from modelyard import Pricing, open_platform
from modelyard.backends.echo import EchoBackend

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "src" / "modelyard" / "examples" / "support" / "train.jsonl"
MESSAGES = [{"role": "user", "content": "hello there"}]
TOKENS = 200
LONG = [{"role": "user", "content": " ".join(["word"] * TOKENS)}]
EVALUATED = 200
"""Rows of one evaluation run."""
COMPARED = 2000
"""Rows of each run of one comparison."""

Call = Callable[[int], object]
"""Does the work so many times."""


def found_in(*modules: str) -> Any:
    """The first of these modules that the commit has: what it is called now, and what it was called before it moved."""
    *moved, last = modules
    for name in moved:
        with suppress(ModuleNotFoundError):
            return import_module(name)
    return import_module(last)


SystemClock: Any = found_in("modelyard.clock", "modelyard.system").SystemClock


class FixedClock(SystemClock):  # type: ignore[misc]
    """Stands still, so that nothing happens by time."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 1.0


def numbered_ids() -> Callable[[], str]:
    """Ids in order."""
    numbers = count()
    return lambda: f"00000000-0000-7000-8000-{next(numbers):012x}"


def opened(cleanup: ExitStack, on_disk: bool = False, **options: Any) -> Any:
    """A platform with a priced echo model, in memory or in a SQLite file that survives the death of the process."""
    place: dict[str, Any] = {}
    if on_disk:
        folder = cleanup.enter_context(tempfile.TemporaryDirectory())
        place = {"path": Path(folder) / "yard.db", "durability": "process"}
    backend = EchoBackend(pricing=Pricing(Decimal("0.0000005"), Decimal("0.0000015")))
    fixed = {"clock": FixedClock(), "ids": numbered_ids(), "randomness": random.Random(0).randbytes, "backend": backend}
    return cleanup.enter_context(open_platform(**place, **fixed | options))


# ---- chat completions --------------------------------------------------------------------------------------------


def completion(on_disk: bool, budget: bool = False) -> Callable[[ExitStack], Call]:
    """Answers of the echo model in process, priced and booked, and admitted by a budget where there is one."""

    def prepared(cleanup: ExitStack) -> Call:
        platform = opened(cleanup, on_disk)
        if budget:
            platform.usage.set_budget(1000)
        complete = platform.chat.complete
        return lambda calls: [complete(model="echo", messages=MESSAGES) for _ in range(calls)]

    return prepared


def rolled_out(on_disk: bool) -> Callable[[ExitStack], Call]:
    """Answers of the echo model to the alias of a variant whose next version is rolled out, each of them mirrored."""

    def prepared(cleanup: ExitStack) -> Call:
        platform = opened(cleanup, on_disk)
        for text in ("kind", "brief"):
            platform.variants.publish("desk/help", model="echo", template=f"Be {text}: {{question}}")
        platform.variants.promote("desk/help", 1)
        shadow = {"answers": 100_000, "share": 1.0, "purse": "1000"}
        platform.models.roll_out("variants/desk/help", 2, shadow=shadow)
        asked = {"model": "variants/desk/help@prod", "messages": MESSAGES, "user": "ann"}
        return lambda calls: [platform.chat.complete(**asked) for _ in range(calls)]

    return prepared


def stream(cleanup: ExitStack) -> Call:
    """Streamed answers of 200 tokens in process."""
    chat = opened(cleanup).chat

    def call(calls: int) -> None:
        for _ in range(calls):
            with chat.stream(model="echo", messages=LONG) as deltas:
                for _delta in deltas:
                    pass

    return call


def asgi(streamed: bool, on_disk: bool) -> Callable[[ExitStack], Call]:
    """Chat completions through the ASGI application, without a server."""

    def prepared(cleanup: ExitStack) -> Call:
        return through_asgi(cleanup, opened(cleanup, on_disk), "echo", LONG if streamed else MESSAGES, streamed)

    return prepared


def asking(
    members: dict[str, Any] | None = None,
    *,
    on_disk: bool = False,
    messages: Any = MESSAGES,
    path: str | None = None,
    headers: dict[str, str] | None = None,
    **limits: Any,
) -> Callable[[ExitStack], Call]:
    """Chat completions through the ASGI application with more than a plain request has, or by a key with limits."""
    options = {"members": members or {}, "headers": headers or {}, "limits": limits}

    def prepared(cleanup: ExitStack) -> Call:
        streamed = (members or {}).get("stream", False)
        return through_asgi(cleanup, opened(cleanup, on_disk), "echo", messages, streamed, path or CHAT, **options)

    return prepared


NUMBER = "@number@"
"""What stands in a request for a number that is another one in each."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{at}",
            "description": f"Look for the {at}th kind of thing.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
    }
    for at in range(20)
]
OTHER_TOOLS = json.loads(json.dumps(TOOLS).replace("Look for", f"Look {NUMBER} for"))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
HISTORY = [{"role": ("user", "assistant")[at % 2], "content": f"turn {at} of a conversation"} for at in range(199)]
HISTORY += [{"role": "user", "content": "hello there"}]
SDK = {
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "accept": "application/json",
    "user-agent": "OpenAI/Python 3.57.0",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "3.57.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.7",
    "x-stainless-async": "false",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600",
}
"""The headers of OpenAI's client in Python, besides those that every request has."""
WORDS = [{"role": "user", "content": " ".join(["word"] * 16_000)}]
MIB = [{"role": "user", "content": "x" * 2**20}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "hello there"}]}]
NAMED = [{"role": "user", "content": "hello there", "name": "ann"}]
NULLS = {"tools": None, "stop": None}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


CHAT = "/inference/v1/chat/completions"
SERVERS = "modelyard.parts.server.uvicorn_server", "modelyard.cli.uvicorn_server"
"""Where commits have the server, the newest first."""


def asked(
    platform: Any,
    model: str,
    messages: Any,
    streamed: bool,
    members: dict[str, Any] = {},  # noqa: B006 - only read
    headers: dict[str, str] = {},  # noqa: B006 - only read
    limits: dict[str, Any] = {},  # noqa: B006 - only read
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the body of a request for a chat completion."""
    said = {} if "input" in members else {"messages": messages}
    body = json.dumps({"model": model, **said, "stream": streamed, **members}).encode()
    if headers:  # as clients write it
        body = json.dumps({"messages": messages, "model": model, **members}, separators=(",", ":")).encode()
    common = {
        "host": "localhost",
        "content-type": "application/json",
        "authorization": f"Bearer {platform.keys.create('acme', **limits).secret}",
        "content-length": str(len(body)),
    }
    return [(name.encode(), value.encode()) for name, value in (common | headers).items()], body


def server_options(cleanup: ExitStack) -> dict[str, Any]:
    """How `modelyard serve` of the commit runs uvicorn."""
    for server in SERVERS:
        with suppress(ModuleNotFoundError):
            found = import_module(server)
            if hasattr(found, "collecting_rarely"):
                cleanup.enter_context(found.collecting_rarely())
            return {**found.OPTIONS}
    return {}


def served(on_disk: bool) -> Callable[[ExitStack], Call]:
    """Chat completions over HTTP, served by uvicorn; the clients are in another process."""

    def prepared(cleanup: ExitStack) -> Call:
        from _uvicorn_load import through_uvicorn

        from modelyard.asgi import asgi_app

        platform = opened(cleanup, on_disk, clock=SystemClock())
        request = asked(platform, "echo", MESSAGES, streamed=False)
        return through_uvicorn(asgi_app(platform), CHAT, *request, **server_options(cleanup))

    return prepared


def through_asgi(
    cleanup: ExitStack,
    platform: Any,
    model: str,
    messages: Any,
    streamed: bool,
    path: str | None = None,
    **options: Any,
) -> Call:
    """Requests for a chat completion to the platform's ASGI application, one after another."""
    from modelyard.asgi import asgi_app

    path = path or CHAT
    app, (headers, sent) = asgi_app(platform), asked(platform, model, messages, streamed, **options)
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    runner, numbers, varies = cleanup.enter_context(asyncio.Runner()), count(10_000_000), NUMBER.encode() in sent

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    async def requests(calls: int) -> None:
        for _ in range(calls):
            body = sent.replace(NUMBER.encode(), str(next(numbers)).encode()) if varies else sent
            pending = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                return pending.pop() if pending else await asyncio.Event().wait()  # noqa: B023 - awaited in its turn

            await app({**scope, "root_path": "", "scheme": "http", "headers": headers}, receive, send)

    return lambda calls: runner.run(requests(calls))


def hop(streamed: bool) -> Callable[[ExitStack], Call]:
    """Chat completions through the ASGI application in front of a constant server in another process."""

    def prepared(cleanup: ExitStack) -> Call:
        return through_asgi(cleanup, in_front(cleanup), "m", MESSAGES, streamed)

    return prepared


def served_hop(streamed: bool) -> Callable[[ExitStack], Call]:
    """The same over HTTP, served by uvicorn; the clients are in another process."""

    def prepared(cleanup: ExitStack) -> Call:
        from _uvicorn_load import through_uvicorn

        from modelyard.asgi import asgi_app

        platform = in_front(cleanup)
        request = asked(platform, "m", MESSAGES, streamed)
        return through_uvicorn(asgi_app(platform), CHAT, *request, **server_options(cleanup))

    return prepared


def in_front(cleanup: ExitStack) -> Any:
    """A platform in front of a constant server in another process."""
    upstream = found_in("modelyard.parts.upstream.backend", "modelyard.backends.upstream.backend").UpstreamBackend
    offer = found_in(
        "modelyard.parts.upstream.models", "modelyard.backends.upstream.models", "modelyard.backends.upstream.offers"
    ).offer
    url = cleanup.enter_context(constant_server())
    models = [offer("m", context_length=100_000, pricing=Pricing())]
    return opened(cleanup, backend=upstream(url, "k", models=models), clock=SystemClock())


@contextmanager
def constant_server() -> Iterator[str]:
    """The base URL of a server in a process of its own."""
    import subprocess

    script = HERE / "_constant_server.py"
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


# ---- evaluation and training -------------------------------------------------------------------------------------


def evaluation(concurrency: int, on_disk: bool) -> Callable[[ExitStack], Call]:
    """Evaluation runs of 200 rows."""
    rows = [{"prompt": f"question number {at}", "expected": f"question number {at}"} for at in range(EVALUATED)]

    def scorer(output: str, row: Any) -> bool:
        return bool(output == row["expected"])

    def prepared(cleanup: ExitStack) -> Call:
        evaluations = opened(cleanup, on_disk, clock=SystemClock()).evaluations
        options = {"project": "bench", "concurrency": concurrency}
        return lambda calls: [evaluations.run("bench", "echo", rows, scorer, **options) for _ in range(calls)]

    return prepared


def comparison(on_disk: bool) -> Callable[[ExitStack], Call]:
    """Comparisons of two runs of 2,000 rows."""
    rows = [{"prompt": f"question number {at}", "expected": at} for at in range(COMPARED)]

    def scorer(output: str, row: Any) -> float:
        return float(len(output) * row["expected"] % 7)

    def prepared(cleanup: ExitStack) -> Call:
        evaluations = opened(cleanup, on_disk, clock=SystemClock()).evaluations
        runs = [evaluations.run("bench", "echo", rows, scorer, project="bench").run.id for _ in range(2)]
        return lambda calls: [evaluations.compare(baseline=runs[0], candidate=runs[1]) for _ in range(calls)]

    return prepared


def events(size: int) -> Callable[[ExitStack], Call]:
    """Steps of a training run in SQLite, so many in a commit, if the claim holds: events and progress."""

    def prepared(cleanup: ExitStack) -> Call:
        from store import Run, fill

        from modelyard.domain.schema import RECORDS
        from modelyard.stores.sqlite import SqliteStore

        folder = cleanup.enter_context(tempfile.TemporaryDirectory())
        store = cleanup.enter_context(closing(SqliteStore(Path(folder) / "yard.db", RECORDS, "process")))
        fill(store, 1)
        run = Run(store)
        return lambda calls: [run.append(size) for _ in range(calls)]

    return prepared


def tabular_sft(cleanup: ExitStack) -> Call:
    """SFT jobs of the tabular model on the 292 rows of the example."""
    rows = [json.loads(line) for line in SUPPORT.read_text(encoding="utf-8").splitlines()]

    def call(calls: int) -> None:
        for _ in range(calls):
            with open_platform() as platform:
                platform.models.create("m", project="bench", base_model="tabular-mini")
                platform.training.sft("bench/m", rows).wait()

    return call


WORKLOADS: dict[str, Callable[[ExitStack], Call]] = {
    "completion": completion(on_disk=False),
    "completion-sqlite": completion(on_disk=True),
    "completion-budget": completion(on_disk=False, budget=True),
    "completion-sqlite-budget": completion(on_disk=True, budget=True),
    "completion-rollout": rolled_out(on_disk=False),
    "completion-sqlite-rollout": rolled_out(on_disk=True),
    "stream": stream,
    "asgi": asgi(streamed=False, on_disk=False),
    "asgi-sqlite": asgi(streamed=False, on_disk=True),
    "asgi-stream": asgi(streamed=True, on_disk=False),
    "asgi-user": asking({"user": "ann"}),
    "asgi-stop": asking({"stop": ["END"]}),
    "asgi-name": asking(messages=NAMED),
    "asgi-metadata": asking({"metadata": {"team": "7"}}),
    "asgi-logit-bias": asking({"logit_bias": {"50256": -100}}),
    "asgi-parts": asking(messages=PARTS),
    "asgi-stream-plain": asking({"stream": True}),
    "asgi-stream-options": asking(USAGE),
    "asgi-nulls": asking(NULLS),
    "asgi-sdk": asking(headers=SDK),
    "asgi-tools": asking({"tools": TOOLS}),
    "asgi-tools-once": asking({"tools": OTHER_TOOLS}),
    "asgi-schema": asking({"response_format": SCHEMA}),
    "asgi-n8": asking({"n": 8}),
    "asgi-history": asking(messages=HISTORY),
    "asgi-logprobs": asking({"logprobs": True}),
    "asgi-training": asking(path="/v1/chat/completions"),
    "asgi-store": asking({"store": True}),
    "asgi-sqlite-store": asking({"store": True}, on_disk=True),
    "asgi-messages": asking({"max_tokens": 64}, path="/v1/messages", headers={"anthropic-version": "2023-06-01"}),
    "asgi-responses": asking({"input": "hello there"}, path="/v1/responses"),
    "asgi-rate-limit": asking(requests_per_minute=10**6),
    "asgi-long": asking(messages=WORDS),
    "asgi-long-cut": asking({"max_tokens": 10}, messages=WORDS),
    "asgi-mib": asking(messages=MIB),
    "served": served(on_disk=False),
    "served-sqlite": served(on_disk=True),
    "hop": hop(streamed=False),
    "hop-stream": hop(streamed=True),
    "served-hop": served_hop(streamed=False),
    "served-hop-stream": served_hop(streamed=True),
    "evaluation-1": evaluation(1, on_disk=False),
    "evaluation-8": evaluation(8, on_disk=False),
    "evaluation-64": evaluation(64, on_disk=False),
    "evaluation-sqlite-1": evaluation(1, on_disk=True),
    "evaluation-sqlite-8": evaluation(8, on_disk=True),
    "evaluation-sqlite-64": evaluation(64, on_disk=True),
    "comparison": comparison(on_disk=False),
    "comparison-sqlite": comparison(on_disk=True),
    "events-sqlite": events(1),
    "events-sqlite-100": events(100),
    "tabular-sft": tabular_sft,
}
WARM = 10
"""Calls before those that are counted."""
REPEATABLE = tuple(name for name in WORKLOADS if name.partition("-")[0] in ("completion", "stream", "asgi", "events"))
"""Those that open no socket and hardly wait for a thread: their instructions are the same each time, to a percent."""


def answer_requests(name: str) -> None:
    """Make as many calls as each line of the standard input says, and print what they cost."""
    with ExitStack() as cleanup:
        call = WORKLOADS[name](cleanup)
        print("ready", flush=True)
        for line in sys.stdin:
            begun = time.process_time_ns()
            call(int(line))
            print(time.process_time_ns() - begun, flush=True)


def run_in_forks(calls: int, names: list[str]) -> None:
    """Print the processes that make the calls of each workload, and before them those that prepare it only."""
    for name in names:
        with ExitStack() as cleanup:
            WORKLOADS[name](cleanup)(1)  # loads what both forks need; a platform itself does not survive a fork
    gc.collect()
    gc.freeze()  # so that a count does not depend on what the other workloads have loaded
    for name in names:
        print(name, *(forked(name, number) for number in (0, calls)), flush=True)


def forked(name: str, calls: int) -> int:
    """The id of a process that has prepared a workload, warmed it up and made so many calls."""
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0, name
        return pid
    with ExitStack() as cleanup:  # held: a platform whose folder is removed has no file
        call = WORKLOADS[name](cleanup)
        call(WARM)
        call(calls)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        run_in_forks(int(sys.argv[1]), sys.argv[2:])
    else:
        answer_requests(sys.argv[1])
