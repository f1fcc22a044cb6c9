"""The key of the host, of which the secrets of endpoints are made. So no store holds a secret, and no backup."""

import hmac
import os
from collections.abc import Iterable
from hashlib import sha256

import attrs

from modelyard.disk import NO_ROOM, sync, sync_folder
from modelyard.errors import Conflict, StorageFull, StoreError
from modelyard.parts.locks import wait_for_lock
from modelyard.parts.webhooks.records import WebhookEndpoint
from modelyard.parts.webhooks.signing import secret_of
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Randomness

VARIABLE = "MODELYARD_WEBHOOK_KEY"
SUFFIX = "-webhook-key"
"""What the name of a SQLite file is followed by in that of its key."""

KEY_BYTES, NONCE_BYTES, FINGERPRINT_BYTES = 32, 16, 8
SHORTEST = 32
"""Characters of a key that is given."""


@attrs.frozen
class HostKey:
    """Makes the secret of an endpoint of a nonce: the same key and nonce make the same secret."""

    _key: bytes = attrs.field(repr=False)

    @property
    def fingerprint(self) -> str:
        """What says which key this is, and nothing of it."""
        return self._derived("fingerprint")[:FINGERPRINT_BYTES].hex()

    def secret(self, endpoint_id: str, nonce: str) -> str:
        return secret_of(self._derived("secret", endpoint_id, nonce))

    def secrets(self, endpoint: WebhookEndpoint, nonces: Iterable[str]) -> tuple[str, ...]:
        """Return the secrets of an endpoint. Raises `Conflict` if they were made by another key."""
        if endpoint.key != self.fingerprint:
            raise Conflict(
                f"the secret of webhook {endpoint.id} was made by another key of the host than there is now: give the "
                f"key back ({VARIABLE}, or the file that ends in {SUFFIX} next to the store), or rotate the secret"
            )
        return tuple(self.secret(endpoint.id, nonce) for nonce in nonces)

    def _derived(self, *words: str) -> bytes:
        return hmac.new(self._key, "\0".join(("modelyard webhooks", *words)).encode(), sha256).digest()


def host_key(runtime: Runtime, make: bool = False) -> HostKey:
    """Return the key: the one that is given, that of the file next to a SQLite file, or one of this process in memory.

    The file is made if it has to be (`make`). Raises `Conflict` if there is no key, and `StoreError`.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        if _is_short(given.encode()):
            raise Conflict(f"{VARIABLE} has fewer than {SHORTEST} characters; set it to a long random string")
        return HostKey(given.strip().encode())
    if not runtime.store.blocking:
        return runtime.cache.slot_of(HostKey, lambda: HostKey(runtime.randomness(KEY_BYTES)))
    path = getattr(runtime.store, "path", None)
    if path is None:
        raise Conflict(
            f"this platform has no key for the secrets of webhooks: set {VARIABLE} to a random string of at least "
            f"{SHORTEST} characters, the same for each process that opens its store"
        )
    return HostKey(_kept(f"{os.path.realpath(path)}{SUFFIX}", make, runtime.randomness))


def _kept(path: str, make: bool, randomness: Randomness) -> bytes:
    """Return the key in a file. It is used only once it is on the disk, whoever of several processes has written it."""
    try:
        with open(os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o600), "r+b") as file:
            wait_for_lock(file.fileno())
            found = file.read()
            if make and _is_short(found):
                found = randomness(KEY_BYTES).hex().encode()
                file.seek(0)
                file.truncate()
                file.write(found)
                file.flush()
                sync(file.fileno())
                sync_folder(os.path.dirname(path))
    except FileNotFoundError:
        found = b""
    except OSError as error:
        kind = StorageFull if error.errno in NO_ROOM else StoreError
        raise kind(f"the key of webhooks next to the store cannot be used: {error.strerror}") from error
    if _is_short(found):
        raise Conflict(
            f"the key of webhooks is gone: put back the file that ends in {SUFFIX} next to the store, or set "
            f"{VARIABLE}; or rotate the secret of each webhook, which makes a new key"
        )
    return found.strip()


def _is_short(found: bytes) -> bool:
    """Return whether this is no key: none was written, or its writer was killed."""
    return len(found.strip()) < SHORTEST
