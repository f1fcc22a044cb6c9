"""API keys as the host administers them over HTTP."""

from datetime import datetime
from typing import Self

import attrs

from modelyard.domain.identity import NewKey
from modelyard.formats.constraints import NAME, Length, Matching, Within
from modelyard.http.listing import page_class
from modelyard.http.message import answering
from modelyard.platform.keys.service import PREFIX

MOST_DAYS = 36_500
_PREFIX = Matching(PREFIX.pattern, "must be 1 to 8 letters, digits, dots, underscores or hyphens, no sign first")


@attrs.frozen
class KeyCreate:
    """The body that makes a key. Without `projects` it has all of the entity, and a `host` key acts for the host.

    The secret begins with `prefix`, for clients that insist on one.
    """

    entity: str = attrs.field(validator=NAME)
    projects: tuple[str, ...] | None = attrs.field(default=None, validator=Length(1, 1000))
    name: str = attrs.field(default="", validator=Length(0, 128))
    expires_in_days: int | None = attrs.field(default=None, validator=Within(1, MOST_DAYS))
    requests_per_minute: int | None = attrs.field(default=None, validator=Within(1, 2**31))
    concurrent_requests: int | None = attrs.field(default=None, validator=Within(1, 2**31))
    host: bool = False
    prefix: str = attrs.field(default="my_", validator=_PREFIX)


@attrs.frozen
class KeyObject:
    """A key without its secret. An empty list of `projects` means all; `prefix` is how the secret begins."""

    id: str
    prefix: str
    name: str
    entity: str
    projects: tuple[str, ...]
    host: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    requests_per_minute: int | None
    concurrent_requests: int | None


key_object = answering(KeyObject)
KeyPage = page_class("KeyPage", KeyObject, key_object, "A page of keys.")


@attrs.frozen
class KeyCreated:
    """A new key, and its secret, which is shown this once."""

    secret: str
    key: KeyObject

    @classmethod
    def of(cls, new: NewKey) -> Self:
        return cls(new.secret, key_object(new.key))
