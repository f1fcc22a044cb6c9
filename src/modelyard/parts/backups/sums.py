"""The digests of the files of a backup, in a file next to it that `sha256sum --check` reads.

Its first line is that of the records, and a backup that is renamed with its files stays one.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.disk import sync, sync_folder, unfinished_next_to
from modelyard.errors import StoreCorrupt
from modelyard.platform.artifacts import artifacts_folder

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


@attrs.frozen
class Sums:
    """The digest of the records, and those of the artifacts by their names."""

    records: str
    artifacts: Mapping[str, str]


def sums_file(file: Path) -> Path:
    """Return the name of the file of the digests of a backup."""
    return file.with_name(f"{file.name}.sha256")


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hex."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_sums(file: Path) -> Sums:
    """Read the files of a backup, and write their digests next to it."""
    folder = Path(artifacts_folder(file))
    names = sorted(FolderArtifacts(folder).names()) if folder.is_dir() else []
    sums = Sums(digest_of(file), {name: digest_of(folder / name) for name in names})
    lines = [f"{sums.records}  {file.name}", *(f"{sums.artifacts[name]}  {folder.name}/{name}" for name in names)]
    target = sums_file(file)
    with unfinished_next_to(str(target)) as unfinished:  # one that is cut off would check less without a word
        with open(os.path.join(unfinished, target.name), "w", encoding="utf-8") as written:
            written.writelines(f"{line}\n" for line in lines)
            written.flush()
            sync(written.fileno())
        os.rename(written.name, target)
    sync_folder(str(file.absolute().parent))
    return sums


def read_sums(file: Path) -> Sums | None:
    """Return the digests that were written with a backup; None for one of an earlier version. Raises `StoreCorrupt`."""
    try:
        lines = sums_file(file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as fault:
        raise StoreCorrupt(f"{sums_file(file)} is damaged: it is not UTF-8") from fault
    found = [_LINE.fullmatch(line) for line in lines]
    if not found or None in found:
        raise StoreCorrupt(f"{sums_file(file)} is damaged: it has other lines than digests")
    (records, _), *artifacts = [(line[1], line[2]) for line in found if line]
    return Sums(records, {name.rpartition("/")[2]: digest for digest, name in artifacts})
