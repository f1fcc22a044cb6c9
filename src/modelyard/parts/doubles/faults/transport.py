"""A client's connection that fails as scheduled: a transport of httpx or httpx2 that wraps another one."""

from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any

from modelyard.parts.doubles.clients.read_limit import ReadLimit, limit_of_httpx
from modelyard.parts.doubles.faults.kinds import Slow, Timeout
from modelyard.parts.doubles.faults.schedule import FaultPlan, Struck

CONNECTION = "connection"


class FaultyTransport:
    def __init__(self, plan: FaultPlan, inner: Any) -> None:
        self._plan, self._inner = plan, inner

    def handle_request(self, request: Any) -> Any:
        """Respond to a `Client`. Raises what its library raises when a connection fails."""
        struck = self._plan.struck(CONNECTION)
        with _limit(self._plan, request).waiting():
            if struck is not None and not struck.after:
                struck.record()
                self._plan.clock.sleep(struck.seconds)
                _raise(struck, request)
            response = self._inner.handle_request(request)
        if struck is not None and struck.after:
            response.stream = _stream(_Breaking, "SyncByteStream", struck, request, response)
        return response

    async def handle_async_request(self, request: Any) -> Any:
        struck = self._plan.struck(CONNECTION)
        with _limit(self._plan, request).waiting():
            if struck is not None and not struck.after:
                struck.record()
                await self._plan.clock.asleep(struck.seconds)
                _raise(struck, request)
            response = await self._inner.handle_async_request(request)
        if struck is not None and struck.after:
            response.stream = _stream(_AsyncBreaking, "AsyncByteStream", struck, request, response)
        return response

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __enter__(self) -> "FaultyTransport":
        self._inner.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._inner.__exit__(*raised)

    async def __aenter__(self) -> "FaultyTransport":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._inner.__aexit__(*raised)


class _Cut:
    def __init__(self, struck: Struck) -> None:
        self._left, self._events = struck.after, 0

    @property
    def reached(self) -> bool:
        return self._events >= self._left

    def parts(self, piece: bytes) -> tuple[bytes, bytes]:
        at = 0
        while not self.reached and (end := piece.find(b"\n\n", at)) >= 0:
            at, self._events = end + 2, self._events + 1
        return (piece[:at], piece[at:]) if self.reached else (piece, b"")

    def over(self) -> bool:
        return not self._events and self._left == 1


class _Broken:
    def __init__(self, struck: Struck, request: Any, stream: Any) -> None:
        self._struck, self._request, self._stream = struck, request, stream


class _Breaking(_Broken):
    def __iter__(self) -> Iterator[bytes]:
        cut, pieces = _Cut(self._struck), iter(self._stream)
        for piece in pieces:
            before, after = cut.parts(piece)
            yield before
            if cut.reached:
                self._breaks()
                yield after
                yield from pieces
                return
        if cut.over():
            self._breaks()

    def _breaks(self) -> None:
        self._struck.record()
        with _limit(self._struck.plan, self._request).waiting():
            self._struck.plan.clock.sleep(self._struck.seconds)
        _raise(self._struck, self._request)

    def close(self) -> None:
        self._stream.close()


class _AsyncBreaking(_Broken):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        cut, pieces = _Cut(self._struck), aiter(self._stream)
        async for piece in pieces:
            before, after = cut.parts(piece)
            yield before
            if cut.reached:
                await self._breaks()
                yield after
                async for rest in pieces:
                    yield rest
                return
        if cut.over():
            await self._breaks()

    async def _breaks(self) -> None:
        self._struck.record()
        with _limit(self._struck.plan, self._request).waiting():
            await self._struck.plan.clock.asleep(self._struck.seconds)
        _raise(self._struck, self._request)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _stream(kind: type[_Broken], base: str, struck: Struck, request: Any, response: Any) -> Any:
    """Create a body of the request's own library: a client accepts no other."""
    made = type(kind.__name__, (kind, getattr(_library(request), base)), {})
    return made(struck, request, response.stream)


def _limit(plan: FaultPlan, request: Any) -> ReadLimit:
    return limit_of_httpx(_library(request), plan.clock, request)


def _library(request: Any) -> Any:
    return import_module(type(request).__module__.partition(".")[0])


def _raise(struck: Struck, request: Any) -> None:
    library, fault = _library(request), struck.fault
    if isinstance(fault, Slow):
        return
    if isinstance(fault, Exception):
        raise fault.with_traceback(None)
    if isinstance(fault, Timeout):
        raise library.ReadTimeout(f"no answer within {fault.seconds:g} seconds", request=request)
    lost = library.RemoteProtocolError if struck.after else library.ConnectError
    raise lost("the connection was lost", request=request)
