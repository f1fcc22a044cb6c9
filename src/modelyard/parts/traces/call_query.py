"""Queries of traced calls: a filter finds them in an index, a condition is tested on each, an order may sort them.

Calls are read batch by batch. Calls that are sorted by something other than their start are read twice: first the
values to sort by, of at most `MOST_SORTED` calls, then the calls of the page.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.filters import Expression, Literal
from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.errors import InvalidInput
from modelyard.parts.traces.call_filter import EVERY, CallFilter, Range
from modelyard.parts.traces.records import Feedback, TracedCall
from modelyard.platform.paging import MANY, check_slice, cursor_at, get_or_none, iter_columns, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

BATCH = 100
"""How many calls are read at once."""

MOST_SORTED = 100_000
MOST_FEEDBACK = 10_000
"""So much feedback of a project is read to find the calls that have some."""

MAX_PLACES = 1000
"""How many places of queries a process remembers."""

PLACE_LIFE = 60.0
"""How many seconds it remembers one; deleting a call makes it forget all."""

ALWAYS = Literal(True)


@attrs.frozen
class CallOrder:
    """A field to sort by, which reads a value from a call."""

    name: str
    value: Callable[[TracedCall], Any]
    descending: bool = False


@attrs.frozen
class CallQuery:
    """A selection of calls, their order, and the part to return. Without an order, calls are sorted by their start.

    `where` is a condition on `shown`, which makes the document of a call that fields of the condition read.
    """

    filter: CallFilter = EVERY
    where: Expression = ALWAYS
    shown: Callable[[TracedCall], Any] = attrs.field(default=lambda call: call)
    sort: tuple[CallOrder, ...] = ()
    limit: int | None = None
    offset: int = 0
    name: str = ""
    """What equal queries have in common, so that the next part is found where the last one ended; "" for none."""

    def __attrs_post_init__(self) -> None:
        check_slice(self.limit, self.offset)


EVERY_CALL = CallQuery()


@attrs.frozen
class CallPlace:
    started_at: datetime
    seq: int


class Places(dict[tuple[Any, int], tuple[CallPlace, float]]):
    """Where parts of queries ended, and until when a process remembers it."""


@attrs.frozen
class CallSearch:
    """A query of the calls of one project."""

    runtime: Runtime
    place: tuple[str, str]
    query: CallQuery

    def calls(self) -> Iterator[TracedCall]:
        """Yield the calls of the requested part. Raises `InvalidInput` if there are too many to sort."""
        query = self.query
        end = None if query.limit is None else query.offset + query.limit
        if not self._by_start:
            ids = self._sorted()[query.offset : end]
            return (call for call in map(self._call, ids) if call is not None)
        return self._part(end)

    def count(self) -> int:
        query = self.query
        if self._is_exact:
            ranges = [(index, (*self.place, *where)) for index, where in query.filter.ranges()]
            found = self.runtime.store.read(
                lambda snapshot: sum(snapshot.count(TracedCall, index, *where) for index, where in ranges)
            )
        else:
            found = sum(1 for _ in self._matching(False, None))
        found = max(found - query.offset, 0)
        return found if query.limit is None else min(found, query.limit)

    @property
    def _is_exact(self) -> bool:
        """Whether an index has exactly the selected calls."""
        return self.query.where is ALWAYS and self.query.filter.is_exact

    @property
    def _by_start(self) -> bool:
        return not self.query.sort or self.query.sort[0].name == "started_at"

    @property
    def _descending(self) -> bool:
        return bool(self.query.sort) and self.query.sort[0].descending

    def _part(self, end: int | None) -> Iterator[TracedCall]:
        """Yield a part in the order of starts, from where the same query was left off if this process knows."""
        places, query = self.runtime.cache.slot(Places), self.query
        name = (*self.place, query.name) if query.name else None
        now = self.runtime.clock.monotonic()
        place, until = places.get((name, query.offset), (None, now)) if name else (None, now)
        known = place if now < until else None
        skipped, last, count = (0 if known else query.offset), None, 0
        if skipped and self._may_skip and len(ranges := query.filter.ranges()) == 1:
            known, skipped = self._skip(ranges[0], skipped), 0
        found = self._matching(self._descending, known)
        for last in islice(found, skipped, None if end is None else skipped + end - query.offset):
            count += 1
            yield last
        if name and last is not None and count == query.limit:
            while len(places) >= MAX_PLACES:
                places.pop(next(iter(places)), None)
            places[name, query.offset + count] = CallPlace(last.started_at, last.seq), now + PLACE_LIFE

    @property
    def _may_skip(self) -> bool:
        """Whether all calls of an index between two times are selected."""
        meant = attrs.evolve(self.query.filter, since=None, until=None)
        return self.query.where is ALWAYS and meant.is_exact

    def _skip(self, within: Range, count: int) -> "CallPlace | None":
        """Return the place of the last of so many calls. Only the places of these calls are read."""
        index, where = within
        place, _ = self._ends(self._descending)
        cursor = None if place is None else cursor_at(TracedCall, index, place)
        while count > 0:
            select = partial(_places, index, (*self.place, *where), cursor, self._descending, min(count, MANY))
            found = self.runtime.store.read(select)
            if not found:
                return place
            place, count = CallPlace(*found[-1]), count - len(found)
            cursor = cursor_at(TracedCall, index, place)
        return place

    def _matching(self, descending: bool, after: "CallPlace | None") -> Iterator[TracedCall]:
        named = self.query.filter.call_ids or (self._with_feedback() if self.query.filter.with_feedback else None)
        if named is not None:
            calls = filter(None, map(self._call, dict.fromkeys(named)))
            ordered = sorted(calls, key=_start, reverse=descending)
            found: Iterator[TracedCall] = (c for c in ordered if after is None or _is_after(c, after, descending))
        else:
            parts = (self._range(*one, descending, after) for one in self.query.filter.ranges())
            found = merge(*parts, key=_start, reverse=descending)
        return filter(self._fits, found)

    def _with_feedback(self) -> list[str] | None:
        """Return the ids of the calls that have feedback; None if there may be too many."""
        rows = iter_columns(self.runtime, Feedback, ("ref",), "by_project", *self.place)
        refs = [ref for ref, *_ in islice(rows, MOST_FEEDBACK + 1)]
        read = filter(None, map(ObjectRef.parse, dict.fromkeys(refs)))
        return [ref.name for ref in read if ref.kind is RefKind.CALL] if len(refs) <= MOST_FEEDBACK else None

    def _has_feedback(self, call: TracedCall) -> bool:
        return bool(self.runtime.store.read(lambda tx: tx.page(Feedback, "by_ref", *self.place, call.ref, limit=1)))

    def _fits(self, call: TracedCall) -> bool:
        query = self.query
        if not query.filter.keeps(call) or (query.filter.with_feedback and not self._has_feedback(call)):
            return False
        return query.where is ALWAYS or query.where.of(query.shown(call)) is True

    def _range(
        self, index: str, where: tuple[str | None, ...], descending: bool, after: CallPlace | None
    ) -> Iterator[TracedCall]:
        first, last = self._ends(descending)
        if first is not None and (after is None or _is_after(first, after, descending)):
            after = first
        cursor, where = None if after is None else cursor_at(TracedCall, index, after), (*self.place, *where)
        calls = iter_index_live(
            self.runtime, TracedCall, index, *where, after=cursor, size=BATCH, descending=descending
        )
        return takewhile(lambda call: last is None or not _is_after(call, last, descending), calls)

    def _ends(self, descending: bool) -> "tuple[CallPlace | None, CallPlace | None]":
        """Return the places between which the selected calls lie, in the order of reading; None for no limit."""
        meant = self.query.filter
        since, until = (None if one is None else CallPlace(one, -1) for one in (meant.since, meant.until))
        return (until, since) if descending else (since, until)

    def _sorted(self) -> list[str]:
        found: list[tuple[str, tuple[Any, ...]]] = []
        for call in self._matching(False, None):
            if len(found) >= MOST_SORTED:
                msg = f"finds more than {MOST_SORTED} calls, too many to sort; filter them, or sort by started_at"
                raise InvalidInput.at("sort_by", msg=msg)
            found.append((call.id, tuple(sort_key(one.value(call)) for one in self.query.sort)))
        for at, one in reversed([*enumerate(self.query.sort)]):
            found.sort(key=lambda pair, at=at: pair[1][at], reverse=one.descending)  # type: ignore[misc]
        return [call_id for call_id, _ in found]

    def _call(self, id: str) -> TracedCall | None:
        return self.runtime.store.read(lambda snapshot: get_or_none(snapshot, TracedCall, *self.place, id))


def _start(call: TracedCall | CallPlace) -> tuple[Any, ...]:
    return call.started_at, call.seq


def _is_after(call: "TracedCall | CallPlace", after: CallPlace, descending: bool) -> bool:
    return _start(call) < _start(after) if descending else _start(call) > _start(after)


def _places(
    index: str, where: tuple[object, ...], after: Any, descending: bool, limit: int, snapshot: Snapshot
) -> list[tuple[Any, ...]]:
    columns = ("started_at", "seq")
    return snapshot.select(TracedCall, columns, index, *where, after=after, limit=limit, descending=descending)


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts values of any type: None, then numbers, then strings, then all others by their text."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, canonical_json(value))
