"""Files that a principal keeps for later: uploading, listing, reading and deleting them."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any, BinaryIO, cast

from modelyard.domain.identity import Principal
from modelyard.domain.record import FOR_EVER, Order
from modelyard.errors import InvalidInput, NotFound, Problem
from modelyard.formats.json_stream import file_chunks
from modelyard.parts.batches.files.joined import open_joined
from modelyard.parts.batches.files.records import UPLOADED_FOR, StoredFile
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import (
    cursor_at,
    get_or_none,
    index_listing,
    listed_entity,
    listed_index,
    named_place,
)
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, StoredArtifact, Tx

REMOVED_AT_ONCE = 20
MAX_NAME = 512
LEAST_LIFE, MOST_LIFE = timedelta(hours=1), timedelta(days=30)
"""How long a file that expires may be kept."""


class Files:
    """The files that a principal may see. Those of others look as if they did not exist.

    file = platform.compat.files.create("train.jsonl", open("train.jsonl", "rb"), purpose="fine-tune")
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def create(
        self,
        filename: str,
        data: bytes | BinaryIO | Iterable[bytes],
        *,
        purpose: str,
        project: str | None = None,
        entity: str | None = None,
        expires_after: timedelta | None = None,
    ) -> StoredFile:
        """Keep a file: bytes, a file to read, or its pieces as they come. Some expired files are removed.

        `expires_after` is from an hour to 30 days; without it the file stays until it is deleted. Raises
        `InvalidInput`, `Forbidden`, `StorageFull`.
        """
        self._runtime.require_room()
        began = self._runtime.clock.monotonic()
        stored = self._runtime.artifacts.put(_chunks(data))
        where: Any = {"project": project, "entity": entity}
        return self.keep(filename, stored, purpose=purpose, expires_after=expires_after, began=began, **where)

    def keep(
        self,
        filename: str,
        stored: StoredArtifact,
        *,
        purpose: str,
        project: str | None = None,
        entity: str | None = None,
        expires_after: timedelta | None = None,
        began: float | None = None,
    ) -> StoredFile:
        """Keep an artifact as a file, which then owns it. If this raises, it is removed. Raises as `create`, and
        `Unauthenticated` if the entity was deleted since it `began` to come, by the monotonic clock."""
        with remove_unless_recorded(self._runtime.artifacts, stored.name):
            entity, project = named_place(self._runtime, self._principal, entity, project)
            _check(filename, purpose, stored.size, expires_after)
            now = self._runtime.clock.now()
            expires_at = FOR_EVER if expires_after is None else now + expires_after
            parts = {"0": {"artifact": stored.name, "size": stored.size, "digest": stored.digest}}
            place = (self._runtime.ids(), entity, project)
            file = StoredFile(*place, filename, purpose, stored.size, now, expires_at, parts)
            gone: list[StoredFile] = []
            store_texts(self._runtime, entity, partial(_add, file=file, gone=gone), began)
        for old in gone:
            self._remove_parts(old)
        return file

    def get(self, file_id: str) -> StoredFile:
        """Return one file. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._found(snapshot, file_id))

    def list(
        self,
        *,
        purpose: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "desc",
    ) -> Listing[StoredFile]:
        """List files, the newest first: all that the caller may see, or those of an entity, a project or a purpose.

        Raises `Forbidden`.
        """
        entity = listed_entity(self._principal, entity, project)
        index, *where = listed_index(entity, project)
        place = partial(self._place, index)

        def keep(file: StoredFile) -> bool:
            return self._sees(file) and purpose in (None, file.purpose) and project in (None, file.project)

        return index_listing(self._runtime, StoredFile, index, *where, place=place, order=order, keep=keep)

    def open(self, file_id: str) -> BinaryIO:
        """Open a file to read it from its beginning; the caller closes it. Raises `NotFound`.

        Reading raises `ArtifactMissing` if a part of it is gone or altered.
        """
        return open_joined(self._runtime.artifacts, self.get(file_id).parts)

    def delete(self, file_id: str) -> StoredFile:
        """Delete a file with its bytes, for ever. Raises `NotFound`.

        Training jobs have their own copy of it; a batch that still reads it fails.
        """

        def step(tx: Tx) -> StoredFile:
            file = self._found(tx, file_id)
            tx.remove(StoredFile, file.id)
            return file

        file = self._runtime.store.transact(step)
        self._remove_parts(file)
        return file

    def _remove_parts(self, file: StoredFile) -> None:
        for part in file.parts.values():
            self._runtime.artifacts.remove(part["artifact"])

    def _found(self, snapshot: Snapshot, file_id: str) -> StoredFile:
        file = get_or_none(snapshot, StoredFile, file_id)
        if file is None or not self._sees(file):
            raise NotFound("File", file_id)
        return file

    def _sees(self, file: StoredFile) -> bool:
        covered = self._principal.scope.covers(file.entity, file.project)
        return covered and self._runtime.clock.now() < file.expires_at

    def _place(self, index: str, file_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(StoredFile, index, self._found(snapshot, file_id))


def _chunks(data: bytes | BinaryIO | Iterable[bytes]) -> Iterable[bytes]:
    if isinstance(data, bytes):
        return [data]
    return file_chunks(cast(BinaryIO, data)) if hasattr(data, "read") else data


def _check(filename: str, purpose: str, size: int, expires_after: timedelta | None) -> None:
    rules = [
        ("filename", 0 < len(filename) <= MAX_NAME and filename.isprintable(), f"must be 1 to {MAX_NAME} characters"),
        ("purpose", purpose in UPLOADED_FOR, f"must be one of {', '.join(UPLOADED_FOR)}"),
        ("file", size > 0, "is empty"),
        (
            "expires_after",
            expires_after is None or LEAST_LIFE <= expires_after <= MOST_LIFE,
            "must be from 3600 seconds (an hour) to 2592000 (30 days)",
        ),
    ]
    problems = [Problem((name,), message) for name, fits, message in rules if not fits]
    if problems:
        raise InvalidInput(problems)


def _add(tx: Tx, file: StoredFile, gone: list[StoredFile]) -> StoredFile:
    """Add a file, and remove some that have expired; they are returned in `gone`."""
    old = tx.page(StoredFile, "by_expiry", limit=REMOVED_AT_ONCE)
    gone[:] = [other for other in old if other.expires_at <= file.created_at]
    for other in gone:
        tx.remove(StoredFile, other.id)
    tx.add(file)
    return file
