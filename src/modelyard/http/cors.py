"""Cross-origin requests: browsers may use the platform from pages of origins that the host allows."""

import re
from collections.abc import Iterable

from modelyard.errors import InvalidInput
from modelyard.http.headers import Header, Headers
from modelyard.http.message import Response

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")
_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")
_MAX_AGE = ("access-control-max-age", "600")
_EXPOSED = (
    "access-control-expose-headers",
    "x-request-id, retry-after, x-should-retry, allow, deprecation, etag, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests",
)
_VARY = ("vary", "origin")


class AllowedOrigins:
    """The origins from which pages may use the platform: `https://app.example.com`, or `*` for all. Keys are sent in a
    header and never in a cookie, so that no page can use a key that it does not have."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)
        for origin in self._origins:
            if not _ORIGIN.fullmatch(origin):
                raise InvalidInput.at("cors_origins", msg=f"{origin!r} must be like https://app.example.com, or *")

    def allows(self, headers: Headers) -> bool:
        origin = headers.text(b"origin")
        return origin is not None and ("*" in self._origins or origin in self._origins)

    def preflight(self, headers: Headers, methods: Iterable[str]) -> Response | None:
        if not self.allows(headers) or b"access-control-request-method" not in headers:
            return None
        answer = [("access-control-allow-methods", ", ".join(methods)), _MAX_AGE]
        names = headers.text(b"access-control-request-headers") or ""
        if _NAMES.fullmatch(names):
            answer.append(("access-control-allow-headers", names))
        return Response(204, answer, b"")

    def headers(self, headers: Headers) -> list[Header]:
        if not self.allows(headers):
            return [_VARY]
        return [("access-control-allow-origin", headers.text(b"origin") or ""), _EXPOSED, _VARY]
