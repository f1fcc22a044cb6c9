"""What all artifact stores share: names, the errors of those that are gone, and the comparison with a digest."""

import hashlib
import re
from typing import BinaryIO

from modelyard.errors import ArtifactMissing
from modelyard.protocols import Randomness

NAME = re.compile(r"[0-9a-f]{32}")
"""A name of an artifact; no other string is ever looked up."""

PROOF = b"artifacts can be written and read"
"""What a check writes and reads."""


def new_name(randomness: Randomness, count: int) -> str:
    """Return 32 hexadecimal digits; `count` keeps names distinct if a host's randomness repeats itself."""
    return hashlib.sha256(randomness(16) + str(count).encode()).hexdigest()[:32]


def missing(name: str) -> ArtifactMissing:
    """Make the error for a name that stands for nothing."""
    return ArtifactMissing(f"artifact {name!r} is gone; its data must be uploaded or made again")


def altered(name: str) -> ArtifactMissing:
    """Make the error for bytes that are not those that were stored."""
    return ArtifactMissing(
        f"artifact {name!r} was altered: its bytes do not match its digest; its data must be uploaded or made again"
    )


def check_digest(file: BinaryIO, name: str, digest: str | None) -> BinaryIO:
    """Return the file, at its start. With a `digest`, its bytes are compared first. Raises `ArtifactMissing`."""
    if digest is not None:
        found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # a BinaryIO is such a file
        if found != digest:
            file.close()
            raise altered(name)
        file.seek(0)
    return file
