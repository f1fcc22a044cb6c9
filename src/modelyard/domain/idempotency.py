"""Requests that callers named by an idempotency key, and what each was answered.

An answer is kept for a day: long enough for every client that tries again, and so that keys do not fill the store.
"""

import re

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal
from modelyard.domain.record import Index, Record
from modelyard.errors import InvalidInput

LIFETIME = 24 * 3600.0
"""Seconds for which an answer is kept."""

EXPIRED_AT_ONCE = 10
"""How many expired answers are removed with each that is added: more than one, so that they become fewer."""


KEY_PATTERN = "[!-~]{1,255}"
"""What an idempotency key is: visible ASCII characters."""


def check_idempotency_key(key: str | None) -> str | None:
    """Refuse what is not 1 to 255 visible ASCII characters; None means no key. Raises `InvalidInput`."""
    if key is not None and not re.fullmatch(KEY_PATTERN, key):
        raise InvalidInput.at("idempotency_key", msg="must be 1 to 255 visible ASCII characters")
    return key


@attrs.frozen
class KeyedRequest:
    """A request under an idempotency key. `request` is the digest of all that it asks for."""

    principal: Principal
    key: str
    request: str

    @property
    def id(self) -> str:
        """The digest of the caller and the key. Callers differ by their key, and by what they may use."""
        caller, scope = self.principal, self.principal.scope
        projects = None if scope.projects is None else sorted(scope.projects)
        return digest([scope.entity, projects, caller.entity, caller.name, caller.key_id, self.key])

    def answered(self, answer: str, time: float) -> "AnsweredRequest":
        """Return the record of an answer that was given at `time`."""
        return AnsweredRequest(self.id, self.principal.entity, self.request, answer, time)


@attrs.frozen
class AnsweredRequest:
    """What a request under an idempotency key was answered, as JSON, and when, in seconds of the store's clock."""

    id: str
    entity: str
    request: str
    answer: str
    answered_at: float

    def expired(self, time: float) -> bool:
        """Return whether the key may be used again at `time`."""
        return time - self.answered_at >= LIFETIME


RECORDS = (
    Record(
        AnsweredRequest,
        "answered_requests",
        ("id",),
        indexes={"by_age": Index((), ("answered_at",)), "by_entity": Index(("entity",))},
    ),
)
