"""Answering in process beside its floors, as JSON: python benchmarks/completion.py. CPU microseconds a call.

Compared figures are measured in turns within one run, so that a busy machine slows all of them.
"""

import asyncio
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import count
from pathlib import Path

from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends.echo import EchoBackend
from modelyard.clock import SystemClock, uuid7_ids
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import (
    Choice,
    Completion,
    CompletionRequest,
    FinishReason,
    Message,
    Role,
    Sampling,
    Usage,
)
from modelyard.domain.identity import host
from modelyard.domain.schema import RECORDS
from modelyard.platform.chat.service import Chat
from modelyard.platform.runtime import Runtime, Settings
from modelyard.platform.usage.service import Ledger
from modelyard.protocols import ServedModel, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore

HOST = host()
WORDS = " ".join(["word"] * 100)
MESSAGES = [{"role": role, "content": WORDS} for role in ("system", "assistant", "user")]
LONG = " ".join(["word"] * 1000)
PRICING = Pricing(Decimal("0.0000005"), Decimal("0.0000015"))
ROUNDS, CALLS = 40, 50
TARGET = 60


def open_chat(store: Store) -> Chat:
    runtime = Runtime(
        store=store,
        artifacts=MemoryArtifacts(os.urandom),
        backend=EchoBackend(pricing=PRICING),
        trainers=(),
        clock=SystemClock(),
        ids=uuid7_ids(),
        randomness=os.urandom,
        observer=None,
        settings=Settings(),
    )
    return Chat(runtime, HOST)


def complete(chat: Chat) -> Callable[[], object]:
    return lambda: chat.complete(model="echo", messages=MESSAGES)


def complete_and_read_back(chat: Chat) -> Callable[[], object]:
    ledger = Ledger(chat._runtime, HOST)

    def call() -> object:
        answer = chat.complete(model="echo", messages=MESSAGES)
        return ledger.get(answer.id)

    return call


def bare_values() -> object:
    """The floor: the values of a request and its answer, made and not used."""
    messages = tuple(Message(Role(message["role"]), message["content"]) for message in MESSAGES)
    request = CompletionRequest("echo", messages, Sampling())
    usage = Usage(sum(message.text.count(" ") + 1 for message in messages), 100)
    choice = Choice(0, Message(Role.ASSISTANT, request.messages[-1].text), FinishReason.STOP)
    return Completion("id", 0, "echo", (choice,), usage)


def raw_insert(folder: Path) -> Callable[[], object]:
    """The floor of a store on disk: one ledger row, committed without a sync of its own."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
    columns = ", ".join(f"c{at} TEXT" for at in range(14))
    connection.execute(f"CREATE TABLE ledger (id TEXT PRIMARY KEY, {columns}) STRICT")
    numbers, rest = count(), ["x" * 12] * 14
    sql = f"INSERT INTO ledger VALUES ({', '.join('?' * 15)})"

    def call() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql, (f"{next(numbers):036}", *rest))
        connection.execute("COMMIT")

    return call


def median_us(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """CPU time of each, in turns; garbage collection included, as every caller pays for it."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begun = time.process_time_ns()
            for _ in range(CALLS):
                call()
            times[name].append((time.process_time_ns() - begun) / CALLS / 1000)
    return {name: round(statistics.median(found), 1) for name, found in times.items()}


def per_piece() -> dict[str, float]:
    """A stream of 1,000 pieces, per piece."""
    chat, backend = open_chat(MemoryStore(RECORDS)), EchoBackend()
    request = CompletionRequest("echo", (Message(Role.USER, LONG),), streamed=True)
    model = ServedModel("echo", backend.entries()[0])

    async def astream() -> None:
        async for _ in chat.astream(request):
            pass

    calls: dict[str, Callable[[], object]] = {
        "the backend alone": lambda: list(backend.stream(request, model)),
        "stream": lambda: list(chat.stream(request)),
        "astream": lambda: asyncio.run(astream()),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS // 2):
        for name, call in calls.items():
            begun = time.process_time_ns()
            call()
            times[name].append((time.process_time_ns() - begun) / 1_000_000)
    return {name: round(statistics.median(found), 2) for name, found in times.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        on_disk = SqliteStore(str(folder / "yard.db"), RECORDS)
        memory = open_chat(MemoryStore(RECORDS))
        figures = median_us(
            {
                "values alone": bare_values,
                "complete, memory": complete(memory),
                "complete and read the row, memory": complete_and_read_back(memory),
                "raw sqlite3 insert": raw_insert(folder),
                "complete, sqlite": complete(open_chat(on_disk)),
            }
        )
        on_disk.close()
    allowed = figures["complete, memory"] + 2 * figures["raw sqlite3 insert"]
    report = {
        "python": platform.python_version(),
        "call, CPU us": figures,
        "memory, target us": TARGET,
        "memory / values alone": round(figures["complete, memory"] / figures["values alone"], 1),
        "sqlite / (memory + 2 raw inserts), target 1": round(figures["complete, sqlite"] / allowed, 2),
        "streamed piece, CPU us": per_piece(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
