"""Folders of files as objects under a prefix of a bucket."""

from collections.abc import Callable
from pathlib import Path

from modelyard.errors import Conflict, MissingExtra
from modelyard.parts.objects.faults import Border
from modelyard.parts.objects.stores import bucket_at

try:
    import obstore
except ImportError as error:
    raise MissingExtra("obstore", "objects") from error


class ObjectFolder:
    """The prefix of an address such as `s3://bucket/prefix`, to which a folder is uploaded."""

    def __init__(self, address: str) -> None:
        self._address, self._bucket = address, bucket_at(address)
        self._border = Border(f"{address}")

    def require_empty(self) -> None:
        """Raise `Conflict` if there are objects under the prefix; `StoreError`."""
        if self._border.ask(self._address, lambda: any(True for page in obstore.list(self._bucket) for _ in page)):
            raise Conflict(
                f"there are objects at {self._address} already, and nothing is written over; name another place"
            )

    def upload(
        self,
        folder: Path,
        order: Callable[[str], object] = str,
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Upload the files of a folder, one after the other, by their paths there. Each is there whole or not at all.
        `progress` is called after each with the bytes that are there, and the total.

        Raises `StorageFull`, `StoreError`.
        """
        files = [path for path in folder.rglob("*") if path.is_file()]
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        done, total = 0, sum(sizes.values())
        for name in sorted(sizes, key=lambda name: (order(name), name)):
            self._border.ask(self._address, obstore.put, self._bucket, name, folder / name)
            done += sizes[name]
            progress(done, total)
