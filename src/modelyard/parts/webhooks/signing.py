"""Secrets and signatures as the Standard Webhooks specification has them."""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256

PREFIX = "whsec_"


def secret_of(key: bytes) -> str:
    return PREFIX + b64encode(key).decode()


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return one signature: HMAC-SHA256 over "id.timestamp.body"."""
    key = b64decode(secret.removeprefix(PREFIX))
    return "v1," + b64encode(hmac.new(key, f"{id}.{timestamp}.".encode() + body, sha256).digest()).decode()


def signed_headers(secrets: Iterable[str], id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    """Return the headers of a message, with a signature for each secret."""
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(secret, id, timestamp, body) for secret in secrets),
    }
