"""Random requests are answered in the same way whether nothing waits, or everything does: the bytes that are sent, the
ledger, its totals, the events and the counts are the same.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.backends import EchoBackend
from modelyard.clock import SystemClock
from modelyard.domain.catalogue import Pricing
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request

PATHS = ["/inference/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions/"]
PLAIN: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hello there"}]}
HEADERS = [
    ("content-type", "application/json"),
    ("content-type", "application/json; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-encoding", "gzip"),
    ("content-length", "999999999"),
    ("x-request-id", "mine-1"),
    ("x-request-id", "not one"),
    ("openai-project", "acme/p"),
    ("origin", "https://a.example"),
    ("x-other", "\xff"),
]
MEMBERS: dict[str, list[Any]] = {
    "model": ["echo", "nothing", "", 7],
    "messages": [[], [{"role": "user", "content": '"quoted"\n\\'}] * 3, [{"role": "tool", "content": "x"}], "hello"],
    "stream": [True, False, 1],
    "temperature": [0.5, 1, 3],
    "max_tokens": [1, 5, 0],
    "n": [1, 2],
    "seed": [7],
    "stop": ["there"],
    "logprobs": [True],
    "store": [True],
    "unknown": [1],
}


@attrs.frozen
class Asked:
    """One request: its way, its headers, and its body in bytes."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    raw: bytes


def one_or_more(choices: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    single = [st.fixed_dictionaries({name: st.sampled_from(values)}) for name, values in choices.items()]
    return st.just({}) | st.one_of(single) | st.builds(lambda one, two: one | two, *[st.one_of(single)] * 2)


BODIES = one_or_more(MEMBERS).map(lambda more: json.dumps(PLAIN | more).encode()) | st.sampled_from(
    [b"", b"{", b"[" * 100, b'{"model": "echo", "model": "echo", "messages": []}', b"\xff", b"null"]
)
ASKED = st.builds(
    Asked,
    st.sampled_from(["POST", "POST", "POST", "POST", "GET", "OPTIONS", "PUT"]),
    st.sampled_from([*PATHS, "/nowhere"]),
    st.lists(st.sampled_from(HEADERS), max_size=3).map(tuple),
    BODIES,
)
KEYS = st.sampled_from(["known", "known", "known", "wrong", "none"])


class _StoppedClock(SystemClock):
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 1.0


def scope_of(asked: Asked) -> dict[str, Any]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in asked.headers]
    path = {"path": asked.path, "raw_path": asked.path.encode(), "query_string": b""}
    return {"type": "http", "method": asked.method, "headers": headers, **path}


def at_once(endpoint: Any, asked: Asked) -> object:
    """Through ASGI: the body is there in one message, and nothing waits."""
    return asyncio.run(_carried(endpoint, asked, [asked.raw], waiting=False))


def in_parts(endpoint: Any, asked: Asked) -> object:
    """Through ASGI: the body comes in single bytes, and the loop turns at every message."""
    return asyncio.run(
        _carried(endpoint, asked, [asked.raw[at : at + 1] for at in range(len(asked.raw))], waiting=True)
    )


async def _carried(app: Any, asked: Asked, parts: list[bytes], waiting: bool) -> object:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts[:-1]]
    messages += [{"type": "http.request", "body": parts[-1] if parts else b""}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if waiting:
            await asyncio.sleep(0)
        return messages.pop(0) if messages else await asyncio.Event().wait()  # type: ignore[func-returns-value]

    async def send(message: dict[str, Any]) -> None:
        if waiting:
            await asyncio.sleep(0)
        sent.append(message)

    await app(scope_of(asked), receive, send)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)


def blocking(endpoint: Any, asked: Asked) -> object:
    """By blocking calls, as through WSGI."""
    response = endpoint.handle(Request(asked.method, asked.path, "", list(asked.headers), iter([asked.raw])))
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    return response.status, response.headers, body


def awaiting(endpoint: Any, asked: Asked) -> object:
    """On an event loop, from a body that does not know when it is complete."""

    async def parts() -> AsyncIterator[bytes]:
        yield asked.raw[:3]
        await asyncio.sleep(0)
        yield asked.raw[3:]

    async def answered() -> object:
        response = await endpoint.ahandle(Request(asked.method, asked.path, "", list(asked.headers), parts()))
        whole = isinstance(response.body, bytes)
        body = response.body if whole else b"".join([piece async for piece in response.body])
        return response.status, response.headers, body

    return asyncio.run(answered())


class _Waiting(EchoBackend):
    """The echo as a backend that waits before all that it says."""

    async def astream(self, request: Any, model: Any) -> AsyncIterator[Any]:
        for delta in self.stream(request, model):
            await asyncio.sleep(0)
            yield delta


def seen(carry: Any, backend: type[EchoBackend], asked: list[tuple[Asked, str]], origins: tuple[str, ...]) -> object:
    """What becomes of these requests."""
    numbers, events = count(), list[Any]()
    fixed: dict[str, Any] = {"clock": _StoppedClock(), "ids": lambda: f"id-{next(numbers):04d}"}
    fixed |= {"randomness": lambda size: b"\1" * size, "observer": events.append}
    fixed |= {"backend": backend(pricing=Pricing("0.001", "0.002"))}
    with open_platform(**fixed) as platform:
        keys = {"known": platform.keys.create("acme").secret, "wrong": "nobody's", "none": ""}
        through = Endpoint(platform, cors_origins=origins)
        app = asgi_app(platform, cors_origins=origins)
        meters = platform.metrics.count()
        answers = []
        for one, key in asked:
            shown = (("authorization", f"Bearer {keys[key]}"),) if keys[key] else ()
            target = app if carry in (at_once, in_parts) else through
            answers.append(carry(target, attrs.evolve(one, headers=(*shown, *one.headers))))
        kept = [*platform.usage.list(entity="acme")], [*platform.chat.list(entity="acme")]
        totals = platform.usage.total(entity="acme", by=("project", "model", "key", "day"))
        routes = {route: (meter.requests, meter.seconds.counts) for route, meter in meters.routes.items()}
        models = {name: (meter.requests, meter.cost) for name, meter in meters.models.items()}
    return answers, events, kept, totals, routes, models, meters.refusals


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ASKED, KEYS), min_size=1, max_size=3), st.sampled_from([(), ("https://a.example",)]))
def test_what_never_waits_is_answered_as_what_always_waits(
    asked: list[tuple[Asked, str]], origins: tuple[str, ...]
) -> None:
    quick = seen(at_once, EchoBackend, asked, origins)
    assert seen(in_parts, _Waiting, asked, origins) == quick
    assert seen(blocking, EchoBackend, asked, origins) == quick
    assert seen(awaiting, EchoBackend, asked, origins) == quick
