"""Which adapters a server holds, and what to do next: decisions only, without I/O, clock or threads.

A slot is an adapter on the server, loading or unloading. A request makes a `SlotClaim` and calls `next` until that
returns `Serve`; every other result is something to do, or to wait for. An adapter in use is pinned, and never unloaded.
When all are in use and a claim waits, the least recently used slot drains: it serves no new claim, and makes room when
its last user has left. So every claim is served, in order, as long as answers end.

Only the server's list shows what it really holds. The list is read first of all, and again when something contradicts
the known state (`suspect`): a name that the server did not know, a call with an unknown outcome.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from enum import Enum, auto

import attrs


class AdapterState(Enum):
    """The states of an adapter on its server."""

    LOADING = auto()
    LOADED = auto()
    UNLOADING = auto()


@attrs.define(eq=False)
class Slot:
    """An adapter by its `name`. `path` is the folder that the server was given; `used` counts up with each claim.

    A `leftover` was found on the server, loaded earlier or by another process.
    """

    name: str
    path: str
    state: AdapterState = AdapterState.LOADING
    pins: int = 0
    used: int = 0
    draining: bool = False
    leftover: bool = False

    @property
    def idle(self) -> bool:
        """Whether it may be unloaded."""
        return self.state is AdapterState.LOADED and not self.pins


@attrs.define(eq=False)
class SlotWaiter:
    """A waiting request; `bell` rings when it is worth trying again."""

    bell: "Future[None]" = attrs.field(factory=Future, init=False)

    def ring(self) -> None:
        with suppress(InvalidStateError):
            self.bell.set_result(None)


@attrs.define(eq=False)
class SlotClaim(SlotWaiter):
    """A request for an adapter; `slot` is the slot that was pinned for it, `error` why there will be none."""

    name: str
    path: str
    slot: Slot | None = attrs.field(default=None, init=False)
    error: Exception | None = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class Removal(SlotWaiter):
    """A request to unload adapters: those at the first look for which `covers` returns True."""

    covers: Callable[[str], bool]
    slots: list[Slot] | None = attrs.field(default=None, init=False)


@attrs.frozen
class Serve:
    """The adapter is there, and pinned."""

    slot: Slot


@attrs.frozen
class List:
    """List what the server holds; then call `listed` or `not_listed`."""


@attrs.frozen
class Load:
    """Load it; then call `loaded`, `refused` or `unsure`."""

    slot: Slot


@attrs.frozen
class Unload:
    """Unload it; then call `unloaded` or `unsure`."""

    slot: Slot


@attrs.frozen
class Wait:
    """Wait until the bell rings."""

    bell: "Future[None]"


@attrs.frozen
class Done:
    """Nothing is left to remove."""


class Slots:
    """The adapters of one server, at most `capacity` at a time."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: dict[str, Slot] = {}
        self.waiting: list[SlotWaiter] = []
        self.suspect: bool = True
        self._listing: frozenset[str] | None = None
        self._clock = 0

    # ---- what next

    def next(self, claim: SlotClaim) -> Serve | List | Load | Unload | Wait:
        """Return the next step for a claim. Raises its error when its adapter was refused."""
        if claim.error is not None:
            raise claim.error
        if claim.slot is not None:
            return Serve(claim.slot)
        if claim not in self.waiting:
            self.waiting.append(claim)
        return self._look() or self._served(claim) or self._drained() or self._make(claim) or self._wait(claim)

    def next_removal(self, removal: Removal) -> List | Unload | Wait | Done:
        if removal not in self.waiting:
            self.waiting.append(removal)
        looking = self._look()
        if looking is not None:
            return looking
        if removal.slots is None:
            removal.slots = [slot for slot in self.slots.values() if removal.covers(slot.name)]
        for slot in removal.slots:
            slot.draining = True
        there = [slot for slot in removal.slots if self.slots.get(slot.name) is slot]
        if not there:
            self.waiting.remove(removal)
            return Done()
        return self._drained() or self._wait(removal)

    def _look(self) -> List | None:
        """Read the list first, if the known state may be wrong."""
        if not self.suspect or self._listing is not None:
            return None
        self.suspect = False
        self._listing = frozenset(slot.name for slot in self.slots.values() if slot.state is not AdapterState.LOADED)
        return List()

    def _served(self, claim: SlotClaim) -> Serve | None:
        slot = self.slots.get(claim.name)
        if self._listing is not None or slot is None or slot.state is not AdapterState.LOADED:
            return None
        if slot.draining or slot.leftover:
            return None
        self._pin(slot, claim)
        return Serve(slot)

    def _drained(self) -> Unload | None:
        if self._listing is None:
            for slot in self.slots.values():
                if slot.draining and slot.idle:
                    return self._unload(slot)
        return None

    def _make(self, claim: SlotClaim) -> Load | Unload | None:
        """Load the claim's adapter, or make room for it when it is the claim's turn."""
        if self._listing is not None:
            return None
        slot = self.slots.get(claim.name)
        if slot is not None:
            return self._adopt(slot, claim) if slot.leftover and slot.idle else None
        if claim is not self._first():
            return None
        if len(self.slots) < self.capacity:
            slot = self.slots[claim.name] = Slot(claim.name, claim.path)
            return Load(slot)
        return self._make_room(self.slots.values())

    def _adopt(self, slot: Slot, claim: SlotClaim) -> Load | Unload | None:
        """Load a leftover again, which ensures its files, or unload it when its files lie elsewhere.

        If an earlier process with more room has left too many, other adapters are unloaded first.
        """
        if len(self.slots) > self.capacity:
            return self._make_room(other for other in self.slots.values() if other is not slot)
        if slot.path != claim.path:
            return self._unload(slot)
        slot.state = AdapterState.LOADING
        return Load(slot)

    def _first(self) -> SlotWaiter | None:
        """Return the claim that gets room next: the first without a slot for its adapter."""
        for waiter in self.waiting:
            if isinstance(waiter, SlotClaim) and waiter.name not in self.slots:
                return waiter
        return None

    def _make_room(self, among: Iterable[Slot]) -> Unload | None:
        by_age = sorted(among, key=lambda slot: slot.used)
        for slot in by_age:
            if slot.idle:
                return self._unload(slot)
        if not any(slot.draining or slot.state is AdapterState.UNLOADING for slot in by_age):
            for slot in by_age:
                if slot.state is AdapterState.LOADED:
                    slot.draining = True
                    break
        return None

    def _unload(self, slot: Slot) -> Unload:
        slot.state = AdapterState.UNLOADING
        return Unload(slot)

    def _wait(self, waiter: SlotWaiter) -> Wait:
        if waiter.bell.done():
            waiter.bell = Future()
        return Wait(waiter.bell)

    # ---- outcomes

    def listed(self, found: Mapping[str, str]) -> None:
        """Note which of our adapters the server holds, by name, each with the folder that it was loaded from.

        Adapters that were being loaded or unloaded when the list was requested may or may not be in it, and are left as
        they are.
        """
        moving = self._listing or frozenset()
        self._listing = None
        for name, slot in list(self.slots.items()):
            if slot.state is AdapterState.LOADED and name not in found and name not in moving:
                del self.slots[name]
        for name, path in found.items():
            if name not in self.slots and name not in moving:
                self.slots[name] = Slot(name, path, AdapterState.LOADED, leftover=True)
        self._changed()

    def not_listed(self) -> None:
        self._listing, self.suspect = None, True
        self._changed()

    def loaded(self, slot: Slot) -> None:
        slot.state, slot.leftover = AdapterState.LOADED, False
        self._changed()
        for claim in self._claims(slot.name):
            self._pin(slot, claim)

    def refused(self, slot: Slot, error: Exception) -> None:
        """Note that it cannot be loaded: every claim for it gets the error. A leftover is there as before."""
        del self.slots[slot.name]
        self.suspect |= slot.leftover
        self._changed()
        for claim in self._claims(slot.name):
            claim.error = error
            self.waiting.remove(claim)

    def unloaded(self, slot: Slot) -> None:
        del self.slots[slot.name]
        self._changed()

    def unsure(self, slot: Slot) -> None:
        """Note that its state is unknown: the list must be read before anything else is done."""
        del self.slots[slot.name]
        self.suspect = True
        self._changed()

    # ---- users

    def release(self, slot: Slot) -> None:
        slot.pins -= 1
        if not slot.pins:
            self._changed()

    def leave(self, waiter: SlotWaiter) -> None:
        """End a claim or a removal: give back the slot that was pinned, or wait no longer."""
        if isinstance(waiter, SlotClaim) and waiter.slot is not None:
            self.release(waiter.slot)
        elif waiter in self.waiting:
            self.waiting.remove(waiter)
            self._changed()

    def _pin(self, slot: Slot, claim: SlotClaim) -> None:
        self._clock += 1
        slot.used, slot.pins, claim.slot = self._clock, slot.pins + 1, slot
        self.waiting.remove(claim)

    def _claims(self, name: str) -> Collection[SlotClaim]:
        return [waiter for waiter in self.waiting if isinstance(waiter, SlotClaim) and waiter.name == name]

    def _changed(self) -> None:
        for waiter in self.waiting:
            waiter.ring()
