"""Everything that a third party may implement, on one page. The laws stand in the docstrings, the runnable contracts
in `modelyard.testing`.
"""

import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Protocol, TypeVar

import attrs

from modelyard.domain import job, models
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.identity import Principal

__all__ = [
    "ArtifactStore",
    "AsyncBackend",
    "Authenticator",
    "Backend",
    "Capabilities",
    "Clock",
    "Executor",
    "Ids",
    "Observer",
    "Randomness",
    "SavedState",
    "ServedModel",
    "Snapshot",
    "Started",
    "Step",
    "Store",
    "StoredArtifact",
    "TrainContext",
    "TrainItem",
    "Trained",
    "Trainer",
    "Tx",
]

T = TypeVar("T")
R = TypeVar("R")


# ---- the store ---------------------------------------------------------------------------------------------------


class Snapshot(Protocol):
    """A consistent view of every record. Records are the declared frozen classes (`domain.record.Record`)."""

    def get(self, cls: type[R], *key: object) -> R:
        """The record with this key. Raises `RecordNotFound`."""
        ...

    def find(self, cls: type[R], unique: str, *values: object) -> R | None:
        """The record with these values of a declared unique key, or None. "key" is the record's own key."""
        ...

    def page(
        self,
        cls: type[R],
        index: str,
        *where: object,
        after: tuple[object, ...] | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> list[R]:
        """Up to `limit` records whose `index` prefix equals `where`, in index order, behind the cursor `after`.

        `after` is `Record.cursor(index, record)`; the record itself need no longer exist. When descending, "behind"
        means smaller.
        """
        ...

    def select(
        self,
        cls: type[Any],
        columns: Sequence[str],
        index: str,
        *where: object,
        after: tuple[object, ...] | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> list[tuple[Any, ...]]:
        """The records of the same `page`, of each only these fields, at least one, in this order.

        What is not named need not be read: so a run over many records costs what it looks at.
        """
        ...

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        """How many records have this `index` prefix."""
        ...


class Tx(Snapshot, Protocol):
    """A snapshot that may be written. A verb that refuses changes nothing, and the step may go on."""

    def add(self, record: object) -> None:
        """Keep a new record. Raises `RecordConflict` when its key or a unique key is taken."""
        ...

    def replace(self, record: object) -> None:
        """Put a whole record in the place of the one with its key. Raises `RecordNotFound`, `RecordConflict`."""
        ...

    def remove(self, cls: type[Any], *key: object) -> None:
        """Drop the record with this key. Raises `RecordNotFound`."""
        ...


class Store(Protocol):
    """Where records are kept: two methods (docs/explanation/store.md).

    Laws: 1. A step is a pure function of `tx` and of values made before the call; the store may run it again from the
    start. 2. No outcome, value or exception, leaves before the commit of all that it saw. 3. A verb that refuses
    changes nothing; a storage fault that a step swallows fails the step anyway. 4. A step that raises undoes itself
    alone, whoever shares its commit; one that calls its own store is refused with RuntimeError, not deadlocked; `tx`
    is dead when its step has returned. 5. A read sees whole commits only, and every acknowledged one. Steps may run
    on another caller's thread: no thread-locals, no context variables. A cancelled caller does not undo its step.
    """

    @property
    def blocking(self) -> bool:
        """Whether calls may wait; False means that they may be made on an event loop."""
        ...

    @property
    def durability(self) -> str:
        """What an acknowledged record survives: "power", "process" or "none"."""
        ...

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` atomically, serializably and, unless `durable` is False, as durably as the store promises.

        `durable=False` records survive the death of the process and reach the disk with the next durable commit.
        Raises what `step` raises, `StoreBusy`, `StorageFull`, `StoreClosed`, `UsedAfterFork`.
        """
        ...

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """The same for tasks of an event loop, which it never blocks."""
        ...

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` on one consistent snapshot."""
        ...

    def check(self) -> Mapping[str, object]:
        """Facts for the system check: engine, version, durability in force. Raises `StoreError` when unhealthy."""
        ...

    def sync(self) -> None:
        """Make every acknowledged record as durable as the store promises."""
        ...

    def backup(self, path: str) -> None:
        """Write a consistent copy to `path`, which must not exist, while others go on reading and writing."""
        ...

    def close(self) -> None:
        """Idempotent. Later calls raise `StoreClosed`."""
        ...


# ---- artifacts ---------------------------------------------------------------------------------------------------


@attrs.frozen
class StoredArtifact:
    """Bytes that are kept: a random `name`, their `size` in bytes and the SHA-256 `digest` in hex."""

    name: str
    size: int
    digest: str


class ArtifactStore(Protocol):
    """Where checkpoint files and training data lie, under names of the store's own making.

    Laws: what `put` returned survives a crash and is complete (written aside, synced, then named); a name is never
    reused; no string of a client becomes a path. `put` may be called from any thread.
    """

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Keep the bytes of `chunks`, in constant memory. Raises `StorageFull`; then nothing remains of them."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A readable, seekable file. Raises `ArtifactMissing`."""
        ...

    def remove(self, name: str) -> None:
        """Idempotent. A file that is open stays readable until it is closed."""
        ...

    def names(self) -> Iterator[str]:
        """Every name kept, in no order."""
        ...

    def free(self) -> int | None:
        """Bytes that there is room for; None where nobody knows. Raises `StoreError`."""
        ...

    def check(self) -> None:
        """Prove that artifacts can be written and read. Raises `StoreError`."""
        ...

    def backup(self, folder: str) -> None:
        """Copy every artifact that the folder has not yet to a file of its name, synced. Raises `StoreError`.

        What is put or removed meanwhile may be in the copy or not.
        """
        ...


# ---- what answers ------------------------------------------------------------------------------------------------


@attrs.frozen
class Capabilities:
    """What a backend can do with one model. What it cannot, the core refuses by the parameter's name.

    `parameters` are names of `Sampling` fields that it honours. `choices` says that it makes `n` choices of one request
    itself (else the core asks n times). `forced_tools`, `json_mode` and `structured_outputs` say that it really
    constrains its output; `synthesises_structure` is for doubles that answer a forced tool call or a schema with the
    smallest valid instance.
    """

    parameters: frozenset[str] = frozenset()
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    choices: bool = False
    tools: bool = False
    forced_tools: bool = False
    json_mode: bool = False
    structured_outputs: bool = False
    reasoning: bool = False
    synthesises_structure: bool = False
    trainable: bool = False


@attrs.frozen
class ServedModel:
    """What a request's model name was resolved to.

    `base_model` is the id under which the backend offers it; `entry` is the catalogue entry that prices it (another id
    when the host listed it under a name of its own). A trained model adds one checkpoint, whose files `open_file` opens
    for reading. Raises `ArtifactMissing`.
    """

    base_model: str
    entry: CatalogueEntry
    checkpoint: "models.Checkpoint | None" = None
    open_file: Callable[[str], BinaryIO] | None = attrs.field(default=None, eq=False)


class Backend(Protocol):
    """What answers, synchronously. One that stands in front of others may add `backend_of(model)`, the one to ask.

    Laws: deltas of one choice come in order; the last has a finish reason; at most `request.max_tokens` tokens a choice
    (the core has resolved it to a number); `request.n` is 1 unless `choices` is declared. With the same seed the
    answer is the same. Text may come in pieces of any size; when `request.streamed` is False, one piece is best.
    Stop strings are cut by the core. Closing the iterator stops the work. Everything that can fail before the first
    token raises from the first `next`. Raises `Overloaded`, `BackendError`, `InvalidInput`.
    """

    @property
    def blocking(self) -> bool:
        """Whether `stream` may wait; False means that it may be iterated on an event loop."""
        ...

    def entries(self) -> Sequence[CatalogueEntry]:
        """The models that it offers to the catalogue."""
        ...

    def capabilities(self, model: str) -> Capabilities:
        """What it can do with the model of this catalogue id."""
        ...

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        """How many tokens the prompt has, or None where only the answer will tell (see `Delta.usage`)."""
        ...

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Answer."""
        ...


class AsyncBackend(Protocol):
    """What answers, on an event loop: the laws of `Backend`, with `astream` in the place of `stream`."""

    def entries(self) -> Sequence[CatalogueEntry]:
        """The models that it offers to the catalogue."""
        ...

    def capabilities(self, model: str) -> Capabilities:
        """What it can do with the model of this catalogue id."""
        ...

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        """How many tokens the prompt has, or None where only the answer will tell."""
        ...

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """Answer."""
        ...


# ---- what trains -------------------------------------------------------------------------------------------------


@attrs.frozen
class Started:
    """Training begins: so many gradient steps are to come. Yielded once, also by a resumed run."""

    steps: int


@attrs.frozen
class Step:
    """An optimizer step was made. `number` counts from 1; `metrics` are finite numbers."""

    number: int
    metrics: Mapping[str, float]


@attrs.frozen
class SavedState:
    """All that is needed to go on behind step `number` as if nothing had happened: files of bytes."""

    number: int
    files: Mapping[str, Iterable[bytes]]


@attrs.frozen
class Trained:
    """The end: the files of the new checkpoint, and its metrics."""

    files: Mapping[str, Iterable[bytes]]
    metrics: Mapping[str, float]


TrainItem = Started | Step | SavedState | Trained


@attrs.frozen
class TrainContext:
    """Everything that a trainer may touch beside the data.

    `parent` opens files of the checkpoint to start from (`parent_files` are their names; empty for the untouched base).
    `resume_step` is 0, or the step behind which to go on, with `resume` opening the saved files. `reference` opens the
    files of the checkpoint that a KL penalty refers to.
    """

    base_model: str
    seed: int
    parent_files: frozenset[str]
    parent: Callable[[str], BinaryIO]
    resume_step: int = 0
    resume_files: frozenset[str] = frozenset()
    resume: Callable[[str], BinaryIO] | None = None
    reference_files: frozenset[str] = frozenset()
    reference: Callable[[str], BinaryIO] | None = None


class Trainer(Protocol):
    """What trains, pulled: each item is stored before the next is asked for; closing the iterator cancels.

    Laws: the same job, data, parent and seed give the same files, digest for digest, also when the run was broken off
    and resumed from any `SavedState`. A resumed run yields `Started` again, then only the steps behind `resume_step`.
    Data can be iterated again and again. Raises `TrainingError` with a sentence that says what to try.
    """

    def methods(self, base_model: str) -> Collection[str]:
        """The methods by which it can train this base model; none for a base model that it does not know.

        A job of a method that is not listed is refused when it is created, so methods that are added to the platform
        change nothing for a trainer.
        """
        ...

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        """Train by a method: one that `methods` lists, with the configuration and the rows that it takes.

        "sft" takes an `SFTConfig` and `Example`s, which it imitates in file order, one optimizer step per batch.
        "rl" takes an `RLConfig` and `TrajectoryGroup`s, one optimizer step per packed sequence.
        "dpo" takes a `DPOConfig` and `Preference`s, one optimizer step per batch, against the parent's probabilities.
        """
        ...


# ---- where jobs run ----------------------------------------------------------------------------------------------


class Executor(Protocol):
    """Where a claimed job runs. The fence in the store makes it harmless to run one twice.

    Laws: what runs jobs in this process calls `run`, and such a job settles itself. Anything else starts a process
    `python -m modelyard.worker FACTORY JOB_ID`, which takes the job over from the claim; its handle is kept in the
    job's record, and the worker settles the job of a process that ends without having done so. No handle is given out
    twice.
    """

    def submit(self, claim: "job.Claim", run: "Callable[[job.Claim], None]") -> str:
        """Begin; returns a handle that can be kept."""
        ...

    def poll(self, handle: str) -> str | None:
        """None while it runs, also while it is frozen; afterwards how it ended: the fault, as a person may read it, or
        nothing. What is not known has ended.
        """
        ...

    def cancel(self, handle: str) -> None:
        """End it by force where that is possible. Idempotent."""
        ...

    def reattach(self, handle: str) -> bool:
        """Whether it runs, or ran, outside of this process and is to be watched from here, by `poll` and `cancel`:
        it was submitted here, or by a process that is dead. False also for what is not known.
        """
        ...

    def close(self) -> None:
        """Have what this executor submitted end or give its job back, and wait for that in bounded time."""
        ...


# ---- who calls ---------------------------------------------------------------------------------------------------


class Authenticator(Protocol):
    """Who calls: from the secret that a client shows over HTTP to the principal who acts.

    Laws: a secret lets in as it was given out and in no other form, no part of it and nothing around it. Whatever lets
    nobody in, unknown, malformed, revoked or expired, is refused in the same words, which repeat nothing of it. A
    secret that has ended lets nobody in from then on: the HTTP side remembers an answer for a second, so remember none.
    Scope and limits are those of now. Every caller has a `key_id` of their own, under which limits and usage are
    counted, and holds their own entity. May be called from any thread.
    """

    @property
    def blocking(self) -> bool:
        """Whether `authenticate` may wait; False means that it may be called on an event loop."""
        ...

    @property
    def longest(self) -> int:
        """How many characters a secret may have. A longer one is refused unseen."""
        ...

    def authenticate(self, secret: str) -> Principal:
        """Who stands behind a secret, which may be any text. Raises `Unauthenticated`."""
        ...


# ---- the world ---------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time, passed in."""

    def now(self) -> datetime:
        """The wall clock, in UTC, for what is stored and shown."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for every decision."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event at most so long; True when it was set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let so much time go by."""
        ...

    async def asleep(self, seconds: float) -> None:
        """The same for a task of an event loop, which it never blocks."""
        ...


Ids = Callable[[], str]
"""Makes a new id: a UUIDv7 as text, so that ids sort by the time at which they were made."""

Randomness = Callable[[int], bytes]
"""So many random bytes: for keys, seeds and secrets."""

Observer = Callable[[object], None]
"""Receives the typed events of `modelyard.domain.events`. Must not raise; what it raises is logged and dropped."""
