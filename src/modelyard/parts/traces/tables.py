"""Tables of rows, and files. Objects and calls refer to both by the digest of their content.

Rows are stored once in a project however many tables have them. A table is the list of their digests, all equally long,
in an artifact: any part of it is read without the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, TypeVar

import attrs

from modelyard.domain.canonical import TableDigest, bytes_digest, digest
from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.domain.identity import Principal
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.formats.json import as_json
from modelyard.formats.jsonl import in_chunks, read_rows
from modelyard.parts.traces.records import TracedFile, TracedRow, TracedTable
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import get_or_none, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

AT_ONCE = 200
"""How many rows one transaction reads or writes."""

DIGEST = 43
LINE = DIGEST + 1

Place = tuple[str, str]

R = TypeVar("R", TracedTable, TracedFile)


@attrs.frozen
class TableRow:
    """A row of a table, by its position."""

    index: int
    digest: str
    value: Any


class TracedTables:
    """The tables and files of the projects of a principal.

    table = platform.compat.traces.tables.create([{"question": "2 + 2"}])
    [row.value for row in platform.compat.traces.tables.rows(table.digest)]
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- tables

    def create(
        self, rows: Iterable[Any], *, expected: str | None = None, project: str | None = None, entity: str | None = None
    ) -> TracedTable:
        """Store a table of rows, each JSON data; equal rows in equal order are the same table.

        Raises `InvalidInput`, `Conflict` if the digest is not `expected`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        began = self._runtime.clock.monotonic()
        return self._keep(place, self._stored(place, rows, began), expected, began)

    def of_digests(
        self,
        digests: Iterable[str],
        *,
        expected: str | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> TracedTable:
        """Store a table of stored rows. Raises `InvalidInput` for an unknown digest, and as `create`."""
        place = named_place(self._runtime, self._principal, entity, project)
        return self._keep(place, self._known(place, digests), expected, self._runtime.clock.monotonic())

    def get(self, table: str, *, project: str | None = None, entity: str | None = None) -> TracedTable:
        """Return a table by its digest. Raises `NotFound`, `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        found = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, TracedTable, *place, table))
        if found is None:
            raise NotFound("table", table)
        return found

    def digests(
        self, table: str, offset: int = 0, *, project: str | None = None, entity: str | None = None
    ) -> Iterator[str]:
        """Yield the digests of a table's rows from a position on. Raises `NotFound`, `Forbidden`."""
        found = self.get(table, project=project, entity=entity)
        return self._digests(found, offset)

    def rows(
        self,
        table: str,
        offset: int = 0,
        *,
        keep: Callable[[str], bool] | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> Iterator[TableRow]:
        """Yield the rows of a table from a position on, or only the rows with digests that `keep` keeps.

        The rows of a dataset are a table, too. Raises `NotFound`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        found = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, TracedTable, *place, table))
        if found is None:
            return self._rows_of_dataset(place, table, offset, keep)
        wanted = enumerate(self._digests(found, offset), offset)
        return self._rows(place, ((at, one) for at, one in wanted if keep is None or keep(one)))

    def count(self, table: str, *, project: str | None = None, entity: str | None = None) -> int:
        """Return how many rows a table has, or the rows of a dataset. Raises `NotFound`, `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        found = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, TracedTable, *place, table))
        return self._dataset(place, table).rows or 0 if found is None else found.rows

    def _stored(self, place: Place, rows: Iterable[Any], began: float) -> Iterator[str]:
        """Store rows, some at a time, and yield their digests."""
        some = dict[str, Any]()
        waiting = list[str]()
        for at, row in enumerate(rows):
            row = as_json(row, at=("rows", at))
            one = digest(row)
            some[one] = row
            waiting.append(one)
            if len(some) >= AT_ONCE:
                self._add_rows(place, some, began)
                yield from waiting
                some, waiting = {}, []
        if some:
            self._add_rows(place, some, began)
        yield from waiting

    def _add_rows(self, place: Place, rows: dict[str, Any], began: float) -> None:
        store_texts(self._runtime, place[0], partial(_add_rows, place, rows), began)

    def _known(self, place: Place, digests: Iterable[str]) -> Iterator[str]:
        for at, one in enumerate(digests):
            if self._runtime.store.read(partial(_row_or_none, place, one)) is None:
                raise InvalidInput.at("row_digests", at, msg="must be the digest of a row that is stored")
            yield one

    def _keep(self, place: Place, digests: Iterator[str], expected: str | None, began: float) -> TracedTable:
        table, artifacts = TableDigest(), self._runtime.artifacts

        def lines() -> Iterator[bytes]:
            for one in digests:
                table.add(one)
                yield f"{one}\n".encode()

        stored = artifacts.put(in_chunks(lines()))
        with remove_unless_recorded(artifacts, stored.name):
            if expected not in (None, table.hex()):
                raise Conflict(f"the digest of the table is {table.hex()}, and not the expected one")
            new = TracedTable(*place, table.hex(), table.rows, stored.name, self._runtime.clock.now())
            kept = store_texts(self._runtime, place[0], partial(_add_once, new), began)
        if kept.artifact != new.artifact:
            artifacts.remove(new.artifact)
        return kept

    def _digests(self, table: TracedTable, offset: int) -> Iterator[str]:
        with self._runtime.artifacts.open(table.artifact) as file:
            file.seek(min(offset, table.rows) * LINE)
            while lines := file.read(AT_ONCE * LINE):
                yield from lines.decode("ascii").split()

    def _rows(self, place: Place, wanted: Iterator[tuple[int, str]]) -> Iterator[TableRow]:
        while some := [pair for _, pair in zip(range(AT_ONCE), wanted, strict=False)]:
            yield from self._runtime.store.read(partial(_read_rows, place, some))

    # ---- the rows of datasets

    def _dataset(self, place: Place, table: str) -> ObjectVersion:
        found = self._runtime.store.read(
            lambda snapshot: snapshot.page(ObjectVersion, "by_table", *place, table, limit=1)
        )
        if not found or found[0].rows_artifact is None:
            raise NotFound("table", table)
        return found[0]

    def _rows_of_dataset(
        self, place: Place, table: str, offset: int, keep: Callable[[str], bool] | None
    ) -> Iterator[TableRow]:
        artifact = self._dataset(place, table).rows_artifact
        assert artifact is not None

        def rows() -> Iterator[TableRow]:
            with self._runtime.artifacts.open(artifact) as file:
                for at, row in enumerate(read_rows(file)):
                    if at >= offset and (keep is None or keep(digest(row))):
                        yield TableRow(at, digest(row), row)

        return rows()

    # ---- files

    def put_file(
        self,
        name: str,
        content: bytes,
        *,
        expected: str | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> TracedFile:
        """Store a file; equal content is the same file. Raises `Conflict` if the digest is not `expected`,
        `StorageFull`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        began, named = self._runtime.clock.monotonic(), bytes_digest(content)
        if expected not in (None, named):
            raise Conflict(f"the digest of the file is {named}, and not the expected one")
        self._runtime.require_room()
        stored = self._runtime.artifacts.put(iter((content,)))
        new = TracedFile(*place, named, name[:1000], len(content), stored.name, self._runtime.clock.now())
        with remove_unless_recorded(self._runtime.artifacts, stored.name):
            kept = store_texts(self._runtime, place[0], partial(_add_once, new), began)
        if kept.artifact != new.artifact:
            self._runtime.artifacts.remove(new.artifact)
        return kept

    def open_file(self, file: str, *, project: str | None = None, entity: str | None = None) -> tuple[BinaryIO, int]:
        """Open a file by its digest, for its caller to close, and return its size in bytes.

        Raises `NotFound`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        found = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, TracedFile, *place, file))
        if found is None:
            raise NotFound("file", file)
        return self._runtime.artifacts.open(found.artifact), found.size


# ---- steps ---------------------------------------------------------------------------------------------------------


def _add_once(new: R, tx: Tx) -> R:
    known = get_or_none(tx, type(new), new.entity, new.project, new.digest)
    if known is None:
        tx.add(new)
    return known or new


def _add_rows(place: Place, rows: dict[str, Any], tx: Tx) -> None:
    new = [one for one in rows if get_or_none(tx, TracedRow, *place, one) is None]
    tx.add_all([TracedRow(*place, one, {"value": rows[one]}) for one in new])


def _row_or_none(place: Place, row: str, snapshot: Snapshot) -> TracedRow | None:
    return get_or_none(snapshot, TracedRow, *place, row)


def _read_rows(place: Place, wanted: Sequence[tuple[int, str]], snapshot: Snapshot) -> list[TableRow]:
    return [TableRow(at, one, snapshot.get(TracedRow, *place, one).content["value"]) for at, one in wanted]
