"""Requests that callers named by an idempotency key, and the answers. An answer is kept for a day: long enough for
every client that tries again, and so that keys do not fill the store."""

import re

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal
from modelyard.domain.record import Index, Record
from modelyard.errors import InvalidInput

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


RECORDS = (
    Record(
        AnsweredRequest,
        "answered_requests",
        ("id",),
        indexes={"by_age": Index((), ("answered_at",)), "by_entity": Index(("entity",))},
    ),
)
