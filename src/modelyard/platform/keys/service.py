"""API keys: creating, listing, revoking, and authenticating a secret (specification 5)."""

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

import attrs

from modelyard.domain.identity import ApiKey, NewKey, Principal, check_name
from modelyard.errors import Forbidden, InvalidInput, NotFound, Problem, RecordNotFound, Unauthenticated
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Authenticator, Snapshot, Tx

MAX_NAME = 128
MAX_PROJECTS = 1000
MAX_LIMIT = 2**31
MAX_SECRET = 512
REMEMBERED_SECONDS = 1.0
"""How long the processes that serve may remember whose key it is: so late they refuse one that was revoked."""


class Keys:
    """The API keys that a principal may see, and the authenticator of the callers who send one.

    A secret is available in clear only in what `create` returns.

    new = platform.keys.create("acme", ["support"], expires_in=timedelta(days=30))
    new.secret      # shown once; the store keeps its digest
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    @property
    def blocking(self) -> bool:
        """Whether looking up a key may block."""
        return self._runtime.store.blocking

    @property
    def longest(self) -> int:
        """The most characters of a secret: far more than a key has."""
        return MAX_SECRET

    def create(
        self,
        entity: str | None = None,
        projects: Iterable[str] | None = None,
        *,
        name: str = "",
        expires_in: timedelta | None = None,
        expires_at: datetime | None = None,
        requests_per_minute: int | None = None,
        concurrent_requests: int | None = None,
        host: bool = False,
        prefix: str = "my_",
    ) -> NewKey:
        """Create a key for an entity and some of its projects; None means all that the caller has.

        Its secret begins with `prefix`, for clients that insist on one, as Tinker's does on "tml-".

        A `host` key acts for the host: it sees every entity, reads the metrics, and administers keys and budgets.

        No key can create one with a wider scope, wider limits or a later expiry. Raises `InvalidInput`, `Forbidden`.
        """
        now = self._runtime.clock.now()
        secret = secret_of(self._runtime.randomness(SECRET_BYTES), check_prefix(prefix))
        key = ApiKey(
            id=self._runtime.ids(),
            prefix=secret_prefix(secret),
            digest=secret_digest(secret),
            name=name,
            entity=check_name(self._principal.entity if entity is None else entity, "entity"),
            projects=self._projects(projects),
            created_at=now,
            expires_at=_expiry(now, expires_in, expires_at),
            requests_per_minute=requests_per_minute,
            concurrent_requests=concurrent_requests,
            host=host,
        )
        _check(key)
        self._runtime.store.transact(lambda tx: self._add(tx, key))
        return NewKey(key, secret)

    def list(self, *, entity: str | None = None) -> Listing[ApiKey]:
        """List the keys that the caller may see, the oldest first: of one entity, or of all in its scope."""
        entity = self._principal.scope.entity if entity is None else entity
        if entity is not None:
            self._principal.require(entity)
        index, *where = listed_index(entity, None)
        return index_listing(self._runtime, ApiKey, index, *where, place=partial(self._place, index), keep=self._sees)

    def get(self, id: str) -> ApiKey:
        """Return one key. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._found(snapshot, id))

    def revoke(self, id: str) -> ApiKey:
        """Revoke a key for ever. Idempotent. Raises `NotFound`."""
        now = self._runtime.clock.now()
        return self._runtime.store.transact(lambda tx: self._revoke(tx, id, now))

    def authenticate(self, secret: str) -> Principal:
        """Return the principal of a secret. Raises `Unauthenticated`. It looks the digest up once and raises the same
        error whether the key is malformed, unknown, revoked or expired. Limits and scope are those in force now."""
        digest = secret_digest(secret)
        key = self._runtime.store.read(lambda snapshot: snapshot.find(ApiKey, "digest", digest))
        if key is None or not key.alive(self._runtime.clock.now()):
            raise Unauthenticated("this API key is not valid; send one that is neither revoked nor expired")
        return key.principal()

    def _projects(self, projects: Iterable[str] | None) -> tuple[str, ...]:
        if projects is None:
            return tuple(sorted(self._principal.scope.projects or ()))
        if isinstance(projects, str):
            raise InvalidInput.at("projects", msg="must be a list of names, not one string", type="list_type")
        named = tuple(sorted({check_name(project, "projects", at) for at, project in enumerate(projects)}))
        if not 1 <= len(named) <= MAX_PROJECTS:
            raise InvalidInput.at("projects", msg=f"name 1 to {MAX_PROJECTS} projects, or none at all to grant all")
        return named

    def _add(self, tx: Tx, key: ApiKey) -> None:
        """Add a key unless it would grant more than its maker has, checked in the same transaction."""
        if not self._principal.scope.holds(key.scope):
            raise Forbidden("a key may only be given entities and projects that its maker has")
        if not self._principal.limits.hold(key.limits):
            raise Forbidden("a key may not be given wider limits than its maker has")
        if self._principal.key_id:
            self._check_maker(tx, key)
        tx.add(key)

    def _check_maker(self, tx: Tx, key: ApiKey) -> None:
        try:
            maker = tx.get(ApiKey, self._principal.key_id)
        except RecordNotFound:
            raise Unauthenticated("the key of this request no longer exists") from None
        if not maker.alive(key.created_at):
            raise Unauthenticated("the key of this request was revoked or has expired")
        if maker.expires_at is not None and (key.expires_at is None or key.expires_at > maker.expires_at):
            raise Forbidden("a key may not be made to outlive its maker")

    def _place(self, index: str, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(ApiKey, index, self._found(snapshot, id))

    def _sees(self, key: ApiKey) -> bool:
        return self._principal.scope.holds(key.scope)

    def _found(self, snapshot: Snapshot, key_id: str) -> ApiKey:
        try:
            key = snapshot.get(ApiKey, key_id)
        except RecordNotFound:
            raise NotFound("API key", _shown(key_id)) from None
        if not self._sees(key):
            raise NotFound("API key", _shown(key_id))
        return key

    def _revoke(self, tx: Tx, key_id: str, now: datetime) -> ApiKey:
        key = self._found(tx, key_id)
        if key.revoked_at is None:
            key = attrs.evolve(key, revoked_at=max(now, key.created_at))
            tx.replace(key)
        return key


def _shown(key_id: str) -> str:
    return f"{secret_prefix(key_id)}_..." if len(key_id) > _LONGEST_ID else key_id


def _expiry(now: datetime, expires_in: timedelta | None, expires_at: datetime | None) -> datetime | None:
    if expires_in is not None and expires_at is not None:
        raise InvalidInput.at("expires_at", msg="give expires_in or expires_at, not both")
    if expires_in is not None:
        expires_at = _after(now, expires_in)
    if expires_at is None:
        return None
    if expires_at.tzinfo is None:
        raise InvalidInput.at("expires_at", msg="must have a time zone")
    if expires_at <= now:
        raise InvalidInput.at("expires_at", msg="must lie in the future")
    return expires_at


def _after(now: datetime, expires_in: timedelta) -> datetime:
    try:
        return now + expires_in
    except OverflowError:
        raise InvalidInput.at(
            "expires_in", msg="lies beyond the calendar; leave it out for a key that never expires"
        ) from None


def _check(key: ApiKey) -> None:
    problems = []
    if key.host and key.projects:
        problems.append(Problem(("projects",), "must be left out of a host key, which has every project"))
    if len(key.name) > MAX_NAME or not key.name.isprintable():
        problems.append(Problem(("name",), f"must be at most {MAX_NAME} printable characters"))
    for field in ("requests_per_minute", "concurrent_requests"):
        value = getattr(key, field)
        if value is not None and not (type(value) is int and 1 <= value <= MAX_LIMIT):
            problems.append(Problem((field,), f"must be a whole number from 1 to {MAX_LIMIT}"))
    if problems:
        raise InvalidInput(problems)


_conforms: type[Authenticator] = Keys


_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

SECRET_BYTES = 38


PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,7}")
"""The start of a key's secret: up to 8 characters, which every client sends unchanged."""

_LONGEST_ID = 40


def check_prefix(prefix: str) -> str:
    if not isinstance(prefix, str) or not PREFIX.fullmatch(prefix):
        raise InvalidInput.at("prefix", msg="must be 1 to 8 letters, digits, dots, underscores or hyphens")
    return prefix


def secret_of(random: bytes, prefix: str = "my_") -> str:
    """Make the secret of a new key, `my_<8 characters that may be shown>_<43 characters>`, from `SECRET_BYTES` bytes.
    It has letters, digits and underscores only, so that any client sends it unchanged. The 43 characters encode all 256
    bits of the last 32 bytes."""
    shown, hidden = int.from_bytes(random[:6], "big"), int.from_bytes(random[6:SECRET_BYTES], "big")
    return f"{prefix}{_base62(shown, 8)}_{_base62(hidden, 43)}"


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def secret_prefix(secret: str) -> str:
    return secret[:11]


def secret_digest(secret: str) -> str:
    """Return what is stored of a key: its SHA-256, which cannot be guessed, as the key has 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
