"""Artifact stores by their addresses: a folder, or a bucket of an object store."""

import re
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.errors import InvalidInput
from modelyard.parts.objects import store as objects
from modelyard.parts.objects import stores
from modelyard.protocols import ArtifactStore, Randomness

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_KNOWN = "a folder, file:///folder, memory://, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


def open_artifacts(address: str, randomness: Randomness) -> ArtifactStore:
    """Open the artifact store at an address: a folder, `file://`, `memory://`, `s3://`, `gs://` or `az://`. The
    credentials of an object store come from where its own tools take them. No request is made yet. Raises
    `InvalidInput`, `MissingExtra`, `StoreError`."""
    scheme = _SCHEME.match(address)
    if scheme is None:
        return FolderArtifacts(address, randomness)
    parts = _checked(address)
    match scheme[1].lower():
        case "file" if not parts.netloc:
            return FolderArtifacts(url2pathname(parts.path), randomness)
        case "memory":
            return MemoryArtifacts(randomness)
        case "s3" | "gs" | "az" if parts.netloc:
            return objects.ObjectArtifacts(stores.bucket_at(address), stores.cache_of(address), randomness=randomness)
    raise InvalidInput.at("artifacts", msg=f"must be {_KNOWN}")


def _checked(address: str) -> Any:
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInput.at(
            "artifacts",
            msg="must be an address without credentials and options; set the environment variables of the object store",
        )
    return parts
