"""Listings: the results of `list` methods, read while they are iterated over, or one page at a time."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from modelyard import report
from modelyard.domain.record import DEFAULT_LIMIT, REPR_ITEMS, Page, check_limit, cut, first_lines
from modelyard.errors import NotFound
from modelyard.threads import TenantThreads, run_in

R = TypeVar("R")
T = TypeVar("T")

BATCH = 200
MAX_ID = 1000
"""Bytes of an id at most: an index of a store holds no longer one."""

Cursor = tuple[object, ...]


def accept_all(_: object) -> bool:
    return True


class ShownPage(Page[T]):
    """A page that notebooks show as a table."""

    def _repr_html_(self) -> str:
        return report.records_table(self.items, self.has_more)

    def to_pandas(self) -> Any:
        return report.data_frame(self.items)


class Listing(Generic[T]):
    """The result of a `list` method. Iterating over it reads batch after batch, to the end; nothing is read before.

        for job in platform.jobs.list():
            print(job.kind, job.status)

    It can be iterated over more than once, also with `async for`, and is false if it is empty. `page` reads one page.
    """

    def __init__(
        self,
        batches: Callable[[Cursor | None, int], Iterator[Sequence[Any]]],
        place: Callable[[str], Cursor],
        shown: Callable[[Sequence[Any]], Sequence[T]] = tuple,
        threads: TenantThreads | None = None,
    ) -> None:
        self._batches, self._place, self._shown, self._threads = batches, place, shown, threads

    def page(self, limit: int = DEFAULT_LIMIT, after: str | None = None) -> ShownPage[T]:
        """Read at most `limit` items, from the first one after the item with the id `after`. Raises `InvalidInput`, and
        `NotFound` for an unknown `after`."""
        check_limit(limit)
        cursor = None if after is None else self._placed(after)
        found = list(islice(chain.from_iterable(self._batches(cursor, limit + 1)), limit + 1))
        return ShownPage(tuple(self._shown(found[:limit])), len(found) > limit)

    def after(self, id: str) -> Iterator[T]:
        """Iterate over what follows the item with this id. Raises `NotFound` for an unknown id."""
        return self._from(self._placed(id))

    def _placed(self, id: str) -> Cursor:
        if len(id.encode(errors="replace")) > MAX_ID:
            raise NotFound("Item", cut(id))
        return self._place(id)

    def __iter__(self) -> Iterator[T]:
        return self._from(None)

    def _from(self, cursor: Cursor | None) -> Iterator[T]:
        for batch in self._batches(cursor, BATCH):
            yield from self._shown(batch)

    async def __aiter__(self) -> AsyncIterator[T]:
        batches = self._batches(None, BATCH)
        while (batch := await run_in(self._threads, lambda: next(batches, None))) is not None:
            for item in await run_in(self._threads, partial(self._shown, batch)):
                yield item

    def __bool__(self) -> bool:
        return any(self._batches(None, 1))

    def __len__(self) -> int:
        raise TypeError("a listing is not counted, since it is read page by page; read it with list(...)")

    def __getitem__(self, place: int) -> T:
        """Return the item at a place, counted from 0; what comes before is read, too. Raises `IndexError`."""
        if type(place) is not int or place < 0:
            raise TypeError('a place in a listing is a whole number from 0; for the last items list with order="desc"')
        for item in islice(self, place, None):
            return item
        raise IndexError(f"the listing has no item {place}")

    def __repr__(self) -> str:
        first = self.page(REPR_ITEMS)
        return first_lines("Listing", first.items, first.has_more)

    def _repr_html_(self) -> str:
        return self.page(DEFAULT_LIMIT)._repr_html_()

    def to_pandas(self) -> Any:
        """Read it to the end, and return a data frame with a line for each item under its id, of checkpoints under
        their steps; metrics and options are columns. Raises `MissingExtra` if pandas is not installed."""
        return report.data_frame(self)


def in_batches(
    read: Callable[[Cursor | None, int], Sequence[R]],
    cursor_of: Callable[[R], Cursor],
    keep: Callable[[R], bool] = accept_all,
) -> Callable[[Cursor | None, int], Iterator[Sequence[R]]]:
    def batches(cursor: Cursor | None, size: int) -> Iterator[Sequence[R]]:
        while batch := read(cursor, size):
            yield batch if keep is accept_all else [*filter(keep, batch)]
            if len(batch) < size:
                return
            cursor = cursor_of(batch[-1])

    return batches


def short_listing(
    read: Callable[[], Sequence[R]], id_of: Callable[[R], str], threads: TenantThreads | None
) -> Listing[R]:
    def batches(cursor: Cursor | None, size: int) -> Iterator[Sequence[R]]:
        yield [item for item in read() if cursor is None or (id_of(item),) > cursor]

    return Listing(batches, lambda name: (name,), threads=threads)
