"""Listings, a page at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

import attrs

from modelyard.errors import InvalidInput

T = TypeVar("T")
S = TypeVar("S")

Order = Literal["asc", "desc"]

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


@attrs.frozen
class Page(Generic[T]):
    """Some items of a listing, in order. To get the next page, pass the id of the last item as `after`.

    >>> Page.cut([1, 2, 3], limit=2)
    Page(items=(1, 2), has_more=True)
    """

    items: tuple[T, ...]
    has_more: bool

    @classmethod
    def cut(cls, found: Sequence[T], limit: int) -> "Page[T]":
        """Make a page of `limit` items from a query for `limit` + 1."""
        return cls(tuple(found[:limit]), len(found) > limit)

    def map(self, change: Callable[[T], S]) -> "Page[S]":
        """Return the page with `change` applied to every item."""
        return Page(tuple(map(change, self.items)), self.has_more)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput.at("limit", msg=f"must be 1 to {MAX_LIMIT}")
    return limit
