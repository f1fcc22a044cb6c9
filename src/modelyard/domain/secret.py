"""The secrets of API keys: how they are made, shown and kept (specification 5)."""

import hashlib

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_BYTES = 38


def secret_of(random: bytes) -> str:
    """The text of a new key, `my_<8 characters that may be shown>_<43 characters>`, from `SECRET_BYTES` random bytes.

    Letters, digits and underscores only, so that any client sends it as it is. The 43 characters carry all 256 bits
    of the last 32 bytes.
    """
    shown, hidden = int.from_bytes(random[:6], "big"), int.from_bytes(random[6:SECRET_BYTES], "big")
    return f"my_{_base62(shown, 8)}_{_base62(hidden, 43)}"


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def secret_prefix(secret: str) -> str:
    """The part of a key that may be shown, to recognise it by."""
    return secret[:11]


def secret_digest(secret: str) -> str:
    """What is kept of a key. It has 256 random bits, so a plain SHA-256 cannot be searched."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
