"""Names of artifacts."""

import hashlib

from modelyard.protocols import Randomness

RANDOM_BYTES = 16


def new_name(randomness: Randomness, count: int) -> str:
    """32 hexadecimal digits; `count` keeps names apart where a host's randomness repeats itself."""
    return hashlib.sha256(randomness(RANDOM_BYTES) + str(count).encode()).hexdigest()[:32]
