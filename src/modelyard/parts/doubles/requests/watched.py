"""Doors to a platform that note what is sent through them, and refuse what its vendor would."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, cast

from modelyard.flow import give_way
from modelyard.http.message import Request, Response
from modelyard.parts.doubles.requests.logged_request import LoggedRequest, words_of
from modelyard.parts.doubles.requests.request_log import RequestLog, log_of
from modelyard.parts.doubles.vendors.profiles import vendor_error, vendor_refusal
from modelyard.platform.platform import Platform

if TYPE_CHECKING:
    from modelyard.http.endpoint import Endpoint

NOTHING = b"{}"
"""What the platform is given in the place of a body that the vendor refuses: it refuses that too, unless something else
comes first, such as a wrong key."""

MEDIA = "application/json"


class _Exchange:
    """A request on its way."""

    def __init__(self, log: RequestLog, strict: bool, method: str, path: str, raw: bytes | None) -> None:
        self._log = log
        self.noted: LoggedRequest = log.begin(method, path, raw)
        self._refusal = vendor_refusal(log.profile, method, path, self.noted.body) if strict or log.profile else None

    def forwarded(self, raw: bytes) -> bytes:
        return raw if self._refusal is None else NOTHING

    def answered(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Note the answer, and return it, or the vendor's refusal."""
        if self._refusal is not None and status in (400, 422):
            status, body = self._refusal
        elif status >= 400:
            body = vendor_error(self._log.profile, status, body)
        self.noted.status = status
        self.noted.words = words_of(body) if status >= 400 else ""
        return status, body


class WatchedEndpoint:
    """An endpoint of a platform for clients in process."""

    def __init__(self, endpoint: "Endpoint", platform: Platform) -> None:
        self._endpoint, self._log = endpoint, platform.part(log_of)
        self._strict = platform.settings.strict_conversations

    def handle(self, request: Request) -> Response:
        if not self._log.watching:
            return self._endpoint.handle(request)
        raw = b"".join(cast(Iterator[bytes], request.body)) if _is_json(request.headers) else None
        exchange = self._begun(request, raw)
        if raw is not None:
            request.body = iter((exchange.forwarded(raw),))
        return _answered(exchange, self._endpoint.handle(request))

    async def ahandle(self, request: Request) -> Response:
        if not self._log.watching:
            return await self._endpoint.ahandle(request)
        raw = None
        if _is_json(request.headers):
            raw = b"".join([piece async for piece in cast(AsyncIterator[bytes], request.body)])
        exchange = self._begun(request, raw)
        if raw is not None:
            request.body = _one(exchange.forwarded(raw))
        return _answered(exchange, await self._endpoint.ahandle(request))

    def _begun(self, request: Request, raw: bytes | None) -> _Exchange:
        return _Exchange(self._log, self._strict, request.method, request.raw_path, raw)


def _is_json(headers: Any) -> bool:
    found = (value for name, value in headers if name in ("content-type", b"content-type"))
    declared = next(found, "")
    return (declared.decode("latin-1") if isinstance(declared, bytes) else declared).lower().startswith(MEDIA)


async def _one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


def _answered(exchange: _Exchange, response: Response) -> Response:
    if not isinstance(response.body, bytes):
        exchange.noted.status = response.status
        return response
    body = response.body
    response.status, response.body = exchange.answered(response.status, body)
    if response.body is not body:
        others = [one for one in response.headers if one[0] != "content-length"]
        response.headers = [*others, ("content-length", str(len(response.body)))]
    return response


# ---- over a socket ---------------------------------------------------------------------------------------------------

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


def watched_app(app: App, platform: Platform) -> App:
    """Return an ASGI application that does the same for clients of a server."""
    log, strict = platform.part(log_of), platform.settings.strict_conversations

    async def application(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not log.watching:
            await app(scope, receive, send)
            return
        came = [await whole_body(receive)] if _is_json(scope["headers"]) else []
        raw = came[0].get("body") if came else None
        exchange = _Exchange(log, strict, scope["method"], scope["path"], raw)
        for message in came:
            if raw is not None:
                message["body"] = exchange.forwarded(raw)
        await app(scope, replayed(came, receive), _Sender(exchange, send))

    return application


async def whole_body(receive: Receive) -> Message:
    """Return a message with the whole body, or that the client has left."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        if not message.get("more_body"):
            return {"type": "http.request", "body": body, "more_body": False}


def replayed(came: list[Message], receive: Receive) -> Receive:
    async def again() -> Message:
        await give_way()
        return came.pop(0) if came else await receive()

    return again


class _Sender:
    """What the application sends: the start of an error is held back until its body is there."""

    def __init__(self, exchange: _Exchange, send: Send) -> None:
        self._exchange, self._send = exchange, send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._exchange.noted.status = message["status"]
            if message["status"] >= 400:
                self._start = message
                return
        elif self._start is not None:
            message = await self._started(self._start, message)
        await self._send(message)

    async def _started(self, start: Message, message: Message) -> Message:
        self._start = None
        status, body = self._exchange.answered(start["status"], message.get("body", b""))
        headers = [one for one in start["headers"] if one[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**start, "status": status, "headers": headers})
        return {**message, "body": body}
