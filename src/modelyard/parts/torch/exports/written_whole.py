"""Folders and files that are there whole or not at all: written beside their place, and moved there at the end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelyard.disk import unfinished_next_to
from modelyard.errors import Conflict, InvalidInput, StorageFull
from modelyard.parts.torch.full_disk import says_full


def check_place(place: Path) -> None:
    """Raise `InvalidInput` if nothing can be written there, `Conflict` if there is something."""
    if not place.parent.is_dir():
        raise InvalidInput.at("to", msg=f"there is no folder {place.parent}; make it first, or name another place")
    if os.path.lexists(place):
        raise Conflict(f"{place} is there already, and nothing is written over; remove it, or name another place")


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `place` at the end, and is removed if that fails.

    What a process leaves that is killed has a name that begins with a dot; the next one that writes there removes it.
    Raises `InvalidInput`, `Conflict`, `StorageFull`.
    """
    check_place(place)
    with full_disk_named(place), unfinished_next_to(str(place)) as above:
        scratch = Path(above, place.name)
        scratch.mkdir(0o700)
        yield scratch
        scratch.chmod(0o755)
        _sync(scratch)
        check_place(place)
        scratch.rename(place)


@contextmanager
def new_file(place: Path) -> Iterator[Path]:
    """Yield the path of a file that becomes `place` at the end, and is removed if that fails. Raises as `new_folder`
    does.
    """
    check_place(place)
    with full_disk_named(place), unfinished_next_to(str(place)) as folder:
        yield (scratch := Path(folder, place.name))
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        _move(scratch, place)


def _move(file: Path, place: Path) -> None:
    """Give a file its place, unless somebody was faster."""
    try:
        os.link(file, place)
    except OSError:  # the place is taken, or its file system has no links
        check_place(place)
        file.rename(place)


def _sync(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())


@contextmanager
def full_disk_named(place: Path) -> Iterator[None]:
    try:
        yield
    except Exception as failed:
        if not says_full(failed):
            raise
        raise StorageFull(f"the disk of {place.parent} is full; make room, or name a place on another disk") from None
