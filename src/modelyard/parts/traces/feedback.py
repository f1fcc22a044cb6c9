"""Feedback on calls and objects: giving, listing and removing it."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY, Order
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.json import as_json
from modelyard.parts.traces.opinions import tell_feedback
from modelyard.parts.traces.records import Feedback
from modelyard.platform.listing import Cursor, Listing, accept_all
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

LONGEST = 128
LONGEST_REF = 900


class Feedbacks:
    """The feedback that a principal may see.

    platform.compat.traces.feedback.add(call.ref, "thumbs", {"up": True})
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def add(
        self,
        ref: str,
        type: str,
        payload: Mapping[str, Any] = EMPTY,
        *,
        creator: str | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> Feedback:
        """Add feedback on the call or the object of a reference, in the project that it names.

        Raises `InvalidInput`, `Forbidden`.
        """
        about = ObjectRef.parse(ref)
        if about is not None and project is None:
            entity, project = about.entity, about.project
        place = named_place(self._runtime, self._principal, entity, project)
        said = Feedback(*place, self._runtime.ids(), ref, type, self._runtime.clock.now(), payload, creator)
        return self.record([said], entity=place[0], project=place[1])[0]

    def record(
        self, batch: Iterable[Feedback], *, project: str | None = None, entity: str | None = None
    ) -> list[Feedback]:
        """Store feedback. If its id is stored already, the stored feedback is returned. Raises as `add`."""
        place = named_place(self._runtime, self._principal, entity, project)
        began = self._runtime.clock.monotonic()
        given = [_checked(one, at) for at, one in enumerate(batch)]

        def step(tx: Tx) -> list[Feedback]:
            return [self._keep(tx, one) for one in given if (one.entity, one.project) == place]

        return store_texts(self._runtime, place[0], step, began)

    def _keep(self, tx: Tx, said: Feedback) -> Feedback:
        known = get_or_none(tx, Feedback, said.entity, said.project, said.id)
        if known is not None:
            return known
        tx.add(said)
        tell_feedback(self._runtime, tx, said, self._principal.scope)
        return tx.get(Feedback, said.entity, said.project, said.id)

    def list(
        self,
        *,
        ref: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "asc",
        keep: Callable[[Feedback], bool] = accept_all,
    ) -> Listing[Feedback]:
        """List the feedback of a project in the order in which it was given, or the feedback on one reference.

        Raises `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        index, *where = ("by_project", *place) if ref is None else ("by_ref", *place, ref)

        def cursor(id: str, snapshot: Snapshot) -> Cursor:
            found = get_or_none(snapshot, Feedback, *place, id)
            if found is None:
                raise NotFound("feedback", id)
            return cursor_at(Feedback, index, found)

        return index_listing(self._runtime, Feedback, index, *where, place=cursor, order=order, keep=keep)

    def delete(self, ids: Iterable[str], *, project: str | None = None, entity: str | None = None) -> int:
        """Delete feedback; returns how much there was. Raises `Forbidden`."""
        place = named_place(self._runtime, self._principal, entity, project)
        return sum(self._runtime.store.transact(partial(_remove, place, one)) for one in ids)


def _checked(said: Feedback, at: int) -> Feedback:
    for name, longest in (("id", LONGEST), ("ref", LONGEST_REF), ("type", LONGEST)):
        value = getattr(said, name)
        if not (isinstance(value, str) and 0 < len(value.encode()) <= longest and value.isprintable()):
            raise InvalidInput.at(at, name, msg=f"must be 1 to {longest} bytes of printable characters")
    payload, links = as_json(said.payload, at=(at, "payload")), as_json(said.links, at=(at, "links"))
    return attrs.evolve(said, payload=payload, links=links)


def _remove(place: tuple[str, str], id: str, tx: Tx) -> bool:
    if get_or_none(tx, Feedback, *place, id) is None:
        return False
    tx.remove(Feedback, *place, id)
    return True
