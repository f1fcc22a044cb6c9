"""Bytes that belong to records: short ones are kept in the record, longer ones and files as artifacts."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from modelyard.platform.runtime import Runtime

MOST_IN_RECORD = 32 * 1024
"""How many bytes a record may hold itself."""

Kept = Mapping[str, Any]
"""What a record holds of bytes: nothing, `{"base64"}`, or `{"artifact", "size", "digest"}`."""


def keep_bytes(runtime: Runtime, data: bytes, loose: list[str] | None = None) -> Kept:
    """Keep bytes, and return the value for the record. The name of their artifact, if any, is added to `loose`."""
    if len(data) <= MOST_IN_RECORD:
        return {"base64": base64.b64encode(data).decode()}
    stored = runtime.artifacts.put((data,))
    if loose is not None:
        loose.append(stored.name)
    return {"artifact": stored.name, "size": stored.size, "digest": stored.digest}


def kept_bytes(runtime: Runtime, kept: Kept) -> bytes:
    if "artifact" in kept:
        with runtime.artifacts.open(kept["artifact"], kept["digest"]) as file:
            return file.read()
    return base64.b64decode(kept.get("base64", ""))


def keep_files(runtime: Runtime, files: Mapping[str, Iterable[bytes]], loose: list[str]) -> Kept:
    """Keep files as artifacts, and return the value for the record: `{name: {"artifact", "size", "digest"}}`.

    The names of the artifacts are added to `loose`.
    """
    kept = {}
    for name, chunks in files.items():
        stored = runtime.artifacts.put(chunks)
        loose.append(stored.name)
        kept[name] = {"artifact": stored.name, "size": stored.size, "digest": stored.digest}
    return kept
