"""Whether what goes over the wire is what the OpenAPI document says: requests, answers, and streams event by event."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar, Self, cast
from urllib.parse import parse_qs

from jsonschema import Draft202012Validator

from modelyard.http.endpoint import Endpoint, route_table
from modelyard.http.interface import Interface
from modelyard.http.message import Request, Response
from modelyard.http.openapi import document
from modelyard.http.router import mounted_path
from modelyard.part import standard_parts

JSON, JSON_LINES, EVENTS = "application/json", "application/jsonl", "text/event-stream"
DONE = "[DONE]"
UNDESCRIBED = {400, 401, 404, 405}
"""What a path or a method that is not in the document may be answered with."""
NO_BODY = {204, 304}


class Document:
    """An OpenAPI document, to check exchanges against. Answers may have no members that it does not describe."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._paths = document["paths"]
        self._taken, self._given = _Schemas(document["components"]), _Schemas(_closed(document["components"]))
        # A parameter may take several segments, so the path that says more itself comes first.
        self._most_exact_first = sorted(self._paths, key=lambda path: (-path.count("/"), path.count("{")))
        self._pattern = re.compile("|".join(f"({_pattern(path)})" for path in self._most_exact_first))

    def check(self, method: str, path: str, query: str, body: bytes, status: int, media: str, raw: bytes) -> None:
        """A whole exchange: the answer, and the request where it was accepted."""
        answer = self.answer(method, path, status, media)
        answer.resume(raw)
        answer.end()
        if 200 <= status < 300:
            self.check_request(method, path, query, body)

    def check_request(self, method: str, path: str, query: str, body: bytes) -> None:
        """A request that was accepted is one that is described. What else the query has is ignored."""
        operation = self._operation(method, path)
        if operation is None:
            return
        given = parse_qs(query, keep_blank_values=True)
        for parameter in operation["parameters"]:
            if parameter["in"] == "query":
                _check_parameter(parameter, given.get(parameter["name"]))
        schema = operation.get("requestBody", {"content": {}})["content"].get(JSON)
        if schema is not None and body:
            self._taken.check(schema["schema"], body)
        elif schema is not None:
            assert not operation["requestBody"]["required"], f"{method} {path} was accepted without a body"

    def answer(self, method: str, path: str, status: int, media: str) -> "Answered":
        """Checks an answer whose head has come: it has a status and a media type that are described."""
        operation, media = self._operation(method, path), media.partition(";")[0]
        if operation is None:
            assert status in UNDESCRIBED or method in ("HEAD", "OPTIONS"), f"{method} {path} is not described"
        if operation is None or status in NO_BODY:
            return Answered("", lambda text: None)
        responses = operation["responses"]
        assert str(status) in responses or status >= 400, f"{method} {path} answered {status}"
        reply, failure = responses.get(str(status), responses["default"])["content"], responses["default"]["content"]
        assert media in reply, f"{method} {path} answered {status} with {media}"

        def check(text: bytes) -> None:
            told_late = media == EVENTS and "error" in json.loads(text)
            self._given.check(failure[JSON]["schema"] if told_late else reply[media]["schema"], text)

        return Answered(media, check)

    def _operation(self, method: str, path: str) -> Mapping[str, Any] | None:
        found = self._pattern.fullmatch(path)
        if found is None or found.lastindex is None:
            return None
        operation: Mapping[str, Any] | None = self._paths[self._most_exact_first[found.lastindex - 1]].get(
            method.lower()
        )
        return operation


class Answered:
    """The body of an answer as it comes, in pieces of any size: each value is checked as soon as it is whole."""

    _ends: Mapping[str, bytes] = {EVENTS: b"\n\n", JSON_LINES: b"\n"}

    def __init__(self, media: str, check: Callable[[bytes], None]) -> None:
        self._media, self._check, self._rest = media, check, b""

    def resume(self, piece: bytes) -> None:
        """The next bytes."""
        if self._media not in (JSON, *self._ends):
            return
        self._rest += piece
        if self._media in self._ends:
            *whole, self._rest = self._rest.split(self._ends[self._media])
            for value in whole:
                self._value(value)

    def end(self) -> None:
        """There are no more."""
        if self._media == JSON:
            self._check(self._rest)
        else:
            assert not self._rest, f"the answer broke off in the middle of {self._rest!r}"

    def _value(self, text: bytes) -> None:
        if self._media == EVENTS:
            named, text = text.partition(b"\n")[::2] if text.startswith(b"event: ") else (b"", text)
            assert text.startswith(b"data: "), f"an event reads {text!r}"
            text = text.removeprefix(b"data: ")
            assert not named or json.loads(text)["type"].encode() == named.removeprefix(b"event: ")
        if text.decode() != DONE:
            self._check(text)


@cache
def described(interfaces: tuple[Interface, ...] = tuple(Interface)) -> Document:
    """The document of the interfaces, as an endpoint shows it."""
    return Document(document(route_table(frozenset(interfaces), tuple(standard_parts())).routes))


# ---- beneath a server ----------------------------------------------------------------------------------------------

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Checked:
    """An ASGI application that breaks off with an error, kept in `faults`, where `app` is not as it is described."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.faults: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an exchange on. Nothing of a JSON answer is sent before it is checked."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            exchange = _Exchange(scope, receive, send)
            await self._app(scope, exchange.receive, exchange.send)
        except AssertionError as fault:
            self.faults.append(f"{scope['method']} {scope['path']}: {fault}")
            raise


class _Exchange:
    """One request on its way through `Checked`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        self._path = mounted_path(raw and raw.decode("latin-1"), scope["path"], scope.get("root_path", ""))
        self._method, self._query = scope["method"], scope["query_string"].decode("latin-1")
        self._receive, self._send = receive, send
        self._body = b""
        self._kept: list[Any] = []

    async def receive(self) -> Any:
        """What the client sends."""
        message = await self._receive()
        self._body += message.get("body", b"")
        return message

    async def send(self, message: Any) -> None:
        """What the application answers."""
        if message["type"] == "http.response.start":
            self._begin(message)
        else:
            self._hear(message)
        self._kept.append(message)
        if self._streams or not (message["type"] == "http.response.start" or message.get("more_body")):
            for kept in self._kept:
                await self._send(kept)
            self._kept.clear()

    def _begin(self, message: Any) -> None:
        headers, status = {name.decode(): value.decode() for name, value in message["headers"]}, message["status"]
        media = headers.get("content-type", "")
        self._streams = media != JSON
        self._answered = described().answer(self._method, self._path, status, media)
        if 200 <= status < 300:
            described().check_request(self._method, self._path, self._query, self._body)

    def _hear(self, message: Any) -> None:
        self._answered.resume(message.get("body", b""))
        if not message.get("more_body"):
            self._answered.end()


# ---- in process ----------------------------------------------------------------------------------------------------


class CheckedEndpoint(Endpoint):
    """An endpoint that checks every exchange as it passes, and keeps in `faults` what was not as it is described."""

    faults: ClassVar[list[str]] = []

    def handle(self, request: Request) -> Response:
        sent: list[bytes] = []
        request.body = _noted(cast(Iterator[bytes], request.body), sent)
        return self._checked(request, super().handle(request), sent)

    async def ahandle(self, request: Request) -> Response:
        sent: list[bytes] = []
        request.body = _anoted(cast(AsyncIterator[bytes], request.body), sent)
        return self._checked(request, await super().ahandle(request), sent)

    def _checked(self, request: Request, response: Response, sent: Sequence[bytes]) -> Response:
        media, body = dict(response.headers).get("content-type", ""), response.body
        path = f"{request.method} {request.raw_path}"
        try:
            answered = described().answer(request.method, request.raw_path, response.status, media)
            if 200 <= response.status < 300:
                described().check_request(request.method, request.raw_path, request.query, b"".join(sent))
            if isinstance(body, bytes):
                answered.resume(body)
                answered.end()
            else:
                response.body = cast(Iterator[bytes], _Heard(body, answered, path))
        except AssertionError as fault:
            self.faults.append(f"{path}: {fault}")
        return response


def _noted(pieces: Iterator[bytes], sent: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        sent.append(piece)
        yield piece


async def _anoted(pieces: AsyncIterator[bytes], sent: list[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        sent.append(piece)
        yield piece


class _Heard:
    """The pieces of an answer, blocking or not, checked on their way to the client."""

    def __init__(self, pieces: Any, answered: Answered, path: str) -> None:
        self._pieces, self._answered, self._path = pieces, answered, path

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        piece: bytes | None = next(self._pieces, None)
        self._hear(piece)
        if piece is None:
            raise StopIteration
        return piece

    async def __anext__(self) -> bytes:
        piece: bytes | None = await anext(self._pieces, None)
        self._hear(piece)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def _hear(self, piece: bytes | None) -> None:
        try:
            if piece is None:
                self._answered.end()
            else:
                self._answered.resume(piece)
        except AssertionError as fault:
            CheckedEndpoint.faults.append(f"{self._path}: {fault}")

    def close(self) -> None:
        """What is closed early has no end to be checked."""
        self._pieces.close()

    async def aclose(self) -> None:
        """The same on an event loop."""
        await self._pieces.aclose()


# ---- schemas -------------------------------------------------------------------------------------------------------


def _pattern(path: str) -> str:
    return "".join("[^/].*" if part.startswith("{") else re.escape(part) for part in re.split(r"({\w+})", path))


def _closed(components: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same schemas, but objects have no other members than those that are described."""
    schemas = {name: {"additionalProperties": False, **schema} for name, schema in components["schemas"].items()}
    return {**components, "schemas": schemas}


class _Schemas:
    """The schemas of a document, to check texts against. What was sound is kept: many answers are the same."""

    def __init__(self, components: Mapping[str, Any]) -> None:
        self._components = components
        self._validators: dict[str, Draft202012Validator] = {}
        self._names: dict[int, str] = {}
        self._check = lru_cache(maxsize=2048)(self._check_text)

    def check(self, schema: Mapping[str, Any], text: bytes) -> None:
        """Check a text against a schema of the document, which lives as long as the document does."""
        name = self._names.get(id(schema)) or self._names.setdefault(id(schema), json.dumps(schema))
        self._check(name, text) if len(text) < 4096 else self._check_text(name, text)

    def _check_text(self, name: str, text: bytes) -> None:
        if name not in self._validators:
            self._validators[name] = _validator(json.loads(name), self._components)
        _validate(self._validators[name], json.loads(text))


def _validator(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Draft202012Validator:
    assert schema, "an empty schema says nothing"
    return Draft202012Validator({**schema, "components": components})


def _validate(validator: Draft202012Validator, value: Any) -> None:
    problems = list(_errors(validator, value))
    assert not problems, "; ".join(problems)


def _errors(validator: Draft202012Validator, value: Any) -> Iterator[str]:
    for error in validator.iter_errors(value):
        inner = "".join(f" ({one.message} at {one.json_path})" for one in error.context or ())
        yield f"{error.message} at {error.json_path}{inner}"


def _check_parameter(parameter: Mapping[str, Any], texts: list[str] | None) -> None:
    """Values of a query are texts; those of a parameter that is described as a number or as true or false are read."""
    name, schema = parameter["name"], parameter["schema"]
    assert texts or not parameter["required"], f"the parameter {name} is missing"
    for text in texts or ():
        if schema.get("type") == "array":
            _validate(_validator(schema["items"], {}), text)
        else:
            read = schema.get("type") in ("integer", "boolean")
            _validate(_validator(schema, {}), json.loads(text) if read else text)
