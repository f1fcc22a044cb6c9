"""Names, errors and digests, for all artifact stores."""

import hashlib
import re
from typing import BinaryIO

from modelyard.errors import ArtifactMissing
from modelyard.protocols import Randomness

NAME = re.compile(r"[0-9a-f]{32}")
PROOF = b"artifacts can be written and read"


def new_name(randomness: Randomness, count: int) -> str:
    """Return 32 hexadecimal digits; `count` keeps names distinct if a host's randomness repeats itself."""
    return hashlib.sha256(randomness(16) + str(count).encode()).hexdigest()[:32]


def missing(name: str) -> ArtifactMissing:
    return ArtifactMissing(f"artifact {name!r} is gone; its data must be uploaded or made again")


def altered(name: str) -> ArtifactMissing:
    return ArtifactMissing(
        f"artifact {name!r} was altered: its bytes do not match its digest; its data must be uploaded or made again"
    )


def check_digest(file: BinaryIO, name: str, digest: str | None) -> BinaryIO:
    """Return the file, at its start. With a `digest`, its bytes are compared first. Raises `ArtifactMissing`."""
    if digest is None:
        return file
    try:
        found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # a BinaryIO is such a file
        if found != digest:
            raise altered(name)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
