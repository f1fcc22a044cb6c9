"""The sessions of clients, and what belongs to each."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import attrs

from modelyard.domain.identity import Principal
from modelyard.parts.tinker.command_log import found_session
from modelyard.parts.tinker.records import RunSession, SamplingSession, TrainingRun
from modelyard.platform.paging import iter_index, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

R = TypeVar("R")

_SEEN_EVERY = timedelta(seconds=30)
"""How often it is recorded that a session was seen."""


@attrs.frozen
class SessionParts:
    """A session, and the ids of its runs and samplers."""

    session: RunSession
    runs: Sequence[str]
    samplers: Sequence[str]


@attrs.frozen
class ListedSlice:
    """A part of a listing, and how many items the whole has."""

    items: Sequence[Any]
    total: int


class ClientSessions:
    """The sessions of clients. Methods raise `NotFound` for a session that the principal may not see."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def begin(
        self,
        *,
        project: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        display_name: str = "",
        sdk_version: str = "",
    ) -> RunSession:
        """Begin a session in a project. Raises `Forbidden`, `InvalidInput`."""
        only = self._principal.attribution(None, project).project or None
        entity, named = named_place(self._runtime, self._principal, None, project or only)
        now = self._runtime.clock.now()
        session = RunSession(
            self._runtime.ids(), entity, named, now, now, tuple(tags), metadata or {}, display_name, sdk_version
        )
        self._runtime.store.transact(lambda tx: tx.add(session))
        return session

    def beat(self, session_id: str) -> RunSession:
        """Note that a session's client is there, unless the session has finished. Raises `NotFound`."""
        now = self._runtime.clock.now()
        session = self._runtime.store.read(lambda snapshot: found_session(snapshot, self._principal, session_id))
        if session.finished or now - session.seen_at < _SEEN_EVERY:
            return session

        def step(tx: Tx) -> RunSession:
            seen = found_session(tx, self._principal, session_id)
            if not seen.finished:
                seen = attrs.evolve(seen, seen_at=now)
                tx.replace(seen)
            return seen

        return self._runtime.store.transact(step, durable=False)

    def finish(self, session_id: str, why: str) -> None:
        """Finish a session: no more runs may begin in it. Raises `NotFound`."""

        def step(tx: Tx) -> None:
            session = found_session(tx, self._principal, session_id)
            if not session.finished:
                tx.replace(attrs.evolve(session, finished=why))

        self._runtime.store.transact(step)

    def get(self, session_id: str) -> SessionParts:
        """Return a session and its parts. Raises `NotFound`."""

        def query(snapshot: Snapshot) -> SessionParts:
            session = found_session(snapshot, self._principal, session_id)
            runs = [run.id for run in iter_index(snapshot, TrainingRun, "by_session", session_id)]
            samplers = [sampler.id for sampler in iter_index(snapshot, SamplingSession, "by_session", session_id)]
            return SessionParts(session, runs, samplers)

        return self._runtime.store.read(query)

    def list(self, offset: int, limit: int) -> ListedSlice:
        """List sessions, the newest first."""
        return listed_slice(self._runtime, self._principal, RunSession, offset, limit)


def listed_slice(
    runtime: Runtime,
    principal: Principal,
    cls: type[R],
    offset: int,
    limit: int,
    keep: Callable[[R], bool] = lambda _: True,
) -> ListedSlice:
    """Return a part of the records of the principal's entity. All are counted, because clients page by offsets."""
    scope, entity = principal.scope, principal.entity

    def query(snapshot: Snapshot) -> ListedSlice:
        found: list[R] = []
        total = 0
        for one in iter_index(snapshot, cls, "by_entity", entity, descending=True):
            if not keep(one) or not scope.covers(one.entity, one.project):  # type: ignore[attr-defined]
                continue
            if offset <= total < offset + limit:
                found.append(one)
            total += 1
        return ListedSlice(found, total)

    return runtime.store.read(query)
