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
    named = _SCHEME.match(address)
    scheme = "" if named is None else named[1].lower()
    schemes = by_scheme(standard_parts() if parts is None else parts, "artifacts")
    begins = tuple(f"{known}:" for known in (*schemes, "memory"))
    is_path = meant_as_address(address) is None and not address.lower().startswith(begins)
    place = None if is_path else _checked(address)
    if place is None or (scheme == "file" and place.path and not place.netloc):
        folder = address if place is None else url2pathname(place.path)
        above = os.path.dirname(os.path.abspath(folder))
        if not os.path.isdir(above):
            msg = f"there is no folder {above}; make it first, or name an address: {_examples(schemes)}"
            raise InvalidInput.at("artifacts", msg=msg)
        return FolderArtifacts(folder, randomness)
    if scheme == "memory":
        return MemoryArtifacts(randomness)
    if scheme in schemes and place.netloc:
        opened: ArtifactStore = schemes[scheme][1](address, randomness)
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
