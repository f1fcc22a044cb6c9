"""Sessions of browsers: a caller who logged in with a key stays logged in by a token, which a cookie carries."""

from base64 import urlsafe_b64encode
from datetime import datetime, timedelta

from modelyard.domain.identity import ApiKey, BrowserSession, Principal
from modelyard.errors import RecordNotFound, Unauthenticated
from modelyard.platform.keys.service import secret_digest
from modelyard.platform.paging import get_or_none
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator, Snapshot, Tx

LIFETIME = timedelta(hours=12)
"""The life of a session that was opened with a key of the platform."""

UNCHECKED_LIFETIME = timedelta(minutes=15)
"""The life of a session of your own authenticator: without the secret, it cannot tell whether it was revoked."""

TOKEN_BYTES = 32
_EXPIRED = 100


class Sessions:
    """The sessions of browsers. The store keeps the digest of a token, never a token or a key. A session that was
    opened with a key of the platform ends with that key, and has the scope that the key has now. `authenticator`
    identifies the callers, or else the platform's keys do."""

    def __init__(self, platform: Platform, authenticator: Authenticator | None = None) -> None:
        platform._require_host()
        self._runtime = platform._runtime
        self._authenticator, self._own = authenticator or platform.keys, authenticator is None

    @property
    def blocking(self) -> bool:
        """Whether its methods may block."""
        return self._runtime.store.blocking or self._authenticator.blocking

    @property
    def lifetime(self) -> timedelta:
        """How long a session lasts."""
        return LIFETIME if self._own else UNCHECKED_LIFETIME

    def open(self, secret: str) -> str:
        """Open a session for the caller with this secret, and return its token. Raises `Unauthenticated`."""
        if len(secret) > self._authenticator.longest:
            raise Unauthenticated(f"an API key has at most {self._authenticator.longest} characters")
        principal = self._authenticator.authenticate(secret)
        token = urlsafe_b64encode(self._runtime.randomness(TOKEN_BYTES)).rstrip(b"=").decode()
        now = self._runtime.clock.now()
        session = BrowserSession.of(secret_digest(token), principal, now + self.lifetime)
        self._runtime.store.transact(lambda tx: _add(tx, session, now))
        return token

    def principal(self, token: str) -> Principal:
        """Return who logged in, with the scope in force now. Raises `Unauthenticated`."""
        digest, now = secret_digest(token), self._runtime.clock.now()
        found = self._runtime.store.read(lambda snapshot: self._alive(snapshot, digest, now))
        if found is None:
            raise Unauthenticated("this session has ended; log in again")
        return found

    def close(self, token: str) -> None:
        digest = secret_digest(token)

        def step(tx: Tx) -> None:
            if get_or_none(tx, BrowserSession, digest) is not None:
                tx.remove(BrowserSession, digest)

        self._runtime.store.transact(step)

    def _alive(self, snapshot: Snapshot, id: str, now: datetime) -> Principal | None:
        session = get_or_none(snapshot, BrowserSession, id)
        if session is None or now >= session.expires_at:
            return None
        if not self._own:
            return session.principal()
        try:
            key = snapshot.get(ApiKey, session.key_id)
        except RecordNotFound:
            return None
        return key.principal() if key.alive(now) else None


def _add(tx: Tx, session: BrowserSession, now: datetime) -> None:
    """Store a session, and remove some that have expired."""
    for old in tx.page(BrowserSession, "by_expiry", limit=_EXPIRED):
        if old.expires_at <= now:
            tx.remove(BrowserSession, old.id)
    tx.add(session)
