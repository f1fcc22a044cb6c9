"""Traced calls: recording their starts and outcomes, reading, querying and deleting them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import attrs

from modelyard.domain.completion import StoredCompletion
from modelyard.domain.identity import Principal
from modelyard.domain.promotion import CompletionLineage
from modelyard.domain.record import EMPTY, Order
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.json import as_json
from modelyard.parts.traces.call_query import EVERY_CALL, CallQuery, CallSearch, Places
from modelyard.parts.traces.opinions import tell_call
from modelyard.parts.traces.records import CallEnd, Feedback, TracedCall, completion_of, op_of
from modelyard.platform.lineage import lineage_of, may_read
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import (
    cursor_at,
    get_or_none,
    index_listing,
    iter_index,
    iter_index_live,
    listed_index,
    named_place,
    unique_ids,
)
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

AT_ONCE = 100
"""How many calls one transaction writes or removes, so that no writer waits long for it."""

LONGEST_ID = 128


@attrs.frozen
class CallLineage:
    """A call, and the source of its answer: the ledger's record of its completion, with its checkpoint and job.

    `completion` is None if the output is not an answer of this platform.
    """

    call: TracedCall
    completion: CompletionLineage | None


class Calls:
    """The calls that a principal may see.

    call = platform.compat.traces.calls.start("answer", {"question": "2 + 2"})
    platform.compat.traces.calls.end(call.id, "4")
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- recording

    def start(
        self,
        op_name: str,
        inputs: Mapping[str, Any] = EMPTY,
        *,
        parent: TracedCall | None = None,
        attributes: Mapping[str, Any] = EMPTY,
        project: str | None = None,
        entity: str | None = None,
    ) -> TracedCall:
        """Record that a call begins, within the trace of its `parent` if it has one.

        The values of `inputs` and `attributes` are JSON data. Raises `InvalidInput`, `Forbidden`.
        """
        if parent is not None and project is None:
            entity, project = parent.entity, parent.project
        place = named_place(self._runtime, self._principal, entity, project)
        call_id = self._runtime.ids()
        call = TracedCall(
            *place,
            call_id,
            call_id if parent is None else parent.trace_id,
            op_name,
            self._runtime.clock.now(),
            None if parent is None else parent.id,
            inputs=inputs,
            attributes=attributes,
        )
        call = cast("TracedCall", _checked(call, 0))
        self.record([call], entity=place[0], project=place[1])
        return call

    def end(
        self,
        call_id: str,
        output: Any = None,
        *,
        exception: str | None = None,
        summary: Mapping[str, Any] = EMPTY,
        project: str | None = None,
        entity: str | None = None,
    ) -> TracedCall:
        """Record the outcome of a call, JSON data, or what it raised.

        Raises `NotFound`, `InvalidInput`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        self.get(call_id, entity=place[0], project=place[1])
        end = CallEnd(call_id, self._runtime.clock.now(), output, exception, summary)
        self.record([end], entity=place[0], project=place[1])
        return self.get(call_id, entity=place[0], project=place[1])

    def record(
        self, batch: Iterable[TracedCall | CallEnd], *, project: str | None = None, entity: str | None = None
    ) -> int:
        """Record starts, whole calls and outcomes, in this order; returns how many. Each may be recorded again.

        The calls are put into the project, which they need not name. An outcome may come before its start. Raises
        `InvalidInput`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        began = self._runtime.clock.monotonic()
        items = [_checked(item, at) for at, item in enumerate(batch)]
        for begin in range(0, len(items), AT_ONCE):
            write = partial(self._write, place, items[begin : begin + AT_ONCE])
            store_texts(self._runtime, place[0], write, began)
        return len(items)

    def _write(self, place: "Place", batch: Sequence[TracedCall | CallEnd], tx: Tx) -> None:
        for call in _write(place, batch, tx):
            tell_call(self._runtime, tx, call, self._principal.scope)

    def new_id(self) -> str:
        """Return an id for a call, for clients that choose none."""
        return self._runtime.ids()

    def rename(
        self, call_id: str, display_name: str | None, *, project: str | None = None, entity: str | None = None
    ) -> TracedCall:
        """Give a call a name to be shown by, or none. Raises `NotFound`, `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)

        def step(tx: Tx) -> TracedCall:
            call = attrs.evolve(_found(tx, place, call_id), display_name=display_name or None)
            tx.replace(call)
            return call

        return self._runtime.store.transact(step)

    # ---- reading

    def get(self, call_id: str, *, project: str | None = None, entity: str | None = None) -> TracedCall:
        """Return a call. Raises `NotFound`, `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        return self._runtime.store.read(lambda snapshot: _found(snapshot, place, call_id))

    def list(
        self, *, project: str | None = None, entity: str | None = None, order: Order = "asc"
    ) -> Listing[TracedCall]:
        """List the calls of a project in the order in which they were first recorded. Raises `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        index, *where = listed_index(*place)

        def cursor(id: str, snapshot: Snapshot) -> Cursor:
            return cursor_at(TracedCall, index, _found(snapshot, place, id))

        return index_listing(self._runtime, TracedCall, index, *where, place=cursor, order=order)

    def list_all(self) -> Iterator[TracedCall]:
        """Iterate the calls of every project that the caller may see, the newest first, reading them batch by batch."""
        scope = self._principal.scope
        index, *where = ("by_age",) if scope.entity is None else ("by_entity", scope.entity)
        calls = iter_index_live(self._runtime, TracedCall, index, *where, size=AT_ONCE, descending=True)
        return (call for call in calls if scope.covers(call.entity, call.project))

    def query(
        self,
        query: CallQuery = EVERY_CALL,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> Iterator[TracedCall]:
        """Yield the calls of a query, read batch by batch. Raises `InvalidInput`, `Forbidden`."""
        return CallSearch(self._runtime, named_place(self._runtime, self._principal, entity, project), query).calls()

    def count(
        self,
        query: CallQuery = EVERY_CALL,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> int:
        """Return how many calls a query finds. Raises `InvalidInput`, `Forbidden`."""
        return CallSearch(self._runtime, named_place(self._runtime, self._principal, entity, project), query).count()

    def lineage(self, call_id: str, *, project: str | None = None, entity: str | None = None) -> CallLineage:
        """Return the source of a call's answer: the ledger's record, the checkpoint and its job.

        Raises `NotFound`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)

        def read(snapshot: Snapshot) -> CallLineage:
            call = _found(snapshot, place, call_id)
            answered = call.completion_id and _answered(snapshot, self._principal, call.completion_id)
            return CallLineage(call, answered or None)

        return self._runtime.store.read(read)

    def of_completion(
        self, completion_id: str, *, project: str | None = None, entity: str | None = None
    ) -> Sequence[TracedCall]:
        """Return the first calls that returned this completion, at most 100. Raises `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        return self._runtime.store.read(
            lambda snapshot: snapshot.page(TracedCall, "by_completion", *place, completion_id, limit=AT_ONCE)
        )

    # ---- deleting

    def delete(self, call_ids: Iterable[str], *, project: str | None = None, entity: str | None = None) -> int:
        """Delete calls with the calls that they made and the feedback on all of them; returns how many calls there
        were.

        Raises `InvalidInput`, `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        waiting, removed = [*unique_ids(call_ids)], 0
        while waiting:
            call_id = waiting.pop()
            was_here, made = self._runtime.store.transact(partial(_remove_one, place, call_id))
            waiting += [call_id, *made] if made else []
            removed += was_here
        self._runtime.cache.slot(Places).clear()
        return removed


# ---- steps ---------------------------------------------------------------------------------------------------------

Place = tuple[str, str]


def _answered(snapshot: Snapshot, principal: Principal, id: str) -> CompletionLineage | None:
    """Return the source of a completion, stored or not; None if the principal may not see it or it is not booked."""
    kept, booked = get_or_none(snapshot, StoredCompletion, id), get_or_none(snapshot, LedgerEntry, id)
    if booked is None or not may_read(principal, booked):
        return None
    return lineage_of(snapshot, principal, booked, kept)


def _found(snapshot: Snapshot, place: Place, call_id: str) -> TracedCall:
    call = get_or_none(snapshot, TracedCall, *place, call_id)
    if call is None:
        raise NotFound("call", call_id)
    return call


def _write(place: Place, batch: Sequence[TracedCall | CallEnd], tx: Tx) -> Iterable[TracedCall]:
    ids = dict.fromkeys(item.id for item in batch)  # each once, in their order
    stored = {one: call for one in ids if (call := get_or_none(tx, TracedCall, *place, one)) is not None}
    calls = {**stored}
    for item in batch:
        known = calls.get(item.id)
        if isinstance(item, CallEnd):
            new = item.alone(*place) if known is None else known.with_end(item)
        else:
            placed = attrs.evolve(item, entity=place[0], project=place[1])
            new = placed if known is None else placed.merged(known)
        calls[item.id] = attrs.evolve(new, outcome=new.status)
    for one in stored:
        tx.replace(calls[one])
    tx.add_all([call for one, call in calls.items() if one not in stored])
    return calls.values()


def _checked(item: TracedCall | CallEnd, at: int) -> TracedCall | CallEnd:
    for name in ("id", "trace_id", "parent_id", "thread_id", "turn_id"):
        value = getattr(item, name, None)
        if value is not None and not (0 < len(value) <= LONGEST_ID and value.isprintable()):
            raise InvalidInput.at(at, name, msg=f"must be 1 to {LONGEST_ID} printable characters")
    parts = [name for name in ("inputs", "attributes", "output", "summary", "more") if hasattr(item, name)]
    item = attrs.evolve(item, **as_json({name: getattr(item, name) for name in parts}, at=(at,)))
    if isinstance(item, CallEnd):
        return item
    output = item.output.get("value")
    return attrs.evolve(item, op=op_of(item.op_name)[:LONGEST_ID], completion_id=completion_of(output, item.attributes))


def _remove_one(place: Place, call_id: str, tx: Tx) -> tuple[bool, Sequence[str]]:
    """Remove a call; returns whether it was there, and some of the calls that it made, which are still there."""
    call = get_or_none(tx, TracedCall, *place, call_id)
    if call is not None:
        remove_call(tx, call)
    return call is not None, [made.id for made in tx.page(TracedCall, "by_parent", *place, call_id, limit=AT_ONCE)]


def remove_call(tx: Tx, call: TracedCall) -> None:
    """Remove a call and the feedback on it."""
    place = call.entity, call.project
    for said in [*iter_index(tx, Feedback, "by_ref", *place, call.ref)]:
        tx.remove(Feedback, *place, said.id)
    tx.remove(TracedCall, *place, call.id)
