"""Every protocol that a third party may implement. The docstrings state the laws; `modelyard.testing.contracts`
holds the contract tests.
"""

import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Generic, Protocol, TypeVar, runtime_checkable

import attrs

from modelyard.domain import job, models, training_run
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.embedding import EmbeddedBatch, EmbeddingRequest
from modelyard.domain.frozen_fast import quick_init
from modelyard.domain.identity import Principal
from modelyard.threads import TenantThreads

__all__ = [
    "ArtifactStore",
    "AsyncBackend",
    "AsyncEmbedder",
    "Authenticator",
    "Backend",
    "Capabilities",
    "Clock",
    "CompletionRequest",
    "Deltas",
    "Detokenizing",
    "DirectUpload",
    "Domain",
    "DomainStep",
    "EmbeddedBatch",
    "Embedder",
    "EmbeddingRequest",
    "Ended",
    "Executor",
    "ExecutorState",
    "Ids",
    "Observer",
    "OpenRun",
    "Randomness",
    "Running",
    "SavedState",
    "ServedModel",
    "Snapshot",
    "Started",
    "Step",
    "StepTrainer",
    "Store",
    "StoredArtifact",
    "Subscription",
    "TokenReading",
    "Tokenizing",
    "TrainContext",
    "TrainItem",
    "Trained",
    "Trainer",
    "Tx",
    "Waiting",
]

T = TypeVar("T")
R = TypeVar("R")


# ---- the store ---------------------------------------------------------------------------------------------------


class Snapshot(Protocol):
    """A consistent view of every record. Records are the declared frozen classes (`domain.record.Record`)."""

    @property
    def time(self) -> float:
        """The store's own clock now, in seconds since the epoch: one clock for all who share the records. It may step
        as a machine's wall clock does. It is the one value that differs when a step runs again."""
        ...

    def get(self, cls: type[R], *key: object) -> R:
        """Return the record with this key. Raises `RecordNotFound`."""
        ...

    def find(self, cls: type[R], unique: str, *values: object) -> R | None:
        """Return the record with these values of a declared unique key, or None. "key" is the record's own key."""
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
        """Return up to `limit` records with the `index` prefix `where`, in index order, after the cursor `after`.
        `after` is `Record.cursor(index, record)`; the record itself need no longer exist. When descending, records
        after the cursor are the smaller ones."""
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
        """Return what `page` would, but only these fields of each record, at least one, in this order. The store need
        not read the other fields, so a scan of many records reads only what it needs."""
        ...

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        """Return how many records have this `index` prefix."""
        ...


class Tx(Snapshot, Protocol):
    """A snapshot that can also be written. A method that raises changes nothing, and the step may continue."""

    def add(self, record: object) -> None:
        """Add a new record, and add it to its total (`Record.totals`). Raises `RecordConflict` when its key or a unique
        key is taken."""
        ...

    def add_all(self, records: Sequence[object]) -> None:
        """Add new records in this order, as `add` does. Raises what it would for the first that is refused."""
        ...

    def replace(self, record: object) -> None:
        """Replace the whole record that has this record's key. Raises `RecordNotFound`, `RecordConflict`."""
        ...

    def remove(self, cls: type[Any], *key: object) -> None:
        """Remove the record with this key. Raises `RecordNotFound`."""
        ...

    def take(self, cls: type[R], index: str, *where: object) -> R | None:
        """Return the first record of this `index` prefix that no other step has taken and not ended; None for none.

        It serves queues: steps that take at once may get different records, without waiting for each other. A step that
        raises gives back what it took. Taken again by the same step, it is the same record, unless the step has changed
        its index values. A `DomainStep` that takes a record stays in the domain of the record, too.
        """
        ...

    def notify(self, topic: str) -> None:
        """Wake the subscribers of this topic, once the step is committed (`Store.subscribe`)."""
        ...


Domain = tuple[str, str]
"""A kind of domain and the name of one: ("job", its id)."""


@quick_init
@attrs.frozen(weakref_slot=False)
class DomainStep(Generic[T]):
    """A step that stays in some domains, so that a store may run it at the same time as steps of other domains.

    It writes records of these `domains` (`Record.domain`), and records that it takes (`Tx.take`). Of all others it only
    reads, and sees what was committed at some time since it began: what it does must be right whatever steps of other
    domains do then. Each of `asks` asks a question that it will ask, so that a store may answer them at once. A store
    that makes no use of this runs it like any other step.
    """

    step: Callable[[Tx], T]
    domains: Collection[Domain]
    asks: Sequence[Callable[[Tx], object]] = ()

    def __call__(self, tx: Tx) -> T:
        """Run the step in a transaction."""
        return self.step(tx)


class Subscription(Protocol):
    """The result of `Store.subscribe`, to be closed."""

    @property
    def live(self) -> bool:
        """Whether notifications of all who share the records arrive now, or only those of this object."""
        ...

    def close(self) -> None:
        """Call `wake` no more, except for a call in progress. Idempotent."""
        ...


class Store(Protocol):
    """Keeps records: mainly `transact` and `read` (docs/explanation/store.md).

    Laws: 1. A step is a pure function of `tx` and of values made before the call; the store may run it again from the
    start. 2. No outcome, value or exception, is returned before the commit of all that it saw. 3. A method of `tx` that
    raises changes nothing; a storage fault that a step catches fails the step anyway. 4. A step that raises undoes only
    itself, even when it shares a commit; one that calls its own store gets a RuntimeError, not a deadlock; `tx` is
    invalid once its step has returned. 5. A read sees whole commits only, and every acknowledged one. Steps may run on
    another caller's thread: no thread-locals, no context variables. A cancelled caller does not undo its step. 6. The
    laws hold for all who share the records, from any object, process or machine. 7. A record with a sequence gets its
    number when it is added: no record appears before one that any reader can have seen, so a reader who continues after
    the last record misses none, and a number is never used again. 8. A string in a key, a unique key or an index has at
    most `stores.conversions_fast.MAX_INDEXED` bytes in UTF-8; a longer one is a ValueError. 9. The laws also hold among
    `DomainStep`s of different domains, if each stays in its own.
    """

    @property
    def blocking(self) -> bool:
        """Whether calls may block; False means that they may be made on an event loop."""
        ...

    @property
    def durability(self) -> str:
        """Which failure an acknowledged record survives: loss of "power", death of the "process", or "none"."""
        ...

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` atomically, serializably and, unless `durable` is False, as durably as the store promises.

        `durable=False` records survive the death of the process and reach the disk with the next durable commit. Raises
        what `step` raises, `StoreBusy`, `StorageFull`, `StoreClosed`, `UsedAfterFork`, and `OutcomeUnknown` if it
        cannot find out whether a commit took place. After any other error nothing was stored.
        """
        ...

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` like `transact`, from a task of an event loop, which it never blocks."""
        ...

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query`, a pure function, on one consistent snapshot. The store may run it again from the start."""
        ...

    def settings_version(self) -> int | None:
        """Return a number that changes with every commit that changes how requests are answered, without waiting.

        These are the commits that add or remove a record with `settings`, or change one of these
        (`domain.record.Record`). A commit of this object counts at once, one of another object within a second. None
        means that it is not known. A value read earlier counts no commit that a later read does not see.
        """
        ...

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        """Have `wake` called soon after each commit of a step that notifies this topic, in any process of the records.

        A notification is a hint: it may come twice, late, without a reason or, rarely, not at all, so a waiting caller
        also looks now and then. `wake` is called in any thread, and must return at once, without a call of the store. A
        topic has at most 200 bytes in UTF-8.
        """
        ...

    def check(self) -> Mapping[str, object]:
        """Write a little, and return facts for the system check: engine, version, durability in force. Raises
        `StoreError` on a fault, `StorageFull` where nothing can be stored."""
        ...

    def sync(self) -> None:
        """Make every acknowledged record as durable as the store promises."""
        ...

    def backup(self, path: str) -> None:
        """Write a consistent copy to `path`, which must not exist, while others continue to read and write."""
        ...

    def close(self) -> None:
        """Close the store. Idempotent. Later calls raise `StoreClosed`."""
        ...


@attrs.frozen
class Month:
    """Records that a store keeps apart: their field `Record.months` is `first` or more, and less than `end`."""

    name: str
    first: str
    end: str


@runtime_checkable
class MonthlyStore(Protocol):
    """A store that keeps the records of each month apart, if `Record.months` is declared. Optional."""

    def months(self, cls: type[Any]) -> Sequence[Month]:
        """Return the months of which it has, or would have, records, the oldest first. Other records are in none."""
        ...

    def month_page(self, cls: type[R], month: Month, after: tuple[object, ...] | None, limit: int) -> Sequence[R]:
        """Return up to `limit` records of a month in the order of their keys, after the key `after`."""
        ...

    def drop_month(self, cls: type[Any], month: Month) -> None:
        """Remove a month with all its records, however many, while no other step runs. Raises `StoreError`."""
        ...


@attrs.frozen
class NextClaim:
    """The claim of the job that is next: of the entity that is furthest behind, which is probably `entity`. `fits` says
    of the needs of ready jobs whether the worker could run such a job now, and `stride` how far a job moves an entity
    of weight 1. The other fields are as in `platform.jobs.claims.Claimant`."""

    entity: str
    fits: "Mapping[job.Needs, bool]"
    stride: int
    now: datetime
    worker_id: str
    process: str
    alone: bool
    suspects: bool
    isolates: bool


@runtime_checkable
class ClaimingStore(Protocol):
    """A store that can claim the job that is next itself, where steps take several round trips. Optional."""

    def claim_next(self, ask: NextClaim) -> "tuple[tuple[job.Job, job.JobProgress] | None, str]":
        """Claim the job that the steps of `platform.jobs.shares` would claim, as they do, or none if in doubt.

        Return it with its progress, or None; and the entity that is next, "" if that is not known. Raises what
        `transact` raises.
        """
        ...


@runtime_checkable
class VerifiableStore(Protocol):
    """A store that can read all that it keeps, to find what is damaged. Optional."""

    def verify(self) -> None:
        """Raise `StoreCorrupt` if anything is damaged. It takes as long as reading everything."""
        ...


# ---- artifacts ---------------------------------------------------------------------------------------------------


@attrs.frozen
class StoredArtifact:
    """An artifact in the store: its random `name`, its `size` in bytes and its SHA-256 `digest` in hex."""

    name: str
    size: int
    digest: str


@attrs.frozen
class DirectUpload:
    """An artifact of `size` bytes that its owner uploads directly: to `addresses`, each by an HTTP PUT. Each address
    takes `part_size` bytes, the last one the rest, in a request with these `headers`. An address is a secret: it lets
    its holder write these bytes. `id` is the store's own name of the upload."""

    name: str
    id: str
    size: int
    part_size: int
    addresses: tuple[str, ...] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict)


class ArtifactStore(Protocol):
    """Keeps checkpoint files and training data, under names that the store generates.

    Laws: an artifact that `put` or `finish` has returned is complete and survives a crash; until then it has no name; a
    name is never reused, and its bytes never change; no string from a client becomes a path. `put` may be called from
    any thread. No method needs memory for a whole artifact or for all names.
    """

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Store the bytes of `chunks`, in constant memory. Raises `StorageFull`, and then keeps none of them."""
        ...

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        """Open an artifact as a readable, seekable file. With a SHA-256 `digest` in hex, all bytes are read and
        compared before it returns. Without one, a store may fetch only the ranges that are read. Raises
        `ArtifactMissing`, also for bytes that differ."""
        ...

    def scratch(self) -> BinaryIO:
        """Open an empty temporary file for reading and writing, which ends when it is closed or the process dies.
        `write` writes all bytes. Raises `StorageFull`, and so does `write`."""
        ...

    def begin(self, size: int) -> DirectUpload | None:
        """Begin an upload of `size` bytes, at least one, that does not pass through this process. Returns None if the
        store has no addresses for so many bytes; `put` them instead. Raises `StoreError`."""
        ...

    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        """Make an artifact of the parts that came. Idempotent. `digest` is the owner's SHA-256 in hex: `open` compares
        it, `finish` only the size. Raises `Conflict` while bytes are missing or too many, and that or `ArtifactMissing`
        when the upload was removed."""
        ...

    def remove(self, name: str) -> None:
        """Remove an artifact. Idempotent. A file that is open stays readable until it is closed; one that is fetched in
        ranges raises `ArtifactMissing`."""
        ...

    def remove_unfinished(self, seconds: float) -> int:
        """Remove the remains of uploads that began so many seconds ago and never ended. Returns how many."""
        ...

    def names(self) -> Iterator[str]:
        """Yield the name of every artifact, in any order, in bounded memory."""
        ...

    def free(self) -> int | None:
        """Return how many bytes of room are left, or None if unknown. Raises `StoreError`."""
        ...

    def check(self) -> None:
        """Prove that artifacts can be written and read. Raises `StoreError`."""
        ...

    def backup(self, folder: str) -> None:
        """Copy every artifact that the folder lacks to a file with its name, synced. Raises `StoreError`. The copy may
        or may not include artifacts that are put or removed meanwhile."""
        ...


# ---- backends ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Capabilities:
    """The abilities of a backend with one model. The platform rejects a request for anything else, naming the
    parameter.

    `parameters` are names of `Sampling` fields that it honours, and of `ANSWER_EXTRAS`. `choices` means that it makes
    the `n` choices of one request itself; otherwise the platform calls it n times. `forced_tools`, `json_mode` and
    `structured_outputs` mean that it really constrains its output, as do "choice" and "regex" in `guided`.
    `synthesises_structure` is for test doubles that answer a forced tool call or a schema with the smallest valid
    instance. `masked_logprobs` means that log-probabilities of a constrained answer are among the allowed tokens only,
    so that training leaves them out. `reasoning` means that it may reason before it answers, and reads the reasoning of
    earlier turns. `embedding_size` is how many numbers an embedding has, 0 for a model that makes none (`Embedder`),
    and `embedding_dimensions` means that a request may ask for fewer. `completions` is False for a model that only
    embeds. `prompts` means that it continues a `prompt`, be it a string or token ids, instead of messages, and
    `prompt_logprobs` that it has the log-probabilities of the prompt's tokens. With `strict_conversations` the platform
    refuses conversations that a vendor would, unless its settings say otherwise.
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
    guided: frozenset[str] = frozenset()
    reasoning: bool = False
    synthesises_structure: bool = False
    trainable: bool = False
    masked_logprobs: bool = False
    embedding_size: int = 0
    embedding_dimensions: bool = False
    completions: bool = True
    prompts: bool = False
    prompt_logprobs: bool = False
    strict_conversations: bool = False


@attrs.frozen
class ServedModel:
    """The model that a request's model name resolves to. `base_model` is the id under which the backend offers it.

    `entry` is the catalogue entry that prices it; its id differs when the host listed the model under another name. A
    trained model adds one checkpoint; `open_file` opens its files for reading, and raises `ArtifactMissing`. `threads`
    are those in which a backend that is called on an event loop may block, on the caller's account. `headers` are for a
    backend that asks another server, such as `traceparent`. Such a backend calls `on_sent(True)` once the server has
    the request, and `on_sent(False)` if it failed: a caller who leaves meanwhile pays for the prompt, as the host does.
    """

    base_model: str
    entry: CatalogueEntry
    checkpoint: "models.Checkpoint | None" = None
    open_file: Callable[[str], BinaryIO] | None = attrs.field(default=None, eq=False)
    threads: TenantThreads | None = attrs.field(default=None, eq=False, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False)
    on_sent: Callable[[bool], object] = attrs.field(default=bool, eq=False, repr=False)


Deltas = Delta | Sequence[Delta]
"""A delta, or a list or tuple of deltas that the backend has made at once, which costs far less."""


class Backend(Protocol):
    """Answers completion requests, synchronously. A router may add `backend_of(model)`, the backend that answers.

    Laws: deltas of one choice come in order; the last has a finish reason; at most `request.max_tokens` tokens a choice
    (the platform has resolved it to a number); `request.n` is 1 unless `choices` is declared. With the same seed the
    answer is the same. Text may come in pieces of any size; when `request.streamed` is False, one piece is best. The
    platform cuts the text at stop strings. Closing the iterator stops the work. Everything that can fail before the
    first token raises from the first `next`. Raises `Overloaded`, `BackendError`, `InvalidInput`.
    """

    @property
    def blocking(self) -> bool:
        """Whether `stream` may block; False means that it may be iterated on an event loop. `capabilities` and
        `prompt_tokens` may then block too, unless the backend adds `counts_in_place = True`."""
        ...

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return the models that it offers to the catalogue. It is called at each request. To change its offer, a
        backend returns another tuple; the same one costs nothing."""
        ...

    def capabilities(self, model: str) -> Capabilities:
        """Return what it can do with the model of this catalogue id."""
        ...

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        """Return how many tokens the prompt has, or None if only the answer reports it (see `Delta.usage`)."""
        ...

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        """Answer the request, delta by delta, or several at once."""
        ...


class AsyncBackend(Protocol):
    """Answers completion requests on an event loop, by the laws of `Backend`, with `astream` instead of `stream`."""

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return the models that it offers, as `Backend.entries` does."""
        ...

    def capabilities(self, model: str) -> Capabilities:
        """Return its abilities, as `Backend.capabilities` does."""
        ...

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        """Count the prompt's tokens, as `Backend.prompt_tokens` does."""
        ...

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Deltas]:
        """Answer the request, as `Backend.stream` does, without blocking."""
        ...


class Embedder(Protocol):
    """The additions to a `Backend` that makes embeddings, for models that declare an `embedding_size`.

    Laws: there is one vector for each input, in order, of `request.dimensions` finite numbers or else of
    `embedding_size`. The same input has the same vector, whatever else is in the request, except for the last digits of
    floats. An input has at most as many tokens as bytes in UTF-8, besides tokens that a tokenizer puts around it.
    Closing the iterator stops the work. Everything that can fail before the first vector raises from the first `next`.
    Raises `Overloaded`, `BackendError`, `InvalidInput`, `ContextLengthExceeded` for an input that is too long.
    """

    def embed(self, request: "EmbeddingRequest", model: ServedModel) -> "Iterator[EmbeddedBatch]":
        """Make the embeddings, as many at once as is best; it may block if `stream` may."""
        ...


class AsyncEmbedder(Protocol):
    """The additions to an `AsyncBackend` that makes embeddings, by the laws of `Embedder`."""

    def aembed(self, request: "EmbeddingRequest", model: ServedModel) -> "AsyncIterator[EmbeddedBatch]":
        """Make the embeddings, on an event loop."""
        ...


class Tokenizing(Protocol):
    """A backend of either kind that knows the tokens of its models' prompts. It may block. A backend that has the
    tokenizers itself is `TokenReading`, one that asks a server `Detokenizing`."""

    def tokens(self, request: CompletionRequest, model: ServedModel) -> Sequence[int]:
        """Return the ids of the prompt's tokens, as many as `prompt_tokens` counts. Raises `InvalidInput`."""
        ...


class TokenReading(Tokenizing, Protocol):
    """A backend that knows the bytes of each token. It may block."""

    def token_bytes(self, ids: Sequence[int], model: ServedModel) -> Sequence[bytes]:
        """Return the bytes that each token stands for in a prompt. Raises `InvalidInput` for an unknown id."""
        ...


class Detokenizing(Tokenizing, Protocol):
    """A backend that knows the text of tokens, though not of each alone. It may block."""

    def text_of_tokens(self, ids: Sequence[int], model: ServedModel) -> str:
        """Return the text that tokens stand for in a prompt. Raises `InvalidInput` for an unknown id."""
        ...


# ---- trainers ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Started:
    """Training begins and will take `steps` gradient steps. Yielded once, also by a resumed run. `about` is what else
    there is to say of it, as JSON: the event has it."""

    steps: int
    about: Mapping[str, Any] = attrs.field(factory=dict, eq=False)


@attrs.frozen
class Step:
    """An optimizer step was made. `number` counts from 1; `metrics` are finite numbers."""

    number: int
    metrics: Mapping[str, float]


@attrs.frozen
class SavedState:
    """The files that a run needs to resume after step `number` as if it had never stopped."""

    number: int
    files: Mapping[str, Iterable[bytes]]


@attrs.frozen
class Trained:
    """The result of training: the files of the new checkpoint, its metrics, and in words why it ended early, if so."""

    files: Mapping[str, Iterable[bytes]]
    metrics: Mapping[str, float]
    stop_reason: str | None = None


TrainItem = Started | Step | SavedState | Trained


@attrs.frozen
class TrainContext:
    """Everything that a trainer may use besides the data.

    `parent` opens files of the checkpoint to start from (`parent_files` are their names; empty for the untouched base).
    `resume_step` is 0, or the step after which to resume, and `resume` opens the saved files. `reference` opens the
    files of the checkpoint that a KL penalty refers to. `held_out` are rows of the method that are not trained on: a
    trainer that can reports their loss, as `valid_loss` of a part of them and `full_valid_loss` of all, on some steps.
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
    held_out: Iterable[Any] = ()


class Trainer(Protocol):
    """Trains as its iterator is read: each item is stored before the next is requested; closing the iterator cancels.

    Laws: the same job, data, parent and seed give the same files, digest for digest, also when the run was interrupted
    and resumed from any `SavedState`. A resumed run yields `Started` again, then only the steps after `resume_step`.
    Data can be iterated more than once. Raises `TrainingError` with a message that suggests what to try.
    """

    def methods(self, base_model: str) -> Collection[str]:
        """Return the methods by which it can train this base model: none for an unknown base model. A job of another
        method is rejected when it is created, so a trainer need not change when the platform adds a method. A mapping
        from each to a subclass of its configuration adds options of the trainer's own."""
        ...

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        """Train by a method that `methods` lists, with that method's configuration and rows.

        "sft" takes an `SFTConfig` and `Example`s, which it imitates in file order, one optimizer step per batch. "rl"
        takes an `RLConfig` and `TrajectoryGroup`s, one optimizer step per packed sequence. "dpo" takes a `DPOConfig`
        and `Preference`s, one optimizer step per batch, against the parent's probabilities.
        """
        ...


class OpenRun(Protocol):
    """An adapter in training: its weights, the optimizer's state, and the gradients of calls since its last step.

    Laws: rows add up: two calls of `accumulate` give the gradients of one with the rows of both. `score` returns the
    same scores as `accumulate`. Equal calls on equal states give equal results and files, digest for digest, also after
    resuming from `state`. A call that raises `InvalidInput` changes nothing. Runs do not affect each other: calls of
    different runs may come from different threads at once, those of one run come one at a time.
    """

    def score(self, rows: "Sequence[training_run.TargetRow]") -> "training_run.Rows":
        """Return the log-probability (nats) of each target, row by row. Changes nothing. Raises `InvalidInput` at
        (number of the row, "inputs" or "targets", place) for what the model cannot read."""
        ...

    def accumulate(
        self, rows: "Sequence[training_run.TargetRow]", objective: "training_run.Objective"
    ) -> "tuple[training_run.Rows, training_run.Loss]":
        """Score the rows, and add the derivatives of the objective to the gradients. Returns scores and loss. Raises
        `InvalidInput` as `score` does, and `TrainingError` for rows that need more memory than there is."""
        ...

    def optim_step(self, params: "training_run.AdamParams") -> Mapping[str, float]:
        """Make one step of AdamW with the gradients so far, which are 0 afterwards. Returns `grad_norm`, unclipped.
        Raises `TrainingError` for a gradient that is not finite; the step is then left out."""
        ...

    def files(self) -> Mapping[str, Iterable[bytes]]:
        """Return a checkpoint's files, as the trainer's jobs write them. They do not change later."""
        ...

    def state(self) -> Mapping[str, Iterable[bytes]]:
        """Return a checkpoint's files and the optimizer's state, without the gradients since its last step."""
        ...

    def close(self) -> None:
        """Release the resources of the run. It is not used again. Idempotent."""
        ...


class StepTrainer(Protocol):
    """The additions to a `Trainer` that trains as its caller directs, call by call."""

    def open_run(
        self,
        base_model: str,
        adapter: "training_run.AdapterConfig",
        files: frozenset[str],
        open_file: Callable[[str], BinaryIO],
    ) -> OpenRun:
        """Open a run on a base model that `methods` knows: from the untouched base, or from the files named.

        They are those of a checkpoint, or of a `state`, of which the optimizer continues; either has the rank and the
        layers of its own adapter. Raises `TrainingError`, and `UnsupportedParameter` for a configuration that the base
        model cannot have, at "rank", "train_mlp", "train_attn" or "train_unembed".
        """
        ...


# ---- executors ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Waiting:
    """The executor has accepted the job and has no room for it yet. The job stays `queued`, for however long. With a
    `fault` it will never have room, as far as it knows: the job is taken back, and tried again later."""

    fault: str = ""


@attrs.frozen
class Running:
    """The job's process runs, or is frozen."""


@attrs.frozen
class Ended:
    """The job's process has ended. `fault` describes the cause, "" for a normal end. `preempted` means that it was
    ended from outside: by a kill, an eviction, the loss of its machine."""

    fault: str = ""
    preempted: bool = False


ExecutorState = Waiting | Running | Ended


class Executor(Protocol):
    """Runs claimed jobs. The store's fencing token makes it harmless to run one twice.

    Laws: an executor that runs jobs in this process calls `run`, and such a job records its own end. Any other executor
    starts a process `python -m modelyard.worker FACTORY JOB_ID`, which takes over the claim. The handle of that process
    is kept in the job's record; if the process ends without recording the job's end, the worker records it. No handle
    is returned twice.
    """

    @property
    def isolates(self) -> bool:
        """Whether a job that needs to be `alone` gets a separate process, so that its death harms no other job."""
        ...

    def submit(self, claim: "job.Claim", run: "Callable[[job.Claim], None]", needs: "job.Needs") -> str:
        """Start the job, or accept it for later. Returns a handle that can be stored. `needs` is what the job needs of
        its process, for an executor that has several kinds of machines. Raises `JobRefused` if it takes others."""
        ...

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the state of each of these handles. An unknown handle has ended."""
        ...

    def cancel(self, handle: str) -> None:
        """End the job by force if that is possible. Idempotent."""
        ...

    def reattach(self, handle: str, alive: bool) -> bool:
        """Return whether the job runs, or ran, outside this process and is to be watched from here, by `states` and
        `cancel`: it was submitted here, or by a worker that is gone. Returns False for an unknown handle. `alive` is
        whether the store knows the worker that submitted it to be alive."""
        ...

    def close(self, leave: bool = False) -> None:
        """End every job that this executor submitted, or return it to the queue, and wait for that in bounded time.
        With `leave`, jobs that can outlive this process continue: another worker reattaches to them."""
        ...


# ---- authentication ----------------------------------------------------------------------------------------------


class Authenticator(Protocol):
    """Authenticates a caller: maps the secret that a client sends over HTTP to the principal who acts.

    Laws: a secret is accepted exactly as it was issued: no part of it, and nothing added. Every other secret, unknown,
    malformed, revoked or expired, is rejected with the same message, which repeats no part of it. A secret that was
    revoked or has expired is rejected at once: the HTTP layer caches an answer for a second, so cache none. Scope and
    limits are the current ones. Every caller has its own `key_id`, under which limits and usage are counted, and its
    scope covers its own entity. May be called from any thread.
    """

    @property
    def blocking(self) -> bool:
        """Whether `authenticate` may block; False means that it may be called on an event loop."""
        ...

    @property
    def longest(self) -> int:
        """How many characters a secret may have. A longer one is rejected without calling `authenticate`."""
        ...

    def authenticate(self, secret: str) -> Principal:
        """Return the principal of a secret, which may be any string. Raises `Unauthenticated`."""
        ...


# ---- time, ids, randomness, events -------------------------------------------------------------------------------


class Clock(Protocol):
    """The source of time, passed in so that tests can control it."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC, for what is stored and shown."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for every decision."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event for at most `seconds`. Returns whether it was set."""
        ...

    def sleep(self, seconds: float, woken: threading.Event | None = None) -> None:
        """Sleep for `seconds`, or until `woken` is set."""
        ...

    async def asleep(self, seconds: float) -> None:
        """Sleep for `seconds` in a task of an event loop, which it never blocks."""
        ...


Ids = Callable[[], str]
"""Makes a new id: a UUIDv7 as a string, so that ids sort by the time at which they were made."""

Randomness = Callable[[int], bytes]
"""Returns a number of random bytes, for keys, seeds and secrets."""

Observer = Callable[[object], None]
"""Receives the typed events of `modelyard.domain.events`, in the thread in which they happen. Must not raise; what it
raises is logged and dropped. Must not block: a job stands still while its observer blocks, and is given back after
`Settings.longest_step` or `longest_row`."""
