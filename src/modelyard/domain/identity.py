"""Who calls, what they may use, and the requests that they named by an idempotency key (specification 5)."""

import re
from datetime import datetime
from functools import cached_property

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.frozen_fast import maker, quick_init
from modelyard.domain.record import KEPT, Index, Record, sequence_field
from modelyard.errors import Forbidden, InvalidInput, Problem

NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}")


def check_name(value: str, *loc: str | int) -> str:
    """Check that a value is a name: 1 to 128 of `[A-Za-z0-9._-]`, not dots only. Raises `InvalidInput` at `loc`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidInput([Problem(loc, "must be 1 to 128 characters of A-Z a-z 0-9 . _ - and not dots only")])
    return value if type(value) is str else str.__str__(value)  # of an enum, the text itself


@quick_init
@attrs.frozen(weakref_slot=False)
class Attribution:
    """The entity and the project ("" for none) that a completion is charged to."""

    entity: str
    project: str = ""


_attribution = maker(Attribution)


@attrs.frozen
class Scope:
    """The scope of a read: one entity, and some of its projects or (None) all. The unscoped view is `Scope(None)`."""

    entity: str | None
    projects: frozenset[str] | None = None

    def covers(self, entity: str, project: str | None = None) -> bool:
        """Return whether this scope includes the entity and, if one is named, the project."""
        if self.entity is None:
            return True
        return entity == self.entity and (not project or self.projects is None or project in self.projects)

    def holds(self, other: "Scope") -> bool:
        """Return whether this scope covers everything that `other` covers."""
        if self.entity is None:
            return True
        if other.entity != self.entity:
            return False
        return self.projects is None or (other.projects is not None and other.projects <= self.projects)


@attrs.frozen
class Limits:
    """The limits of a key: requests per minute, concurrent requests. None means no limit."""

    requests_per_minute: int | None = None
    concurrent_requests: int | None = None

    def hold(self, other: "Limits") -> bool:
        """Return whether `other` allows no more than this."""
        return _at_most(other.requests_per_minute, self.requests_per_minute) and _at_most(
            other.concurrent_requests, self.concurrent_requests
        )


@quick_init
@attrs.frozen(weakref_slot=False)
class RateStand:
    """How many of its `limit` requests a minute a key may make at once; after `reset` seconds it may make all."""

    limit: int
    remaining: int
    reset: float


def _at_most(value: int | None, limit: int | None) -> bool:
    return limit is None or (value is not None and value <= limit)


@attrs.frozen
class Principal:
    """Who is acting. `entity` is the default entity. Limits and usage are counted under `key_id`: "" for the host, the
    id of an API key, or any value by which your own authenticator distinguishes its callers. `purse` is the id of one
    more budget that has to pay, if there is any."""

    name: str
    entity: str
    scope: Scope
    key_id: str = ""
    limits: Limits = attrs.field(factory=Limits)
    purse: str = ""

    def require(self, entity: str, project: str | None = None) -> None:
        """Raise `Forbidden` unless the scope covers both. The message is the same whether or not they exist."""
        names = {"entity": entity, "project": "" if project is None else project}
        for name in [name for name, given in names.items() if not isinstance(given, str)]:
            check_name(names[name], name)
        if not self.scope.covers(entity, project):
            raise Forbidden(f"this key may not use {entity}/{project}" if project else f"this key may not use {entity}")

    @cached_property
    def own(self) -> Attribution:
        return self.attribution()

    def attribution(self, entity: str | None = None, project: str | None = None) -> Attribution:
        """Return what to charge: the named entity and project, by default the caller's entity and its only project.
        Raises `Forbidden` if the scope does not cover them."""
        entity = entity or self.entity
        if not project and entity == self.entity and self.scope.projects is not None and len(self.scope.projects) == 1:
            (project,) = self.scope.projects
        if self.scope.entity is not None:
            self.require(entity, project)
        return _attribution(entity, project or "")


def host(entity: str = "local") -> Principal:
    return Principal("host", entity, Scope(None))


def anonymous(entity: str) -> Principal:
    return Principal("anonymous", check_name(entity, "entity"), Scope(entity), "anonymous")


@attrs.frozen
class ApiKey:
    """An API key without its secret. Empty `projects` mean all projects of the entity; `prefix` may be shown. A `host`
    key acts for the host: its scope covers every entity, and `entity` is its default."""

    id: str
    prefix: str
    digest: str = attrs.field(repr=False)
    name: str
    entity: str
    projects: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    host: bool = False
    seq: int = sequence_field()

    def alive(self, now: datetime) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def scope(self) -> Scope:
        return Scope(None if self.host else self.entity, frozenset(self.projects) if self.projects else None)

    @property
    def limits(self) -> Limits:
        return Limits(self.requests_per_minute, self.concurrent_requests)

    def principal(self) -> Principal:
        """Make the principal who acts with this key."""
        return Principal(self.name or self.prefix, self.entity, self.scope, self.id, self.limits)


@attrs.frozen
class NewKey:
    """A new key and its secret, which is available in clear only here."""

    key: ApiKey
    secret: str = attrs.field(repr=False)


@attrs.frozen
class BrowserSession:
    """The session of a browser in which a caller logged in with a key. `id` is the digest of the cookie's token. It
    holds the principal of the login. `host` means that its scope has no entity; empty `projects` mean all."""

    id: str
    key_id: str
    name: str
    entity: str
    projects: tuple[str, ...]
    host: bool
    expires_at: datetime
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None

    @classmethod
    def of(cls, id: str, principal: Principal, expires_at: datetime) -> "BrowserSession":
        scope, limits = principal.scope, principal.limits
        projects = tuple(sorted(scope.projects or ()))
        known = (principal.key_id, principal.name, principal.entity, projects, scope.entity is None)
        return cls(id, *known, expires_at, limits.requests_per_minute, limits.concurrent_requests)

    def principal(self) -> Principal:
        scope = Scope(None if self.host else self.entity, frozenset(self.projects) if self.projects else None)
        limits = Limits(self.requests_per_minute, self.concurrent_requests)
        return Principal(self.name, self.entity, scope, self.key_id, limits)


def require_host(principal: Principal) -> None:
    """Raise `Forbidden` unless the principal is the host."""
    if principal.scope.entity is not None:
        raise Forbidden("only the host may do this")


LIFETIME = 24 * 3600.0
EXPIRED_AT_ONCE = 10
"""With each answer that is added, more than one is removed, so that expired ones become fewer."""


KEY_PATTERN = "[!-~]{1,255}"


def check_idempotency_key(key: str | None) -> str | None:
    """Check that a key is 1 to 255 visible ASCII characters; None means no key. Raises `InvalidInput`."""
    if key is not None and not re.fullmatch(KEY_PATTERN, key):
        raise InvalidInput.at("idempotency_key", msg="must be 1 to 255 visible ASCII characters")
    return key


@attrs.frozen
class KeyedRequest:
    principal: Principal
    key: str
    request: str

    @property
    def id(self) -> str:
        caller, scope = self.principal, self.principal.scope
        projects = None if scope.projects is None else sorted(scope.projects)
        return digest([scope.entity, projects, caller.entity, caller.name, caller.key_id, self.key])

    def answered(self, answer: str, time: float) -> "AnsweredRequest":
        return AnsweredRequest(self.id, self.principal.entity, self.request, answer, time)


@attrs.frozen
class AnsweredRequest:
    id: str
    entity: str
    request: str
    answer: str
    answered_at: float

    def expired(self, time: float) -> bool:
        return time - self.answered_at >= LIFETIME


@attrs.frozen
class DeletedEntity:
    """All data of an entity were deleted: no text of what began before is stored. `id` is a digest of its name."""

    id: str
    deleted_at: datetime


RECORDS = (
    Record(DeletedEntity, "deleted_entities", ("id",)),
    Record(
        BrowserSession,
        "browser_sessions",
        ("id",),
        indexes={"by_entity": Index(("entity",)), "by_expiry": Index((), ("expires_at",))},
    ),
    Record(
        ApiKey,
        "api_keys",
        ("id",),
        unique={"digest": ("digest",)},
        indexes={"by_entity": Index(("entity",)), "all": Index(())},
        sequence="seq",
    ),
    Record(
        AnsweredRequest,
        "answered_requests",
        ("id",),
        indexes={"by_age": Index((), ("answered_at",)), "by_entity": Index(("entity",))},
        texts=KEPT,
    ),
)
