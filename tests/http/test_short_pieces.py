"""Nothing that a tenant sends holds the interpreter for long in one piece, so that others have their turn.

A piece ends where a function of Python begins or ends, or one of C does. Its time is that of the thread, as a multiple
of the time to parse a string of one MiB in this process: no busy neighbour, and no slow machine, changes that much.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.completion import Choice, FinishReason, Message, Role, TokenLogprob
from modelyard.formats.json import dumps
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request
from modelyard.parts.responses.formats.response import output_of
from modelyard.stores import json_values

pytestmark = [pytest.mark.slow, pytest.mark.parts]

MIB = 2**20
LONGEST = 160
"""Strings of one MiB that could be parsed meanwhile: 50 ms where one takes a third of a millisecond."""
TRIES = 3
RELEASING = {"execute", "update", "openssl_sha256", "read", "write", "fsync"}
"""Functions of C that let others run while they work."""

CHAT, DATASETS = "/v1/chat/completions", "/v1/preview/datasets"


def chat(content: Any, **more: Any) -> bytes:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return json.dumps({"model": "echo", "messages": messages, **more}).encode()


def row(content: str) -> bytes:
    return json.dumps({"messages": [{"role": "assistant", "content": content}]}).encode()


SHAPES: dict[str, tuple[str, bytes]] = {
    "a word, and its log-probabilities": (CHAT, chat("x" * (4 * MIB))),
    "a word of most bytes": ("/v1/messages", chat("x" * (7 * MIB), max_tokens=5)),
    "a word to embed": ("/v1/embeddings", json.dumps({"model": "echo", "input": "x" * (7 * MIB)}).encode()),
    "n of much": (CHAT, chat("x" * (4 * MIB), n=128)),
    "many messages": (CHAT, chat([{"role": "user", "content": "x"}] * 15_000)),
    "deep": (CHAT, b"[" * (7 * MIB)),
    "pairs": (CHAT, b"[]" * (3 * MIB)),
    "a number": (CHAT, b'{"a":' + b"1" * (7 * MIB) + b"}"),
    "white space": (CHAT, b" " * (7 * MIB) + chat("hi")),
    "quotes": (DATASETS, row('"' * (3 * MIB))),
    "a long line": (DATASETS, row("x" * (14 * MIB))),
    "a line without end": (DATASETS, b"x" * (20 * MIB)),
    "empty lines": (DATASETS, b"\n" * (40 * MIB)),
}


class Pieces:
    """The longest piece of this thread and of those that have begun while this is open, and their calls of Python."""

    def __init__(self) -> None:
        self.longest: tuple[float, str] = (0.0, "")
        self.calls = 0
        self._local = threading.local()

    def __enter__(self) -> "Pieces":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: Any, event: str, function: Any) -> None:
        self.calls += event == "call"
        passed = time.thread_time() - getattr(self._local, "at", time.thread_time())
        releases = event == "c_return" and getattr(function, "__name__", "") in RELEASING
        if passed > self.longest[0] and not releases:
            self.longest = (passed, f"{frame.f_code.co_qualname}, at {event} of {function}"[:200])
        self._local.at = time.thread_time()


def unit() -> float:
    """Seconds of this thread for a string of one MiB, at the best."""
    text, best = json.dumps("x" * MIB), 1.0
    for _ in range(10):
        began = time.thread_time()
        json.loads(text)
        best = min(best, time.thread_time() - began)
    return best


async def _pieces_of(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 2**16):
        yield body[at : at + 2**16]


@pytest.fixture
def pieces() -> Iterator[Pieces]:
    with Pieces() as pieces:
        yield pieces


@pytest.fixture
def served(pieces: Pieces, tmp_path: Path) -> Iterator[tuple[Endpoint, str]]:
    with open_platform(tmp_path / "yard.db", durability="process") as platform:
        yield Endpoint(platform), platform.keys.create("greedy").secret


def ask(served: tuple[Endpoint, str], path: str, body: bytes) -> None:
    endpoint, key = served
    headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]

    async def send() -> None:
        response = await endpoint.ahandle(Request("POST", path, "project=p&name=d", headers, _pieces_of(body)))
        assert response.status < 500

    asyncio.run(send())


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_of_one_tenant_holds_the_interpreter_for_long(
    shape: str, served: tuple[Endpoint, str], pieces: Pieces
) -> None:
    path, body = SHAPES[shape]
    ask(served, path, chat("what is loaded first", max_tokens=5))
    found = []
    for _ in range(TRIES):
        pieces.longest = (0.0, "")
        ask(served, path, body)
        seconds, where = pieces.longest
        found.append((seconds / unit(), where))
        if found[-1][0] < LONGEST:
            return
    pytest.fail(str(found))


DOORS: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user"}], "max_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "", "max_tokens": 1},
    "/v1/responses": {"input": "", "max_output_tokens": 1},
    "/v1/embeddings": {"input": ""},
}


@pytest.mark.parametrize("path", DOORS)
def test_a_longer_text_takes_no_more_calls(path: str, served: tuple[Endpoint, str], pieces: Pieces) -> None:
    """A text that is walked through by its characters takes seconds of each MiB."""
    counted = []
    for size in (1, 2**10, 2**18):
        begun, text = pieces.calls, "x" * size
        asked = {name: text if value == "" else value for name, value in DOORS[path].items()}
        if "messages" in asked:
            asked["messages"] = [{"role": "user", "content": text}]
        ask(served, path, json.dumps({"model": "echo", **asked}).encode())
        counted.append(pieces.calls - begun)
    assert counted[2] < counted[1] + 2**18 / 50, counted


WRITERS: dict[str, Callable[[Any], object]] = {"store": json_values.dump, "body": dumps}


@pytest.mark.parametrize("writer", WRITERS)
def test_log_probabilities_of_an_item_are_written_in_pieces(writer: str, pieces: Pieces) -> None:
    entries = (TokenLogprob("x", -0.5, bytes=(120,)),) * 5_000
    output = output_of(Choice(0, Message(Role.ASSISTANT, "x"), FinishReason.STOP, entries), "resp_1")
    begun = pieces.calls
    WRITERS[writer](output)
    assert pieces.calls - begun >= len(entries)


def test_a_long_piece_is_seen() -> None:
    with Pieces() as pieces:
        json.loads('"%s"' % ("x" * 20 * MIB))
    assert pieces.longest[0] > 10 * unit()
