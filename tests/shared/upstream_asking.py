"""Asking an upstream backend in both ways, answers of servers as bytes, and clocks that need no one to move them."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from modelyard import Pricing
from modelyard.backends import VLLM, Timeouts, UpstreamBackend, offer
from modelyard.backends.deltas import aone_by_one, one_by_one
from modelyard.domain.completion import CompletionRequest, Delta, Message, Role, Sampling
from modelyard.parts.upstream.fake_vllm.misbehaviour import Gate
from modelyard.protocols import Deltas, ServedModel
from modelyard.testing.clock import ManualClock

SECRET = "sk-very-secret"
FREE = Pricing()


def request_of(model: str = "echo", text: str = "one two three four", **fields: Any) -> CompletionRequest:
    requested = CompletionRequest(model, (Message(Role.USER, text),), sampling=Sampling(seed=7), max_tokens=50)
    return attrs.evolve(requested, **fields)


def backend_at(url: str, **options: Any) -> UpstreamBackend:
    offered = [offer("echo", context_length=1000, pricing=FREE, capabilities=VLLM)]
    return UpstreamBackend(url, **{"api_key": SECRET, "jitter": lambda: 0.0, "models": offered, **options})


def served(backend: UpstreamBackend, model: str = "echo") -> ServedModel:
    return ServedModel(model, next(entry for entry in backend.entries() if entry.id == model))


def ask(backend: UpstreamBackend, **fields: Any) -> list[Delta]:
    requested = request_of(**fields)
    return list(one_by_one(backend.stream(requested, served(backend, requested.model))))


def ask_on_loop(backend: UpstreamBackend, **fields: Any) -> list[Delta]:
    """The same, on an event loop of its own."""
    return asyncio.run(_asked(backend, **fields))


def ask_on_uvloop(backend: UpstreamBackend, **fields: Any) -> list[Delta]:
    """The same, on the event loop with which uvicorn serves; its transports are not those of asyncio."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_asked(backend, **fields))


async def _asked(backend: UpstreamBackend, **fields: Any) -> list[Delta]:
    requested = request_of(**fields)
    return [delta async for delta in aone_by_one(backend.astream(requested, served(backend, requested.model)))]


def text_of(deltas: Iterable[Deltas]) -> str:
    return "".join(delta.text for delta in one_by_one(iter(deltas)))


class Hurried(ManualClock):
    """A clock that no test has to move: a caller that waits has waited. `waits` are the times."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        self.advance(seconds)
        return event.is_set()

    async def asleep(self, seconds: float) -> None:
        if seconds < TIMEOUTS.first_token:
            self.waits.append(seconds)
            self.advance(seconds)
        else:
            await super().asleep(seconds)


TIMEOUTS = Timeouts(first_token=600, between_tokens=600, retries=2, backoff=1.0, deadline=30)


def http(body: bytes, content_type: str = "application/json", status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@contextmanager
def passing(clock: ManualClock, gate: Gate) -> Iterator[None]:
    """Time passes once a caller stands at the gate."""
    over = threading.Event()

    def move() -> None:
        gate.reached()
        while not over.wait(0.001):
            clock.advance(1)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
