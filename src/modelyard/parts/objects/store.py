"""`ObjectArtifacts`: an artifact is one object, which exists once its upload is complete, and never before."""

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, BinaryIO

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.naming import NAME, PROOF, altered, missing, new_name
from modelyard.errors import ArtifactMissing, ArtifactsUnavailable, MissingExtra, ModelyardError
from modelyard.parts.objects.cache import LocalCache
from modelyard.parts.objects.direct import direct_uploads
from modelyard.parts.objects.faults import Border, is_silence, to_store_error
from modelyard.parts.objects.ranges import ranged
from modelyard.protocols import ArtifactStore, DirectUpload, Randomness, StoredArtifact

try:
    import obstore
    from obstore.exceptions import BaseError
except ImportError as error:
    raise MissingExtra("obstore", "objects") from error

_PARALLEL = 4
"""Parts of one artifact that are uploaded at the same time."""

_CHUNK = 2**20

_QUIET = 30.0
"""Seconds after which the object store has to answer a short question again, before one that may take long."""


class ObjectArtifacts:
    """Keeps artifacts as objects of `store`, one of `obstore.store`, which brings bucket, prefix and credentials.

    The folder `cache` gets copies of what is opened, `room` bytes of them. An artifact of more than `whole` bytes is
    not copied, and only the ranges that are read are fetched, unless its digest is to be compared. Uploads are sent in
    parts of `part` bytes: five of them are in memory at most, and an artifact has at most 10,000. `probe` is the same
    store with short time-outs: it is asked first, once in a while, so that one that hangs is found in seconds.
    """

    def __init__(
        self,
        store: Any,
        cache: str | os.PathLike[str],
        *,
        room: int = 10 * 2**30,
        whole: int = 64 * 2**20,
        part: int = 16 * 2**20,
        randomness: Randomness = os.urandom,
        probe: Any = None,
    ) -> None:
        self._store, self._whole, self._part = store, whole, part
        self._cache = LocalCache(os.fspath(cache), room)
        self._randomness, self._count = randomness, itertools.count()
        bucket = getattr(store, "config", {}).get("bucket") or getattr(store, "config", {}).get("container_name")
        place = f"bucket {bucket!r}" if bucket else f"store {type(store).__name__}"
        self._border, self._place = Border(place), place
        self._probe, self._answered = probe, -inf
        self._direct = direct_uploads(store, place)

    # ---- writing

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Upload the bytes of `chunks`, in parts if there are many, while the next are made.

        Raises `StorageFull`, `StoreError`, and what `chunks` raises; then nothing remains of the bytes.
        """
        return self._put(self._new_name(), chunks)

    def _put(self, name: str, chunks: Iterable[bytes]) -> StoredArtifact:
        size, digest = 0, hashlib.sha256()
        writer = self._ask(name, obstore.open_writer, name, buffer_size=self._part, max_concurrency=_PARALLEL)
        try:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                if chunk:
                    self._border.ask(name, writer.write, chunk)
            self._border.ask(name, writer.close)
        except BaseException:
            del writer
            if size >= self._part:
                self._discard(name)
            raise
        return StoredArtifact(name, size, digest.hexdigest())

    def put_as(self, name: str, chunks: Iterable[bytes]) -> str:
        """Store bytes under a name that another store has given, and return their SHA-256 in hex. Raises as `put`."""
        return self._put(name, chunks).digest

    def _discard(self, name: str) -> None:
        """Remove the parts of an upload that failed; what cannot be removed now is swept later."""
        with suppress(ModelyardError):
            self._direct.remove_unfinished(0, name)

    def scratch(self) -> BinaryIO:
        """Open an empty temporary file on the disk of the cache."""
        return self._cache.scratch()

    def begin(self, size: int) -> DirectUpload | None:
        """Begin an upload to signed addresses, which are valid for a day."""
        return self._direct.begin(self._new_name(), size)

    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        """Make an artifact of the parts that came. Raises `Conflict`, `ArtifactMissing`, `StoreError`."""
        if not NAME.fullmatch(upload.name):
            raise missing(upload.name)
        self._direct.finish(upload)
        return StoredArtifact(upload.name, upload.size, digest)

    # ---- reading

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        """Open a local copy, or the object itself if it is too large for a copy. Raises `ArtifactMissing`.

        A copy that has the digest is right for ever: the object store is not asked whether it still has the object.
        """
        if not NAME.fullmatch(name):
            raise missing(name)
        copy = self._cache.open(name, digest)
        if copy is None:
            return self._fetched(name, digest)
        if digest is not None:
            return copy
        try:
            self._size(name)
        except ArtifactsUnavailable:  # a copy of bytes that never change
            return copy
        except ModelyardError:
            copy.close()
            self._cache.drop(name)
            raise
        return copy

    def _fetched(self, name: str, digest: str | None) -> BinaryIO:
        found = self._ask(name, obstore.get, name)
        size = found.meta["size"]
        if size <= self._cache.room and (size <= self._whole or digest is not None):
            first = iter([found])  # the request that was made serves the first attempt
            return self._cache.add(name, lambda: self._chunks(name, next(first, None)), digest)
        if digest is not None:
            self._compare(name, self._chunks(name, found), digest)
        return ranged(size, partial(self._range, name))

    def _compare(self, name: str, chunks: Iterator[bytes], digest: str) -> None:
        """Read all bytes once, without a copy. Raises `ArtifactMissing` if they are not those of the digest."""
        summed = hashlib.sha256()
        for chunk in chunks:
            summed.update(chunk)
        if summed.hexdigest() != digest:
            raise altered(name)

    def _chunks(self, name: str, found: Any = None) -> Iterator[bytes]:
        """Yield the bytes of an object. Raises `ArtifactMissing`, `StoreError`, also if the answer ends early."""
        found = found or self._ask(name, obstore.get, name)
        rest = found.meta["size"]
        with self._border.crossed(name):
            for chunk in found.stream(min_chunk_size=_CHUNK):
                rest -= len(chunk)
                yield chunk
        if rest:
            raise ArtifactsUnavailable(f"the object store sent {rest} bytes too few of artifact {name!r}; try again")

    def _range(self, name: str, start: int, length: int) -> bytes:
        found: bytes = self._ask(name, obstore.get_range, name, start=start, length=length)
        return found

    def _size(self, name: str) -> int:
        try:
            size: int = self._ask(name, obstore.head, name)["size"]
        except ArtifactMissing:
            self._range(name, 0, 1)  # a HEAD has no body to distinguish a missing bucket by
            raise
        return size

    # ---- removing, listing, upkeep

    def remove(self, name: str) -> None:
        """Remove an object and its local copy, if there are any."""
        if NAME.fullmatch(name):
            with suppress(ArtifactMissing):
                self._ask(name, obstore.delete, name)
            self._cache.drop(name)

    def remove_unfinished(self, seconds: float) -> int:
        """Remove uploads that began so many seconds ago, by the object store's clock, and never ended."""
        self._require_answer()
        return self._direct.remove_unfinished(seconds)

    def names(self) -> Iterator[str]:
        """Yield every stored name, a page of the listing at a time."""
        pages = iter(self._ask("", obstore.list, chunk_size=1000))
        while page := self._border.ask("", next, pages, None):
            yield from (one["path"] for one in page if NAME.fullmatch(one["path"]))

    def free(self) -> None:
        """Return None: an object store has no end."""

    def check(self) -> None:
        """Put an artifact, open it and remove it. Raises `StoreError`."""
        stored = self.put([PROOF])
        try:
            self.open(stored.name, stored.digest).close()
        finally:
            self.remove(stored.name)

    def backup(self, folder: str) -> None:
        """Copy what `folder` lacks. An interrupted backup continues where it ended. Raises `StoreError`."""
        copy = FolderArtifacts(folder)
        for name in self.names():
            if not copy.has(name):
                with suppress(ArtifactMissing):
                    copy.put_as(name, self._chunks(name))

    def _new_name(self) -> str:
        return new_name(self._randomness, next(self._count))

    def _ask(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._require_answer()
        return self._border.ask(name, call, self._store, *arguments, **options)

    def _require_answer(self) -> None:
        """Raise `ArtifactsUnavailable` if not even a short question is answered; any answer will do."""
        if self._probe is None or time.monotonic() - self._answered <= _QUIET:
            return
        try:
            obstore.head(self._probe, "modelyard-probe")
        except (BaseError, OSError) as fault:
            if is_silence(fault):
                raise to_store_error(fault, self._place) from None
        self._answered = time.monotonic()


_: type[ArtifactStore] = ObjectArtifacts
