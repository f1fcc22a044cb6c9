"""Queries of traced calls: a filter finds them in an index, a condition is tested on each, an order may sort them.

Calls are read batch by batch. Those that are sorted by something other than their start are read twice: first the
values to sort by, of at most `MOST_SORTED` calls, then the calls of the page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.filters import Expression, Literal
from modelyard.domain.trace import TracedCall, op_of
from modelyard.errors import InvalidInput
from modelyard.platform.paging import check_slice, cursor_at, get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

BATCH = 100
"""How many calls are read at once."""

MOST_SORTED = 100_000
MAX_NAMED = 1000
MAX_PLACES = 1000
"""How many places of queries a process remembers."""

PLACE_LIFE = 60.0
"""How many seconds it remembers one; deleting a call makes it forget all."""

ALWAYS = Literal(True)


@attrs.frozen
class CallFilter:
    """Which calls are meant: those that agree with every member that is not empty.

    An op is named by its name, by the reference of a version, or by one that ends in `:*` for all versions. `refs` of
    inputs and outputs are references that stand anywhere in them.
    """

    call_ids: tuple[str, ...] = ()
    op_names: tuple[str, ...] = ()
    trace_ids: tuple[str, ...] = ()
    parent_ids: tuple[str, ...] = ()
    thread_ids: tuple[str, ...] = ()
    turn_ids: tuple[str, ...] = ()
    input_refs: tuple[str, ...] = ()
    output_refs: tuple[str, ...] = ()
    roots_only: bool = False

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(CallFilter):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and len(value) > MAX_NAMED:
                raise InvalidInput.at("filter", field.name, msg=f"must be at most {MAX_NAMED}", type="too_long")

    def keeps(self, call: TracedCall) -> bool:
        """Return whether a call agrees."""
        return (
            _among(call.id, self.call_ids)
            and (not self.op_names or any(_is_op(call, name) for name in self.op_names))
            and _among(call.trace_id, self.trace_ids)
            and _among(call.parent_id, self.parent_ids)
            and _among(call.thread_id, self.thread_ids)
            and _among(call.turn_id, self.turn_ids)
            and (not self.input_refs or _holds(call.inputs, self.input_refs))
            and (not self.output_refs or _holds(call.output, self.output_refs))
            and not (self.roots_only and call.parent_id is not None)
        )

    def ranges(self) -> list[tuple[str, tuple[str | None, ...]]]:
        """Return the parts of an index that hold the calls, as narrow as the filter permits."""
        if self.parent_ids:
            return [("by_parent", (one,)) for one in dict.fromkeys(self.parent_ids)]
        if self.trace_ids:
            return [("by_trace", (one,)) for one in dict.fromkeys(self.trace_ids)]
        if self.op_names:
            return [("by_op", (op,)) for op in dict.fromkeys(map(op_of, self.op_names))]
        return [("by_parent", (None,)) if self.roots_only else ("by_start", ())]


def _among(value: str | None, values: Sequence[str]) -> bool:
    return not values or value in values


def _is_op(call: TracedCall, name: str) -> bool:
    return name == call.op_name or (call.op == op_of(name) and (name.endswith(":*") or "://" not in name))


def _holds(value: Any, refs: Sequence[str]) -> bool:
    """Return whether one of the references stands anywhere in a value."""
    if isinstance(value, str):
        return any(value == ref or (ref.endswith(":*") and value.startswith(ref[:-1])) for ref in refs)
    if isinstance(value, Mapping):
        return any(_holds(part, refs) for part in value.values())
    return isinstance(value, Sequence) and any(_holds(part, refs) for part in value)


@attrs.frozen
class CallOrder:
    """A field to sort by, which reads a value from a call."""

    name: str
    value: Callable[[TracedCall], Any]
    descending: bool = False


@attrs.frozen
class CallQuery:
    """Which calls, in which order, and which part of them. Without an order they are sorted by their start.

    `where` is a condition on `shown`, which makes the document of a call that fields of the condition read.
    """

    filter: CallFilter = CallFilter()
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
    """Where a call stands in the order of starts."""

    started_at: datetime
    seq: int


@attrs.frozen
class CallSearch:
    """A query of the calls of one project."""

    runtime: Runtime
    place: tuple[str, str]
    query: CallQuery

    def calls(self) -> Iterator[TracedCall]:
        """Yield the calls of the part that is asked for. Raises `InvalidInput` if there are too many to sort."""
        query = self.query
        end = None if query.limit is None else query.offset + query.limit
        if not self._by_start:
            ids = self._sorted()[query.offset : end]
            return (call for call in map(self._call, ids) if call is not None)
        return self._part(end)

    def count(self) -> int:
        """Return how many calls there are in the part that is asked for."""
        query = self.query
        if query.filter == CallFilter() and query.where is ALWAYS:
            found = self.runtime.store.read(lambda snapshot: snapshot.count(TracedCall, "by_start", *self.place))
        else:
            found = sum(1 for _ in self._matching(False, None))
        found = max(found - query.offset, 0)
        return found if query.limit is None else min(found, query.limit)

    @property
    def _by_start(self) -> bool:
        return not self.query.sort or self.query.sort[0].name == "started_at"

    @property
    def _descending(self) -> bool:
        return bool(self.query.sort) and self.query.sort[0].descending

    def _part(self, end: int | None) -> Iterator[TracedCall]:
        """Yield a part in the order of starts, from where the same query was left off if this process knows."""
        places, query = self.runtime.cache.places, self.query
        name = (*self.place, query.name) if query.name else None
        now = self.runtime.clock.monotonic()
        place, until = places.get((name, query.offset), (None, now)) if name else (None, now)
        known = place if now < until else None
        skipped, last, count = (0 if known else query.offset), None, 0
        found = self._matching(self._descending, known)
        for last in islice(found, skipped, None if end is None else skipped + end - query.offset):
            count += 1
            yield last
        if name and last is not None and count == query.limit:
            while len(places) >= MAX_PLACES:
                places.pop(next(iter(places)), None)
            places[name, query.offset + count] = CallPlace(last.started_at, last.seq), now + PLACE_LIFE

    def _matching(self, descending: bool, after: CallPlace | None) -> Iterator[TracedCall]:
        """Yield the calls that fit, by their start."""
        if self.query.filter.call_ids:
            named = filter(None, map(self._call, dict.fromkeys(self.query.filter.call_ids)))
            ordered = sorted(named, key=_start, reverse=descending)
            found: Iterator[TracedCall] = (c for c in ordered if after is None or _is_after(c, after, descending))
        else:
            parts = (self._range(*one, descending, after) for one in self.query.filter.ranges())
            found = merge(*parts, key=_start, reverse=descending)
        return filter(self._fits, found)

    def _fits(self, call: TracedCall) -> bool:
        query = self.query
        return query.filter.keeps(call) and (query.where is ALWAYS or query.where.of(query.shown(call)) is True)

    def _range(
        self, index: str, where: tuple[str | None, ...], descending: bool, after: CallPlace | None
    ) -> Iterator[TracedCall]:
        while True:
            cursor = None if after is None else cursor_at(TracedCall, index, after)
            batch = self.runtime.store.read(partial(_batch, index, (*self.place, *where), cursor, descending))
            yield from batch
            if len(batch) < BATCH:
                return
            after = CallPlace(batch[-1].started_at, batch[-1].seq)

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


def _is_after(call: TracedCall, after: CallPlace, descending: bool) -> bool:
    return _start(call) < _start(after) if descending else _start(call) > _start(after)


def _batch(
    index: str, where: tuple[object, ...], cursor: tuple[object, ...] | None, descending: bool, snapshot: Snapshot
) -> list[TracedCall]:
    return snapshot.page(TracedCall, index, *where, after=cursor, limit=BATCH, descending=descending)


def sort_key(value: Any) -> tuple[int, Any]:
    """Return what sorts values of any type: none, then numbers, then strings, then all others by their text."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, canonical_json(value))
