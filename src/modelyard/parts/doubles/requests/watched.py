"""What notes the requests to a platform at each of its endpoints, and refuses what its vendor would."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, cast

from modelyard.parts.doubles.vendors.profiles import vendor_error, vendor_refusal

if TYPE_CHECKING:
    from modelyard.http.message import Request, Response
    from modelyard.parts.doubles.requests.request_log import RequestLog

    Answered = Callable[[Response], Response]

NOTHING = b"{}"
"""What the platform is given in the place of a body that the vendor refuses: it refuses that too, unless something else
comes first, such as a wrong key."""

MEDIA = "application/json"


class RequestWatch:
    """Notes requests in a log. `strict` is whether conversations are checked where no profile is named."""

    def __init__(self, log: "RequestLog", strict: bool) -> None:
        self._log, self._strict = log, strict

    def begin(self, request: "Request") -> "Answered":
        """Note a request, and return what notes its answer; a body that cannot be read fails where it is read."""
        if not _is_json(request.headers):
            return self._begun(request, None)
        try:
            raw = b"".join(cast(Iterator[bytes], request.body))
        except Exception as failure:  # noqa: BLE001 - it is raised again where the body is read
            request.body = _Broken(failure)
            return self._begun(request, None)
        answered = self._begun(request, raw)
        request.body = iter((answered.forwarded(raw),))
        return answered

    async def abegin(self, request: "Request") -> "Answered":
        """Do the same on an event loop."""
        if not _is_json(request.headers):
            return self._begun(request, None)
        try:
            raw = b"".join([piece async for piece in cast(AsyncIterator[bytes], request.body)])
        except Exception as failure:  # noqa: BLE001 - it is raised again where the body is read
            request.body = _Broken(failure)
            return self._begun(request, None)
        answered = self._begun(request, raw)
        request.body = _aiter(answered.forwarded(raw))
        return answered

    def _begun(self, request: "Request", raw: bytes | None) -> "_Exchange":
        return _Exchange(self._log, self._strict, request.method, request.raw_path, raw)


class _Exchange:
    """A request on its way; it is called with the answer."""

    def __init__(self, log: "RequestLog", strict: bool, method: str, path: str, raw: bytes | None) -> None:
        self._log = log
        self._noted = log.begin(method, path, raw)
        self._refusal = vendor_refusal(log.profile, method, path, self._noted.body) if strict or log.profile else None

    def forwarded(self, raw: bytes) -> bytes:
        """Return the body that the platform is given."""
        return raw if self._refusal is None else NOTHING

    def __call__(self, response: "Response") -> "Response":
        """Note the answer, and return it, or the vendor's refusal."""
        status, body = response.status, response.body
        if isinstance(body, bytes):
            if self._refusal is not None and status in (400, 422):
                status, body = self._refusal
            elif status >= 400:
                body = vendor_error(self._log.profile, status, body)
            if body is not response.body:
                others = [one for one in response.headers if one[0] != "content-length"]
                response.headers = [*others, ("content-length", str(len(body)))]
                response.status, response.body = status, body
        self._log.end(self._noted, status, body if isinstance(body, bytes) else b"")
        return response


def _is_json(headers: Any) -> bool:
    found = (value for name, value in headers if name in ("content-type", b"content-type"))
    declared = next(found, "")
    return (declared.decode("latin-1") if isinstance(declared, bytes) else declared).lower().startswith(MEDIA)


async def _aiter(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


class _Broken:
    """A body that could not be read, for either kind of reader."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        raise self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        raise self._failure
