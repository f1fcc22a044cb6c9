"""Who calls, and whom to book usage on: strict reading of the headers that name them."""

import base64
import binascii
import ipaddress
import re
from collections.abc import Mapping
from hashlib import blake2s
from urllib.parse import urlsplit

import attrs

from modelyard.domain.identity import NAME, Attribution, Principal
from modelyard.errors import Unauthenticated
from modelyard.http.errors import MalformedRequest
from modelyard.http.headers import Headers
from modelyard.http.interface import Auth
from modelyard.http.route import Route
from modelyard.platform.keys.service import REMEMBERED_SECONDS
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator

MAX_REMEMBERED = 4096
_UNKNOWN = 0.0, 0.0, None

CHALLENGES: Mapping[Auth, tuple[str, str]] = {
    Auth.BEARER: ("www-authenticate", "Bearer"),
    Auth.API_KEY: ("www-authenticate", "Bearer"),
    Auth.EITHER: ("www-authenticate", "Bearer"),
    Auth.BASIC: ("www-authenticate", 'Basic realm="modelyard", charset="UTF-8"'),
}
OPEN = Auth.API_KEY, Auth.EITHER
"""The schemes that leave another one to the caller."""

_CREDENTIALS = re.compile(r"([A-Za-z]+) ([A-Za-z0-9._~+/-]+={0,2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def credentials(auth: Auth, headers: Headers) -> tuple[Auth, bytes | None]:
    """Return the scheme by which a route identifies callers, and their Authorization header, or what stands for it."""
    given = headers.get(b"authorization")
    if auth not in OPEN:
        return auth, given
    if auth is Auth.API_KEY:
        key = headers.get(b"x-api-key") or headers.get(b"api-key")
        return Auth.BEARER, given if key is None else b"Bearer " + key
    return Auth.BASIC if given is not None and given[:6].lower() == b"basic " else Auth.BEARER, given


def secret_in(header: str | None, auth: Auth, longest: int) -> str:
    """Read the secret, of at most `longest` characters, from an Authorization header. Raises `Unauthenticated`."""
    if header is None:
        raise Unauthenticated(f"this needs an API key: send it as Authorization: {_example(auth)}")
    parts = _CREDENTIALS.fullmatch(header) if len(header) <= 2 * longest + 8 else None
    if parts is None or parts[1].lower() != auth.value:
        raise Unauthenticated(f"this Authorization header cannot be read: send Authorization: {_example(auth)}")
    if auth is Auth.BASIC:
        return _password(parts[2], 2 * longest)
    if len(parts[2]) > longest:
        raise Unauthenticated(f"an API key has at most {longest} characters")
    return parts[2]


def _example(auth: Auth) -> str:
    return "Bearer <API key>" if auth is Auth.BEARER else "Basic <base64 of name:API key>"


def _password(encoded: str, longest: int) -> str:
    """Return what follows the first colon. The name before it does not matter."""
    try:
        pair = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthenticated("the Basic credentials are not base64 of UTF-8 text") from None
    _, colon, password = pair.partition(":")
    if not colon or not password or len(encoded) > longest or _CONTROL.search(pair):
        raise Unauthenticated("the Basic credentials must be name:API key")
    return password


@attrs.frozen
class Caller:
    """Who calls, and the platform as they see it."""

    principal: Principal
    platform: Platform


class CallerCache:
    """The callers of a platform, each remembered for a second. The authenticator identifies them.

    So a revoked key is refused after at most a second; what a caller may do is checked at every use. Headers are
    remembered by their digest, so that no secret stays in memory. `anonymous` is who calls without a key.
    """

    def __init__(self, platform: Platform, authenticator: Authenticator, anonymous: Principal | None = None) -> None:
        self._platform, self._authenticator = platform, authenticator
        self._anonymous = None if anonymous is None else self.acting_as(anonymous)
        self._now = platform.clock.monotonic
        self._known: dict[tuple[Auth, bytes], tuple[float, float, Caller | None]] = {}

    def waits(self, auth: Auth) -> bool:
        """Return whether finding out who calls may wait."""
        return self._platform.blocking if auth is Auth.ADDRESS else self._authenticator.blocking

    def without_key(self, headers: Headers) -> Caller | None:
        """Return who calls without a key: None, unless that is allowed, and the request was meant for this machine.

        A page of another origin, or one whose name now leads here, may not act for who looks at it.
        """
        origin = headers.text(b"origin")
        named = [headers.text(b"host"), (origin or "").partition("://")[2] or origin]
        return self._anonymous if all(is_loopback(name) for name in named if name is not None) else None

    def remembered(self, auth: Auth, header: bytes, now: float) -> Caller | None:
        """Return the caller that `find` returned for the same header less than a second ago. After half of it one
        request is to find out again, so that not all that come in a turn of the event loop do at the end."""
        soon, until, caller = self._known.get(place := (auth, blake2s(header).digest()), _UNKNOWN)
        if soon <= now < until:
            self._known[place] = until, until, caller
        return caller if now < soon else None

    def find(self, auth: Auth, header: bytes | None, began: float) -> Caller:
        """Identify the caller, if no other request has since this one `began`. May wait. Raises `Unauthenticated`."""
        text, place = None if header is None else header.decode("latin-1"), (auth, blake2s(header or b"").digest())
        _, until, known = self._known.get(place, _UNKNOWN)
        if known is not None and until - REMEMBERED_SECONDS > began:
            return known
        caller = self.acting_as(self._authenticate(secret_in(text, auth, self._authenticator.longest)))
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        until = self._now() + REMEMBERED_SECONDS
        self._known[place] = until - REMEMBERED_SECONDS / 2, until, caller
        return caller

    def at(self, route: Route, address: Mapping[str, str]) -> Caller:
        """Identify the caller by an address that holds its own secret. Raises `Forbidden`."""
        assert route.admit is not None
        return self.acting_as(route.admit(self._platform, address))

    def acting_as(self, principal: Principal) -> Caller:
        """Return the caller that is this principal."""
        return Caller(principal, self._platform.acting_as(principal))

    def _authenticate(self, secret: str) -> Principal:
        """Refuse an answer that is not a principal, which not every route would notice. Raises TypeError."""
        answer: object = self._authenticator.authenticate(secret)
        if not isinstance(answer, Principal):
            raise TypeError(f"the authenticator returned a {type(answer).__name__}, not a Principal")
        return answer


def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine by a name that leads nowhere else."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def attribution(headers: Headers, principal: Principal) -> Attribution:
    """Return whom to book usage on: `OpenAI-Project` or `Compat-Project` names `<team>/<project>`.

    Raises `MalformedRequest` when they disagree or cannot be read, `Forbidden` when the key lacks what they name.
    """
    one, other = headers.get(b"openai-project"), headers.get(b"compat-project")
    if one is None and other is None:
        return principal.own
    if one is not None and other is not None and one != other:
        raise MalformedRequest("the headers OpenAI-Project and Compat-Project disagree; send one of them")
    team, slash, project = (one if one is not None else other or b"").decode("latin-1").partition("/")
    if not slash or not NAME.fullmatch(team) or not NAME.fullmatch(project):
        raise MalformedRequest("the headers OpenAI-Project and Compat-Project must read <team>/<project>")
    return principal.attribution(team, project)
