"""A checkpoint's files as the PEFT folder that a server loads an adapter from."""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from modelyard.domain.models import Checkpoint
from modelyard.errors import ArtifactMissing, BackendError
from modelyard.protocols import ServedModel

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "modelyard-"
OURS = re.compile(rf"{PREFIX}[0-9a-f]{{32}}")

_UNFINISHED = re.compile(rf"\.({OURS.pattern})\.[0-9a-f]{{16}}")
_CHUNK = 2**20


def adapter_name(checkpoint: Checkpoint) -> str:
    """Return the name of a checkpoint's adapter: made from its digest, so equal weights share one."""
    return PREFIX + hashlib.sha256(checkpoint.digest.encode()).hexdigest()[:32]


def materialise(model: ServedModel, folder: Path) -> None:
    """Write the adapter's files to `folder`: under another name, checked against their digests, then renamed.

    Files that are there already are checked as well, and written again when they differ. Raises `BackendError` if the
    checkpoint is not a LoRA adapter, `ArtifactMissing`.
    """
    assert model.checkpoint is not None
    digests = _digests(model.checkpoint)
    if _intact(folder, digests):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    aside.mkdir()
    try:
        for name, digest in digests.items():
            _copy(model, name, aside / name, digest)
        remove(folder)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _digests(checkpoint: Checkpoint) -> dict[str, str]:
    missing = {CONFIG_FILE, WEIGHTS_FILE} - checkpoint.files.keys()
    if missing:
        raise BackendError(
            f"checkpoint {checkpoint.id} is not a LoRA adapter: it has no {' and no '.join(sorted(missing))}; "
            "a model that this server serves needs a trainer that writes PEFT adapters"
        )
    return {name: checkpoint.files[name]["digest"] for name in (CONFIG_FILE, WEIGHTS_FILE)}


def _intact(folder: Path, digests: dict[str, str]) -> bool:
    try:
        return all(_digest(folder / name) == digest for name, digest in digests.items())
    except OSError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(model: ServedModel, name: str, to: Path, digest: str) -> None:
    assert model.open_file is not None
    with model.open_file(name) as source, to.open("xb") as copy:
        shutil.copyfileobj(source, copy, _CHUNK)
        copy.flush()
        os.fsync(copy.fileno())
    if _digest(to) != digest:
        raise ArtifactMissing(f"{name} of a checkpoint no longer has its digest; restore it from a backup")


def remove(folder: Path) -> None:
    """Remove a folder, if it is there; half of it is never seen under its name."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def sweep(folder: Path, keep: Collection[str]) -> None:
    """Remove all adapters but those to keep, complete or not. Other files are left alone."""
    if not folder.is_dir():
        return
    for entry in list(folder.iterdir()):
        unfinished = _UNFINISHED.fullmatch(entry.name)
        name = unfinished[1] if unfinished else entry.name
        if OURS.fullmatch(name) and name not in keep:
            shutil.rmtree(entry, ignore_errors=True)
