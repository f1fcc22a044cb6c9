"""One request to the dashboard: who asks, what answers, and the response."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from hashlib import sha256
from hmac import compare_digest
from importlib.resources import files
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, quote, unquote

import attrs

from modelyard.domain.identity import Principal, Scope
from modelyard.errors import Forbidden, InvalidInput, ModelyardError, NotFound, Unauthenticated
from modelyard.http.error_responses import error_headers, error_sentence, report
from modelyard.http.errors import ClientDisconnected
from modelyard.http.headers import Header, headers_of
from modelyard.http.message import Request, Response
from modelyard.parts.dashboard.pages.keys import login
from modelyard.parts.dashboard.sessions import Sessions
from modelyard.parts.dashboard.view import PREFIX, Handler, HtmlPage, Kept, Redirect, View, framed
from modelyard.parts.reports.html import STYLE, joined, tag
from modelyard.platform.platform import Platform

COOKIE = "modelyard_session"
STATIC = "static"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[Header, ...] = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cache-control", "no-store"),
)
"""The headers of every response but those of the static files."""

_TYPES = {"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"}
_PAGE: Header = ("content-type", "text/html; charset=utf-8")
_ELSEWHERE = ("", "")
"""A path that no page has."""

_NOBODY = Principal("", "", Scope(""))
_LATER = 503
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


Find = Callable[[str, tuple[str, ...]], tuple[Handler | None, Mapping[str, str]]]
"""Finds what answers a method at a path, None for nothing, and the values of the names in the path."""


class Api(Protocol):
    """What answers requests, as `modelyard.http.endpoint.Endpoint` does."""

    def handle(self, request: Request) -> Response:
        """Answer a request with a page, or pass it to the API."""
        ...

    async def ahandle(self, request: Request) -> Response:
        """Answer, on an event loop that is never blocked."""
        ...


@attrs.frozen(eq=False)
class DashboardParts:
    """What all exchanges share. `kept` are parts of pages that never change, the last few."""

    platform: Platform
    sessions: Sessions
    reader: Principal | None
    find: Find
    api: Api | None
    kept: Kept = attrs.field(factory=Kept)

    def document(self) -> Mapping[str, Any]:
        """Return the OpenAPI document of the API, {} if there is none."""
        if self.api is None:
            return {}
        answer = self.api.handle(Request("GET", "/openapi.json", "", [], iter(())))
        found: Mapping[str, Any] = json.loads(cast(bytes, answer.body))
        return found


class PageExchange:
    """One request for a page or an action, and its answer."""

    def __init__(self, shared: DashboardParts, request: Request) -> None:
        self._shared, self._request = shared, request
        self._platform, self._sessions, self._reader = shared.platform, shared.sessions, shared.reader
        self._headers, _ = headers_of(request.headers)
        first, *segments = request.raw_path.removeprefix("/").split("/")
        self._path = tuple(map(unquote, segments)) if first in ("", PREFIX) else _ELSEWHERE
        self._away: ModelyardError | None = None

    @property
    def follows(self) -> bool:
        """Whether the browser wants to be sent the page whenever it changes."""
        wanted = "live=1" in self._request.query.split("&")
        return self._request.method == "GET" and wanted and self._path[:1] != (STATIC,)

    @cached_property
    def _query(self) -> Mapping[str, str]:
        """The parameters of the address. Raises `InvalidInput`."""
        return _fields(self._request.query, "query")

    def entity(self) -> str:
        """Return the entity on whose account the page is made; "" for the host, and where the caller is not known. A
        store that is away is not waited for again: `answer` says so at once."""
        try:
            return "" if self._path[:1] == (STATIC,) else self._caller()[0].scope.entity or ""
        except ModelyardError as fault:
            self._away = fault if fault.status == _LATER else None
            return ""

    def answer(self, body: Callable[[], bytes]) -> Response:
        try:
            if self._path[:1] == (STATIC,):
                return _static(self._path[1:])
            if self.follows:
                return _response(204, ())
            if self._away is not None:
                raise self._away
            return self._respond(_fields(body().decode("utf-8", "replace"), "body"))
        except ClientDisconnected:
            raise
        except Unauthenticated:
            view = self._view(_NOBODY, "", {}, {})
            return self._redirect(view.url("login", to=self._request.raw_path))
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader gets a page
            return self.failed(error)

    def update(self) -> tuple[str, bool] | None:
        """Return the page as it is now, "" while the store is away, and whether it may change; None if it can no longer
        be shown."""
        try:
            principal, token = self._caller()
            view = self._view(principal, token, {})
            page = self._found("GET")(view)
        except ModelyardError as error:
            return ("", True) if error.status == _LATER else None
        return (str(framed(view, page)), page.live) if isinstance(page, HtmlPage) else None

    def failed(self, error: Exception) -> Response:
        """Return the page of an error; one that is not the caller's is logged."""
        status = error.status if isinstance(error, ModelyardError) else 500
        if status >= 500:
            report(error, "of the dashboard")
        message = _sentence(error) if status != 500 else "This page failed; the server's log says why"
        view = self._view(*self._caller_or_nobody(status), {}, {})
        content = joined([tag("p", message), tag("p", view.link("To the first page", ""))])
        return _response(status, (_PAGE, *error_headers(error)), framed(view, HtmlPage("This did not work", content)))

    def _respond(self, form: Mapping[str, str]) -> Response:
        method = self._method
        if self._path in ((), ("",)) and not self._request.raw_path.startswith(f"/{PREFIX}/"):
            return self._redirect(self._view(_NOBODY, "", form).url(""))
        if self._path == ("login",) and self._reader is None:
            return self._log_in(method, form)
        principal, token = self._caller()
        view = self._view(principal, token, form)
        if method == "POST":
            self._require_own_form(view)
            if self._path == ("logout",):
                return self._log_out(view)
        answer = self._found(method)(view)
        if isinstance(answer, Redirect):
            return self._redirect(answer.to)
        if isinstance(answer, HtmlPage):
            return _response(answer.status, (_PAGE,), framed(view, answer))
        first = next(answer, b"")  # what cannot be shown fails here, while a status can say so
        return Response(200, [("content-type", "text/plain; charset=utf-8"), *HEADERS], _continued(first, answer))

    @property
    def _method(self) -> str:
        return "GET" if self._request.method == "HEAD" else self._request.method

    def _found(self, method: str) -> Handler:
        handler, _ = self._shared.find(method, self._path)
        if handler is None:
            raise NotFound("Page", self._request.raw_path)
        return handler

    def _view(
        self, principal: Principal, token: str, form: Mapping[str, str], query: Mapping[str, str] | None = None
    ) -> View:
        _, params = self._shared.find(self._method, self._path)
        changes = _form_token(token) if token else ""
        acting, section = self._platform.acting_as(principal), self._path[0] if self._path else ""
        return View(
            platform=acting,
            principal=principal,
            root=self._request.root,
            params=params,
            query=self._query if query is None else query,
            form=form,
            now=self._platform.clock.now(),
            token=changes,
            section=section,
            document=self._shared.document,
            has_api=self._shared.api is not None,
            kept=self._shared.kept,
        )

    # ---- who asks

    def _caller(self) -> tuple[Principal, str]:
        if self._reader is not None:
            self._require_local()
            return self._reader, ""
        token = _cookie(self._headers.text(b"cookie") or "")
        return self._sessions.principal(token), token

    def _caller_or_nobody(self, status: int) -> tuple[Principal, str]:
        """Return whose the page of an error is; of a fault of ours nothing more is read."""
        try:
            return self._caller() if status < 500 else (_NOBODY, "")
        except ModelyardError:
            return _NOBODY, ""

    def _log_in(self, method: str, form: Mapping[str, str]) -> Response:
        view = self._view(_NOBODY, "", form)
        if method != "POST":
            return _response(200, (_PAGE,), framed(view, login(view)))
        if not self._is_own_form():
            raise Forbidden("log in on the page of this dashboard")
        try:
            token = self._sessions.open(form.get("key", "").strip())
        except Unauthenticated as error:
            return _response(401, (_PAGE,), framed(view, login(view, _sentence(error))))
        to = form.get("to", "")
        here = quote(self._request.root) + to if _is_own(to) else view.url("")
        return self._redirect(here, self._set_cookie(token, int(self._sessions.lifetime.total_seconds())))

    def _is_own_form(self) -> bool:
        """Return whether a form comes from a page of this host, as far as the browser says. Old ones, and any without
        encryption, name its address alone."""
        site = self._headers.text(b"sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none")
        page = self._headers.text(b"origin") or self._headers.text(b"referer")
        hosts = (self._headers.text(b"host"), self._headers.text(b"x-forwarded-host"))
        return page is None or page.partition("://")[2].partition("/")[0] in hosts

    def _log_out(self, view: View) -> Response:
        self._sessions.close(_cookie(self._headers.text(b"cookie") or ""))
        return self._redirect(view.url("login"), self._set_cookie("", 0))

    def _set_cookie(self, token: str, seconds: int) -> Header:
        path = f"{quote(self._request.root)}/{PREFIX}"
        secure = "; Secure" if self._request.scheme == "https" else ""
        return ("set-cookie", f"{COOKIE}={token}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")

    def _require_own_form(self, view: View) -> None:
        """Raise `Forbidden` unless the form was on a page of ours, in this session."""
        if not view.token:
            raise Forbidden("this dashboard is read-only")
        if not compare_digest(view.form.get("token", "").encode(), view.token.encode()):
            raise Forbidden("this form is not of your session; go back, reload the page, and send it again")

    def _require_local(self) -> None:
        """Raise `Forbidden` for a name that is not of this machine, by which a page of elsewhere might read ours."""
        name = (self._headers.text(b"host") or "").rsplit(":", 1)[0]
        if name not in _LOCAL:
            raise Forbidden("this dashboard has no login; open it as http://127.0.0.1 on its own machine")

    def _redirect(self, to: str, *headers: Header) -> Response:
        return _response(303, (("location", to), *headers))


def _sentence(error: Exception) -> str:
    """Return what a reader may read of an error. What begins with the name of a field keeps it."""
    text = error_sentence(error)
    return text if isinstance(error, InvalidInput) else text[:1].upper() + text[1:]


def _is_own(path: str) -> bool:
    """Return whether a path is one of the dashboard's, in characters that a header may have."""
    printable = path.isascii() and path.isprintable() and " " not in path
    return printable and path.startswith(f"/{PREFIX}/") and ".." not in unquote(path)


def _continued(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from others


def _fields(text: str, place: str) -> Mapping[str, str]:
    """Return the fields of a form or a query. Raises `InvalidInput` for more than 100."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise InvalidInput.at(place, msg="must have at most 100 fields") from None


def _cookie(header: str) -> str:
    """Return the session's token in a Cookie header; "" if there is none."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _form_token(token: str) -> str:
    """Return what a form carries, to show that it comes from a page of this session."""
    return sha256(f"form {token}".encode()).hexdigest()


@cache
def _static(path: tuple[str, ...]) -> Response:
    if len(path) != 1 or path[0] not in _TYPES:
        raise NotFound("Page", "/".join(path))
    body = files("modelyard.parts.dashboard").joinpath(STATIC, path[0]).read_text("utf-8")
    body = STYLE + body if path[0] == "style.css" else body
    return Response(200, [("content-type", _TYPES[path[0]]), ("cache-control", "max-age=3600")], body.encode())


def _response(status: int, headers: Iterable[Header], body: str = "") -> Response:
    return Response(status, [*headers, *HEADERS], body.encode("utf-8", "replace"))
