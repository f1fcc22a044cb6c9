"""What the use cases run on: everything comes from here, nothing is discovered."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.identity import Attribution
from modelyard.domain.record import Record
from modelyard.domain.schema import records_of
from modelyard.domain.usage import Admission, Budget, LedgerEntry
from modelyard.errors import InvalidInput, StorageFull, StoreClosed, StoreError
from modelyard.lazy import log
from modelyard.part import DefaultEngine, Part, TrainedRecord, standard_parts
from modelyard.platform.liveness import LivenessMonitor
from modelyard.platform.meters import Meters
from modelyard.protocols import (
    ArtifactStore,
    AsyncBackend,
    Backend,
    Clock,
    Ids,
    Observer,
    Randomness,
    Snapshot,
    Store,
    Trainer,
    Tx,
)
from modelyard.threads import TenantThreads, Threads

if TYPE_CHECKING:
    from modelyard.domain.job import Job
    from modelyard.domain.models import Model
    from modelyard.platform.chat.booked_request import Tracing

S = TypeVar("S")

MOST_BUDGETS = 4096
"""Budgets that a process remembers."""


@attrs.frozen
class Settings:
    """What a host may set. Times are in seconds, sizes in bytes.

    `lease` is how long a worker may be idle before its job is given to another; `admission_lease` how long a process on
    another machine may be silent before what its requests have reserved is released; `poll` how often a worker looks
    for work. `max_crashes` is how often a job may kill its worker without progress. A training job that records nothing
    for `longest_step`, or an evaluation that stores no row for `longest_row`, hangs, and is taken from its worker.
    `reference_mode` is how strictly evaluation references are checked (`RefMode`). `spare_room` on the disk of the
    artifacts is for what runs: a new job, or data for one, is refused before it takes any of it. `max_form` bounds the
    form that uploads a file. A response that was stored is kept for `response_days`. A training run that
    its client drives keeps its worker for `run_idle` after its last command, unless other jobs wait. A client's session
    ends, and so do its runs, when nothing was heard of the client for `session_idle`. With `strict_conversations`
    doubles and tabular models refuse what vendors do: answers of tools without their call, calls without their answer
    or with two, tools of the same name, and what the vendor of a format refuses. `unknown_members` is "refuse" or
    "ignore": what becomes of members of an inference request that are not known, unless the request says so itself.
    With `durable_usage` an answer is given once its row of the ledger is as durable as any record, and not a second
    later.
    """

    lease: float = 30.0
    admission_lease: float = 10.0
    poll: float = 0.5
    max_crashes: int = 3
    longest_step: float = 3600.0
    longest_row: float = 3600.0
    max_data_body: int = 512 * 2**20
    max_form: int = 4 * 2**30
    max_chat_body: int = 8 * 2**20
    max_control_body: int = 2**20
    max_queued_jobs: int = 10_000
    spare_room: int = 256 * 2**20
    response_days: float = 30.0
    run_idle: float = 10.0
    session_idle: float = 3600.0
    reference_mode: str = "syntax"
    strict_conversations: bool = True
    unknown_members: str = "refuse"
    durable_usage: bool = False

    def __attrs_post_init__(self) -> None:
        flags = dict.fromkeys(("strict_conversations", "durable_usage"), (True, False))
        modes = {"reference_mode": ("lenient", "syntax", "resolve"), "unknown_members": ("refuse", "ignore")}
        for name, values in {**flags, **modes}.items():
            if getattr(self, name) not in values:
                raise InvalidInput.at("settings", name, msg=f"must be {' or '.join(map(repr, values))}")


class Booking(Protocol):
    """What records what a request has used."""

    @property
    def alone(self) -> LedgerEntry | None:
        """The entry of the ledger, where that is all there is to record."""

    def step(self, tx: Tx) -> None:
        """Record it. May run again."""

    def on_committed(self) -> None:
        """Note that it is recorded."""


class RunningRequest(Protocol):
    """A request that runs, as who closes its platform sees it."""

    attribution: Attribution
    reserved: Admission | None

    def cut(self, error: Exception) -> None:
        """Have the request end with this error as soon as it can, and record nothing more."""

    def remainder(self) -> Booking | None:
        """Return what records what was produced so far, and releases what was reserved."""


@runtime_checkable
class Closing(Protocol):
    """What a slot keeps that must be closed with the platform."""

    def close(self) -> None:
        """Close all of it. Raises `StoreError`."""


@attrs.define(eq=False)
class ProcessCache:
    """What one platform remembers between calls. All of it can be computed again, so nothing is lost with it.

    `offered` is what the backend offered last, and `offered_by_id` indexes it; `offers` counts how often that changed.
    `running` are the requests under way, by their ids: each is removed by the one who records its usage, itself or
    `close`. `bookings` are those that are not committed yet. `budgets` are budgets as this process saw them last, by
    their ids. `failures` count the requests that failed, by entity, key and code, until who alerts of them takes them
    out. `meters` count what happens, once metrics were asked for. The first of `watches` may note and change each HTTP
    request: `begin` or `abegin` returns what takes its response. Whatever else is kept lies in a slot of its class."""

    offered: tuple[CatalogueEntry, ...] = ()
    offered_by_id: Mapping[str, CatalogueEntry] = attrs.field(factory=dict)
    offers: int = 0
    running: dict[str, RunningRequest] = attrs.field(factory=dict)
    bookings: dict[str, Booking] = attrs.field(factory=dict)
    budgets: dict[str, Budget] = attrs.field(factory=dict)
    closed: bool = False
    failures: Counter[tuple[str, str, str]] = attrs.field(factory=Counter)
    meters: Meters | None = None
    tracing: "Tracing | None" = None
    watches: list[Any] = attrs.field(factory=list)
    slots: dict[type, Any] = attrs.field(factory=dict)
    lock: Any = attrs.field(factory=threading.Lock)

    def slot(self, kind: Callable[[], S]) -> S:
        """Return what lies in the slot of a class; the first call makes it."""
        found: S | None = self.slots.get(kind)  # type: ignore[call-overload]
        return self.slot_of(kind, kind) if found is None else found  # type: ignore[arg-type]

    def slot_of(self, kind: type[S], make: Callable[[], S]) -> S:
        """Return what lies in the slot of a class, which `make` makes at the first call."""
        found: S | None = self.slots.get(kind)
        if found is None:
            with self.lock:
                found = self.slots.get(kind)
                if found is None:
                    found = self.slots[kind] = make()
        return found

    def close_slots(self) -> None:
        """Close what slots keep open. A fault is logged, and the others are closed."""
        for kept in self.slots.values():
            if isinstance(kept, Closing):
                try:
                    kept.close()
                except StoreError:
                    log.exception("what running requests have reserved could not be released")

    def count(self) -> Meters:
        """Begin to count requests, tokens, cost and times in this process. Idempotent."""
        with self.lock:
            if self.meters is None:
                self.meters = Meters()
            return self.meters

    def note_failure(self, entity: str, key_id: str, code: str, count: int = 1) -> None:
        """Count a request that failed."""
        with self.lock:
            if len(self.failures) < MOST_BUDGETS or (entity, key_id, code) in self.failures:
                self.failures[entity, key_id, code] += count

    def take_failures(self) -> Counter[tuple[str, str, str]]:
        """Return the requests that failed since this was called before."""
        with self.lock:
            taken, self.failures = self.failures, Counter()
            return taken

    def see_budgets(self, budgets: Iterable[Budget]) -> None:
        """Remember budgets as they were a moment ago."""
        if len(self.budgets) >= MOST_BUDGETS:
            self.budgets.clear()
        for budget in budgets:
            self.budgets[budget.id] = budget

    def begin(self, id: str, request: RunningRequest) -> None:
        """Add a request to those that run. Raises `StoreClosed`."""
        self.running[id] = request
        if self.closed:
            raise StoreClosed("this platform was closed; open it again with open_platform")


@attrs.frozen
class Runtime:
    """What the use cases run on. `liveness` is what this platform has seen of other processes.

    `job_types` are the kinds of jobs: the `JobTypes` of `platform.jobs.job_type`, which are above this.

    `parts` are the optional parts, and `records` the declarations of all records, theirs too. `listeners` are those of
    their functions that are called in the transactions in which something happens.

    `project` is meant where none is named. `open_copy` opens a file of records and a folder of artifacts, for a look.
    """

    store: Store
    artifacts: ArtifactStore
    backend: Backend | AsyncBackend
    trainers: Sequence[Trainer]
    clock: Clock
    ids: Ids
    randomness: Randomness
    observer: Observer | None
    settings: Settings
    project: str = "default"
    open_copy: Callable[[str, str], tuple[Store, ArtifactStore]] = attrs.field(default=None, eq=False, repr=False)
    parts: Sequence[Part] = attrs.field(factory=standard_parts, eq=False, repr=False)
    records: Sequence[Record] = attrs.field(init=False, eq=False, repr=False)
    listeners: "Sequence[Callable[[Runtime, Tx, object], None]]" = attrs.field(init=False, eq=False, repr=False)
    job_types: "Mapping[str, Any]" = attrs.field(factory=dict, eq=False, repr=False)
    engines: Sequence[DefaultEngine] = attrs.field(default=(), eq=False, repr=False)
    liveness: LivenessMonitor = attrs.field(factory=LivenessMonitor, eq=False, repr=False)
    cache: ProcessCache = attrs.field(factory=ProcessCache, eq=False, repr=False)
    threads: Threads = attrs.field(factory=Threads, eq=False, repr=False)

    @records.default
    def _records_of_parts(self) -> Sequence[Record]:
        return records_of(self.parts)

    @listeners.default
    def _listeners_of_parts(self) -> "Sequence[Callable[[Runtime, Tx, object], None]]":
        return tuple(part.on_event for part in self.parts if part.on_event is not None)

    def look(self, query: Callable[[Snapshot, float], S]) -> S:
        """Read what shows whether others are alive; the query gets the time at which the look begins. How long that
        takes does not count as silence of theirs, and after a look that fails it counts from anew."""
        begun, since = self.clock.monotonic(), -inf
        try:
            found = self.store.read(lambda snapshot: query(snapshot, begun))
            since = begun
            return found
        finally:
            self.liveness.leave_out(since, self.clock.monotonic())

    def tell(self, tx: Tx, *events: object) -> None:
        """Let the parts that listen record what happens, in its transaction (`Part.on_event`)."""
        for listen in self.listeners:
            for event in events:
                listen(self, tx, event)

    def kept(self, snapshot: Snapshot, model: "Model") -> Mapping[int, str]:
        """Return why parts keep steps of a model (`Part.keeps`)."""
        finds = (part.keeps for part in self.parts if part.keeps is not None)
        return {step: why for find in finds for step, why in find(snapshot, model).items()}

    @property
    def upkeep(self) -> "Mapping[str, Callable[[], None]]":
        """What parts do now and then, by their names."""
        return {part.name: partial(part.upkeep, self) for part in self.parts if part.upkeep is not None}

    def store_threads(self, entity: str) -> TenantThreads | None:
        """Return where an event loop calls the store for an entity; None for a store that never blocks."""
        return self.threads.store.of(entity) if self.store.blocking else None

    def trained_records(self, job: "Job", loose: list[str]) -> "Sequence[TrainedRecord]":
        """Return what parts have prepared for the end of a training job; their artifacts are added to `loose`."""
        prepared = (part.trained(self, job, loose) for part in self.parts)
        return [one for one in prepared if one is not None]

    def require_room(self) -> None:
        """Raise `StorageFull` if new work would take the space that running jobs need."""
        free, spare = self.artifacts.free(), self.settings.spare_room
        if free is not None and free < spare:
            raise StorageFull(
                f"only {free >> 20} MiB are free on the disk of the artifacts, and {spare >> 20} MiB are kept for jobs "
                "that run; free some, then try again"
            )

    def require_every_part(self) -> None:
        """Raise `StoreError` if the store has records of a part that is not open, which nothing here knows."""
        others: Sequence[str] = getattr(self.store, "other_tables", tuple)()
        if others:
            raise StoreError(
                f"the store has records in the tables {[*others]}, which are not declared: open it with the parts that"
                " they belong to"
            )

    def observe(self, event: object) -> None:
        """Notify the host's observer. What it raises is logged and changes nothing here."""
        if self.observer is None:
            return
        try:
            self.observer(event)
        except Exception:  # noqa: BLE001 - it is logged
            log.exception("the observer failed on %s", type(event).__name__)
