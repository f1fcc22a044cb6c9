"""Artifact stores by their addresses: a folder, or a bucket of an object store."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.errors import InvalidInput
from modelyard.part import Part, by_scheme, meant_as_address, standard_parts
from modelyard.protocols import ArtifactStore, Randomness

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_KNOWN = ("a folder", "file:///folder", "memory://")


def open_artifacts(address: str, randomness: Randomness, parts: Iterable[Part] | None = None) -> ArtifactStore:
    """Open the artifact store at an address: a folder, `file://`, `memory://`, or one that parts open.

    The credentials of an object store come from where its own tools take them: its environment variables, its files or
    the machine. Nothing is asked of it yet. Raises `InvalidInput`, `MissingExtra`, `StoreError`.
    """
    scheme = _SCHEME.match(address)
    schemes = by_scheme(standard_parts() if parts is None else parts, "artifacts")
    if scheme is None and meant_as_address(address) is None:
        above = os.path.dirname(os.path.abspath(address))
        if not os.path.isdir(above):
            msg = f"there is no folder {above}; make it first, or name an address: {_examples(schemes)}"
            raise InvalidInput.at("artifacts", msg=msg)
        return FolderArtifacts(address, randomness)
    place = _checked(address)
    match "" if scheme is None else scheme[1].lower():
        case "file" if not place.netloc:
            return FolderArtifacts(url2pathname(place.path), randomness)
        case "memory":
            return MemoryArtifacts(randomness)
        case named if named in schemes and place.netloc:
            opened: ArtifactStore = schemes[named][1](address, randomness)
            return opened
    raise InvalidInput.at("artifacts", msg=f"must be {_examples(schemes)}")


def _examples(schemes: Mapping[str, Any]) -> str:
    *first, last = (*_KNOWN, *(example for example, _ in schemes.values()))
    return f"{', '.join(first)} or {last}"


def _checked(address: str) -> Any:
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInput.at(
            "artifacts",
            msg="must be an address without credentials and options; set the environment variables of the object store",
        )
    return parts
