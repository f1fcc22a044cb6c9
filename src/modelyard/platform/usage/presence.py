"""This platform's process as other processes see it, and the recovery from processes that have died. A record of the
process exists while it holds admissions or other promises, and its heartbeat comes from a thread that starts with the
first of them. On the same machine a process is dead when it no longer runs, whatever its heartbeat. Of a process
elsewhere only the heartbeat is seen: it is dead when this platform has seen it stand still for a lease, or when an
earlier process has seen and stored that it did (`ProcessRecord.observed`)."""

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

from modelyard.domain.record import KEY
from modelyard.domain.usage import Admission
from modelyard.domain.worker import ProcessRecord
from modelyard.errors import StoreClosed
from modelyard.platform.periodic import Periodic
from modelyard.platform.runtime import RunningRequest, Runtime
from modelyard.platform.usage.booking import budgets_of, retry_bookings, settle
from modelyard.process_identity import ProcessName, machine, this_process
from modelyard.protocols import Snapshot, Tx

R = TypeVar("R", ProcessRecord, Admission)

BEATS_PER_LEASE = 3
_BATCH = 1000


class Presence:
    """The record of this platform's process and the thread of its heartbeat. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self.id: str = runtime.ids()
        self.machine: str = machine()
        self._process = str(this_process())
        self._runtime = runtime
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._pulse: Periodic | None = None
        self._idle_since: float | None = None

    # ---- what it holds

    def sign_on(self, tx: Tx) -> None:
        """Announce the process, in the transaction that holds something for it. Raises `StoreClosed`."""
        if self._runtime.cache.closed:
            raise StoreClosed("this platform was closed; open it again with open_platform")
        if tx.find(ProcessRecord, KEY, self.id) is None:
            tx.add(ProcessRecord(self.id, self.machine, self._process, 0, tx.time))

    def hold(self, id: str) -> None:
        with self._lock:
            self._held.add(id)
            self._idle_since = None
            if self._pulse is None and not self._runtime.cache.closed:
                seconds = self._runtime.settings.admission_lease / BEATS_PER_LEASE
                self._pulse = Periodic(self._runtime.clock, seconds, self.beat, "modelyard-heartbeat")
                self._pulse.start()

    def release(self, id: str) -> None:
        self._held.discard(id)

    # ---- beats

    def beat(self) -> None:
        """Record a heartbeat, and release what dead processes hold; sign off after a lease with nothing held."""
        retry_bookings(self._runtime)
        if self._idle() and self._sign_off():
            return
        for request in self._runtime.store.transact(self._beat, durable=False):
            request.cut(StoreClosed("this process was silent for so long that what it had reserved was released"))
        release_dead(self._runtime)

    def _beat(self, tx: Tx) -> list[RunningRequest]:
        record = tx.find(ProcessRecord, KEY, self.id)
        if record is not None:
            tx.replace(record.beaten(tx.time))
            return []
        self.sign_on(tx)
        running = tuple(self._runtime.cache.running.values())
        return [request for request in running if request.reserved and not _reserve_again(tx, request.reserved)]

    def _idle(self) -> bool:
        with self._lock:
            now = self._runtime.clock.monotonic()
            if self._held:
                self._idle_since = None
            elif self._idle_since is None:
                self._idle_since = now
            return self._idle_since is not None and now - self._idle_since >= self._runtime.settings.admission_lease

    def _sign_off(self) -> bool:
        removed = self._runtime.store.transact(self._remove_if_idle, durable=False)
        with self._lock:
            if self._held or self._pulse is None or not removed:
                return False
            self._pulse.stop()
            self._pulse = None
            return True

    def _remove_if_idle(self, tx: Tx) -> bool:
        """Remove the record, and return whether it is gone: not while something is held, or an admission names it."""
        if self._held or any(_admissions_of(tx, self.id)):
            return False
        if tx.find(ProcessRecord, KEY, self.id) is not None:
            tx.remove(ProcessRecord, self.id)
        return True

    def close(self) -> None:
        with self._lock:
            pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.stop(self._runtime.settings.admission_lease)
        self._runtime.store.transact(partial(_release, id=self.id, beat=None), durable=False)


def _reserve_again(tx: Tx, held: Admission) -> bool:
    if tx.find(Admission, KEY, held.id) is not None:
        return True
    budgets = budgets_of(tx, held.budgets)
    if any(held.reserved > budget.remaining for budget in budgets):
        return False
    for budget in budgets:
        tx.replace(budget.reserve(held.reserved))
    tx.add(held)
    return True


# ---- other processes ---------------------------------------------------------------------------------------------


def presence_of(runtime: Runtime) -> Presence:
    """Return the presence of this platform, the same one each time."""
    here: Presence | None = runtime.cache.slots.get(Presence)
    return runtime.cache.slot_of(Presence, lambda: Presence(runtime)) if here is None else here


def release_dead(runtime: Runtime) -> bool:
    dead = dead_processes(runtime)
    for record in dead:
        runtime.store.transact(partial(_release, id=record.id, beat=record.beat))
    return bool(dead)


def dead_processes(runtime: Runtime) -> list[ProcessRecord]:
    here, lease = presence_of(runtime), runtime.settings.admission_lease
    others, time = runtime.look(lambda snapshot, _: _others(snapshot, here.id))
    beats = {record.id: record.beat for record in others}
    silent = runtime.liveness.idle_seconds("processes", beats, runtime.clock.monotonic())
    found = []
    for record in others:
        if here.machine and record.machine == here.machine:
            dead = not runs_here(record)
        else:
            dead = silent[record.id] >= lease or record.is_dead(time, lease)
            if not dead and record.observed(time, lease) != record:
                runtime.store.transact(partial(_observe, id=record.id, lease=lease), durable=False)
        if dead:
            found.append(record)
    return found


def _others(snapshot: Snapshot, id: str) -> tuple[Sequence[ProcessRecord], float]:
    return [record for record in _every(snapshot, ProcessRecord) if record.id != id], snapshot.time


def runs_here(record: ProcessRecord) -> bool:
    name = ProcessName.parse(record.process)
    return name is not None and name.lives


def _observe(tx: Tx, id: str, lease: float) -> None:
    record = tx.find(ProcessRecord, KEY, id)
    if record is not None:
        tx.replace(record.observed(tx.time, lease))


def _release(tx: Tx, id: str, beat: int | None) -> None:
    record = tx.find(ProcessRecord, KEY, id)
    if record is None or (beat is not None and record.beat != beat):
        return
    for admission in tuple(_admissions_of(tx, id)):
        settle(tx, admission)
    tx.remove(ProcessRecord, id)


def _admissions_of(snapshot: Snapshot, id: str) -> Iterator[Admission]:
    """Search the admissions of all processes: there are only as many as requests that run."""
    return (admission for admission in _every(snapshot, Admission) if admission.owner == id)


def _every(snapshot: Snapshot, cls: type[R]) -> Iterator[R]:
    after = None
    while page := snapshot.page(cls, "all", after=after, limit=_BATCH):
        yield from page
        after = (page[-1].id,)
