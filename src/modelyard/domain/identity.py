"""Who asks, and what they may touch: principals, scopes, API keys (specification 5)."""

import re
from datetime import datetime

import attrs

from modelyard.domain.record import Index, Record
from modelyard.errors import Forbidden, InvalidInput, Problem

NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}")


def check_name(value: str, *loc: str | int) -> str:
    """Refuse what is no name: 1 to 128 of `[A-Za-z0-9._-]`, not dots only. Raises `InvalidInput` at `loc`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidInput([Problem(loc, "must be 1 to 128 characters of A-Z a-z 0-9 . _ - and not dots only")])
    return value


@attrs.frozen
class Attribution:
    """Whom a completion is booked on: the entity and the project, "" for none."""

    entity: str
    project: str = ""


@attrs.frozen
class Scope:
    """What a read may see: one entity, and some of its projects or (None) all. The unscoped view is `Scope(None)`."""

    entity: str | None
    projects: frozenset[str] | None = None

    def covers(self, entity: str, project: str | None = None) -> bool:
        """Whether this scope holds the entity and, where one is named, the project."""
        if self.entity is None:
            return True
        return entity == self.entity and (not project or self.projects is None or project in self.projects)

    def holds(self, other: "Scope") -> bool:
        """Whether everything that `other` covers is covered by this scope too."""
        if self.entity is None:
            return True
        if other.entity != self.entity:
            return False
        return self.projects is None or (other.projects is not None and other.projects <= self.projects)


@attrs.frozen
class Limits:
    """What a key may use: requests in a minute, requests at once. None means no limit."""

    requests_per_minute: int | None = None
    concurrent_requests: int | None = None

    def hold(self, other: "Limits") -> bool:
        """Whether `other` allows no more than this."""
        return _at_most(other.requests_per_minute, self.requests_per_minute) and _at_most(
            other.concurrent_requests, self.concurrent_requests
        )


def _at_most(value: int | None, limit: int | None) -> bool:
    return limit is None or (value is not None and value <= limit)


@attrs.frozen
class Principal:
    """Who is acting. `entity` is the default where none is named.

    Limits and usage are counted under `key_id`: "" for the host, the id of an API key, or whatever tells the callers of
    an authenticator of your own apart.
    """

    name: str
    entity: str
    scope: Scope
    key_id: str = ""
    limits: Limits = attrs.field(factory=Limits)

    def require(self, entity: str, project: str | None = None) -> None:
        """Raise `Forbidden`, in the same words whether anything exists there, unless the scope covers both."""
        if not self.scope.covers(entity, project):
            raise Forbidden(f"this key may not use {entity}/{project}" if project else f"this key may not use {entity}")

    def attribution(self, entity: str | None = None, project: str | None = None) -> Attribution:
        """Whom to book on: what was named and is covered, else the default entity and the key's only project."""
        entity = entity or self.entity
        if not project and entity == self.entity and self.scope.projects is not None and len(self.scope.projects) == 1:
            (project,) = self.scope.projects
        self.require(entity, project)
        return Attribution(entity, project or "")


def host(entity: str = "local") -> Principal:
    """The embedding application itself: everything is in its scope."""
    return Principal("host", entity, Scope(None))


@attrs.frozen
class ApiKey:
    """An API key without its secret. `projects` empty means all projects of the entity; `prefix` may be shown."""

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

    def alive(self, now: datetime) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def scope(self) -> Scope:
        """What may be touched with this key."""
        return Scope(self.entity, frozenset(self.projects) if self.projects else None)

    @property
    def limits(self) -> Limits:
        """What may be used with this key."""
        return Limits(self.requests_per_minute, self.concurrent_requests)

    def principal(self) -> Principal:
        """Who acts with this key."""
        return Principal(self.name or self.prefix, self.entity, self.scope, self.id, self.limits)


@attrs.frozen
class NewKey:
    """A key at its birth: the only moment at which the secret exists in clear."""

    key: ApiKey
    secret: str = attrs.field(repr=False)


RECORDS = (
    Record(
        ApiKey,
        "api_keys",
        ("id",),
        unique={"digest": ("digest",)},
        indexes={"by_entity": Index(("entity",), ("created_at",)), "all": Index((), ("created_at",))},
    ),
)
