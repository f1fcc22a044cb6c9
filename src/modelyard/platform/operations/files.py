"""Whether each record has the files that it names, with the bytes that they had; and backups in which each one has."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing

import attrs

from modelyard.disk import move_new, unfinished_next_to
from modelyard.domain.record import declaration_of
from modelyard.errors import ArtifactMissing
from modelyard.part import check_place
from modelyard.platform.artifacts import artifacts_folder
from modelyard.platform.jobs.announced import forget_all
from modelyard.platform.operations.orphans import naming_records
from modelyard.platform.runtime import Runtime

_CHUNK = 2**20


@attrs.frozen(order=True)
class FileFault:
    """A record whose artifact is missing or differs: its kind, id and entity, the name of the artifact, and why."""

    kind: str
    id: str
    entity: str
    artifact: str
    problem: str = ""


def file_faults(runtime: Runtime, read: bool = True) -> list[FileFault]:
    """Return the records that have lost their files; with `read`, also those that have others, reading every byte.

    A file is compared if its record has its digest, and read to its end if not.
    """
    return sorted(_faults(runtime, read))


def _faults(runtime: Runtime, read: bool) -> Iterator[FileFault]:
    for record in naming_records(runtime):
        named = declaration_of(type(record)).artifacts
        assert named is not None
        files = named(record)
        digests = files if isinstance(files, Mapping) else dict.fromkeys(files)
        for name, digest in digests.items():
            try:
                with runtime.artifacts.open(name, digest if read else None) as file:
                    while read and digest is None and file.read(_CHUNK):
                        pass
            except ArtifactMissing as fault:
                yield FileFault(type(record).__name__, record.id, record.entity, name, str(fault))


def back_up(runtime: Runtime, path: str) -> list[FileFault]:
    """Copy the store to `path`, and artifacts to the folder next to it; return the records that have lost theirs.

    Artifacts never change, and may be removed meanwhile, after their records. So a copy of the store in which a record
    names a file that was not copied is taken again, and the files that it names are copied again. A record that lacks
    its file twice has lost it in the store itself. Raises `FileExistsError`, `InvalidInput`, `StorageFull`,
    `StoreError`.
    """
    check_place(path, "a backup is a file, with a folder next to it: name a path")
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists; a backup never replaces a file")
    folder, before = artifacts_folder(path), None
    with unfinished_next_to(path) as unfinished:
        copy = os.path.join(unfinished, os.path.basename(path))
        kept = folder if os.path.lexists(folder) else artifacts_folder(copy)
        while True:
            runtime.store.backup(copy)
            runtime.artifacts.backup(kept)
            store, artifacts = runtime.open_copy(copy, kept)
            with closing(store):
                lacking = file_faults(attrs.evolve(runtime, store=store, artifacts=artifacts), read=False)
                store.transact(forget_all)
            if not lacking or (before is not None and before.issuperset(lacking)):
                break
            before = {*lacking}
            os.unlink(copy)
        if os.path.lexists(path):
            raise FileExistsError(f"{path} was made meanwhile; a backup never replaces a file")
        os.rename(kept, folder)
        try:
            move_new(copy, path)
        except BaseException:
            os.rename(folder, kept)
            raise
    return lacking
