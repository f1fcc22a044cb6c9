"""A client without sockets, in both modes of the endpoint, that checks every exchange against the OpenAPI document."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard.compose import open_platform
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request, Response
from modelyard.http.openapi import document
from modelyard.http.route import Interface
from modelyard.service.platform import Platform

_spec = importlib.util.spec_from_file_location("openapi_check", Path(__file__).parents[1] / "openapi_check.py")
assert _spec is not None
assert _spec.loader is not None
openapi_check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(openapi_check)


@attrs.frozen
class Answer:
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the word at its end as text."""
        found = [event.removeprefix(b"data: ") for event in self.raw.split(b"\n\n") if event]
        return [event.decode() if event == b"[DONE]" else json.loads(event) for event in found]


@attrs.define
class Client:
    """Sends requests with one key. `asynchronous` says which face of the endpoint is asked."""

    platform: Platform
    endpoint: Endpoint
    key: str
    asynchronous: bool
    description: Any

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | Iterable[bytes] | None = None,
        headers: Iterable[tuple[str, str]] = (),
        query: str = "",
        key: str | None = None,
        auth: str = "Bearer",
        check: bool = True,
    ) -> Answer:
        """Send and read to the end. `raw` goes in the place of JSON; an empty `key` sends no Authorization."""
        key = self.key if key is None else key
        sent = [*([("authorization", f"{auth} {key}")] if key else []), *headers]
        chunks = [raw] if isinstance(raw, bytes) else list(raw) if raw is not None else _json(body)
        answer = self._exchange(method, path, query, sent, chunks)
        if check and method != "HEAD":
            self.description.check_answer(
                method, path, answer.status, answer.headers.get("content-type", ""), answer.raw
            )
        if check and answer.status == 200 and body is not None:
            self.description.check_request(method, path, body)
        return answer

    def chat(
        self, content: str = "hello there", *, path: str = "/inference/v1/chat/completions", **members: Any
    ) -> Answer:
        """Ask the echo."""
        sent = {key: members.pop(key) for key in ("headers", "key") if key in members}
        body = {"model": "echo", "messages": [{"role": "user", "content": content}], **members}
        return self.send("POST", path, body, **sent)

    def _exchange(
        self, method: str, path: str, query: str, headers: list[tuple[str, str]], chunks: list[bytes]
    ) -> Answer:
        if self.asynchronous:
            return asyncio.run(self._aexchange(Request(method, path, query, headers, _aiter(chunks))))
        response = self.endpoint.handle(Request(method, path, query, headers, iter(chunks)))
        whole = response.body if isinstance(response.body, bytes) else b"".join(response.body)  # type: ignore[arg-type]
        return _answer(response, whole)

    async def _aexchange(self, request: Request) -> Answer:
        response = await self.endpoint.ahandle(request)
        if isinstance(response.body, bytes):
            return _answer(response, response.body)
        return _answer(response, b"".join([piece async for piece in response.body]))  # type: ignore[union-attr]


def _json(body: Any) -> list[bytes]:
    return [] if body is None else [json.dumps(body).encode()]


async def _aiter(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def _answer(response: Response, raw: bytes) -> Answer:
    assert len({name for name, _ in response.headers}) == len(response.headers), "a header was answered twice"
    return Answer(response.status, dict(response.headers), raw)


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, platform: Platform) -> Client:
    return client_of(platform, asynchronous=request.param)


def client_of(platform: Platform, asynchronous: bool = False, **options: Any) -> Client:
    """A client with a key of the entity acme. All interfaces are mounted, unless `options` name some."""
    endpoint = Endpoint(platform, **{"interfaces": list(Interface), **options})
    key = platform.keys.create("acme").secret
    return Client(platform, endpoint, key, asynchronous, openapi_check.Document(document(endpoint.table.routes)))


@pytest.fixture(scope="session")
def client_for() -> Any:
    """`client_of`, for platforms of a test's own."""
    return client_of
