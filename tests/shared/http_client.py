"""A client without sockets, for both faces of an endpoint, that checks every exchange against the OpenAPI document."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self
from urllib.parse import urlencode

import attrs

from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.http.message import Request, Response
from modelyard.platform.platform import Platform
from openapi_check import Document, described

Query = str | Mapping[str, Any] | Iterable[tuple[str, Any]]


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
    def lines(self) -> list[Any]:
        """JSON Lines."""
        return [json.loads(line) for line in self.raw.splitlines()]

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the word at its end as text."""
        found = [event.rpartition(b"data: ")[2] for event in self.raw.split(b"\n\n") if event]
        return [event.decode() if event == b"[DONE]" else json.loads(event) for event in found]

    @property
    def locs(self) -> list[list[str]]:
        """Where the problems of a refused input are."""
        return [problem["loc"] for problem in self.json["detail"]]


@attrs.define
class Client:
    """Sends requests with one key. `asynchronous` says which face of the endpoint is asked."""

    platform: Platform
    endpoint: Endpoint
    key: str
    asynchronous: bool = False
    description: Document = attrs.field(factory=described)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | Iterable[bytes] | None = None,
        headers: Iterable[tuple[str, str]] = (),
        query: Query = "",
        key: str | None = None,
        auth: str = "Bearer",
        check: bool = True,
    ) -> Answer:
        """Send and read to the end. `raw` goes in the place of JSON; an empty `key` sends no Authorization."""
        sent = [*self.credentials(key, auth), *headers]
        chunks = [raw] if isinstance(raw, bytes) else list(raw) if raw is not None else _json(body)
        text = query if isinstance(query, str) else urlencode(query)
        answer = self._exchange(method, path, text, sent, chunks)
        if check:
            media = answer.headers.get("content-type", "")
            self.description.check(method, path, text, b"".join(chunks), answer.status, media, answer.raw)
        return answer

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """What a request that is accepted answers."""
        answer = self.send(method, path, body, **more)
        assert answer.status == 200, answer.raw
        return answer.json

    def chat(
        self, content: str = "hello there", *, path: str = "/inference/v1/chat/completions", **members: Any
    ) -> Answer:
        """Ask the echo."""
        sent = {key: members.pop(key) for key in ("headers", "key") if key in members}
        body = {"model": "echo", "messages": [{"role": "user", "content": content}], **members}
        return self.send("POST", path, body, **sent)

    def another(self, *arguments: Any) -> Self:
        """The same with a new key of these grants."""
        return attrs.evolve(self, key=self.platform.keys.create(*arguments).secret)

    def credentials(self, key: str | None = None, auth: str = "Bearer") -> list[tuple[str, str]]:
        """The header that says who calls; none for an empty key."""
        key = self.key if key is None else key
        shown = base64.b64encode(f"api:{key}".encode()).decode() if auth.lower() == "basic" else key
        return [("authorization", f"{auth} {shown}")] if key else []

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


def client_of(platform: Platform, asynchronous: bool = False, kind: type[Client] = Client, **options: Any) -> Any:
    """A client with a key of the entity acme. All interfaces are mounted, unless `options` name some."""
    mounted = {"interfaces": tuple(Interface), **options}
    endpoint = Endpoint(platform, **mounted)
    key = platform.keys.create("acme").secret
    return kind(platform, endpoint, key, asynchronous, description=described(tuple(mounted["interfaces"])))


def _json(body: Any) -> list[bytes]:
    return [] if body is None else [json.dumps(body).encode()]


async def _aiter(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def _answer(response: Response, raw: bytes) -> Answer:
    assert len({name for name, _ in response.headers}) == len(response.headers), "a header was answered twice"
    return Answer(response.status, dict(response.headers), raw)
