"""The platform: its resources as one principal sees them, and its lifetime."""

import os
from collections.abc import Callable
from operator import attrgetter
from typing import Self, TypeVar

from modelyard import process_identity
from modelyard.domain import resources
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.identity import Principal, check_name
from modelyard.errors import Forbidden
from modelyard.parts.annotations import service as annotations_service
from modelyard.parts.batches import service as batch_service
from modelyard.parts.batches.files import service as file_service
from modelyard.parts.completions import service as completions_service
from modelyard.parts.embeddings import service as embedding
from modelyard.parts.fine_tuning import service as fine_tuning_service
from modelyard.parts.metrics import service as metrics_service
from modelyard.parts.responses import service as response_service
from modelyard.parts.tinker import service as training_runs_service
from modelyard.parts.torch import records as base_model_domain
from modelyard.parts.torch import service as base_model
from modelyard.parts.traces import service as traces_service
from modelyard.parts.traffic import service as traffic_service
from modelyard.parts.uploads import service as uploads
from modelyard.platform.artifacts import Spool, artifacts_folder
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.chat.booked_request import Tracing
from modelyard.platform.chat.service import Chat
from modelyard.platform.evaluations import service as evaluation
from modelyard.platform.jobs import service as jobs
from modelyard.platform.jobs import worker as worker_service
from modelyard.platform.keys import service as identity
from modelyard.platform.keys import sessions as browser
from modelyard.platform.listing import Listing, short_listing
from modelyard.platform.models import service as model
from modelyard.platform.opened_with import Lifetime, OpenedWith
from modelyard.platform.operations import erasure, event_retention, ledger_retention, run_retention
from modelyard.platform.operations import health as health_service
from modelyard.platform.operations import orphans as sweep_service
from modelyard.platform.runtime import Runtime
from modelyard.platform.training import service as training_service
from modelyard.platform.usage import service as usage_service
from modelyard.protocols import Authenticator, Executor
from modelyard.threads import in_new_thread

R = TypeVar("R")
_id = attrgetter("id")


class Platform(OpenedWith):
    """A model platform in one object, made by `open_platform`.

    Its resources are `catalogue`, `chat`, `responses`, `completions`, `embeddings`, `models`, `training`,
    `training_runs`, `traffic`, `evaluations`, `jobs`, `annotations`, `keys`, `usage`, `uploads`, `files`, `batches`,
    `fine_tuning` and `health`. It is a context manager, synchronous and asynchronous; leaving it closes what
    `open_platform` opened.
    """

    def __init__(self, runtime: Runtime, principal: Principal, life: Lifetime) -> None:
        self._runtime, self._principal, self._life = runtime, principal, life
        self._chat = Chat(runtime, principal)

    def __repr__(self) -> str:
        return f"<Platform of {self._principal.name}, {type(self._runtime.store).__name__}>"

    # ---- resources

    @property
    def catalogue(self) -> Catalogue:
        """The models that requests can name."""
        return self._resource(Catalogue)

    @property
    def chat(self) -> Chat:
        """Completions."""
        self._life.check()
        return self._chat

    @property
    def responses(self) -> "response_service.Responses":
        """Responses, which the platform keeps."""
        return self._resource(response_service.Responses)

    @property
    def embeddings(self) -> "embedding.Embeddings":
        """Vectors of texts."""
        return self._resource(embedding.Embeddings)

    @property
    def completions(self) -> "completions_service.Completions":
        """Prompts that are continued without a chat template, and tokens."""
        return self._resource(completions_service.Completions)

    @property
    def models(self) -> "model.Models":
        """Trainable models and their checkpoints."""
        return self._resource(model.Models)

    @property
    def training(self) -> "training_service.Training":
        """Training jobs."""
        return self._resource(training_service.Training)

    @property
    def training_runs(self) -> "training_runs_service.TrainingRuns":
        """Models that clients train command by command."""
        return self._resource(training_runs_service.TrainingRuns)

    @property
    def evaluations(self) -> "evaluation.Evaluations":
        """Evaluation runs."""
        return self._resource(evaluation.Evaluations)

    @property
    def jobs(self) -> "jobs.Jobs":
        """The queue of training jobs and evaluation runs."""
        return self._resource(jobs.Jobs)

    @property
    def annotations(self) -> "annotations_service.Annotations":
        """Tags and notes on jobs, runs, models and checkpoints."""
        return self._resource(annotations_service.Annotations)

    @property
    def traces(self) -> "traces_service.Traces":
        """Calls that programs trace."""
        return self._resource(traces_service.Traces)

    @property
    def traffic(self) -> "traffic_service.Traffic":
        """Training data from what was asked and answered."""
        return self._resource(traffic_service.Traffic)

    @property
    def keys(self) -> "identity.Keys":
        """API keys."""
        return self._resource(identity.Keys)

    @property
    def usage(self) -> "usage_service.Ledger":
        """Usage, its cost, and budgets."""
        return self._resource(usage_service.Ledger)

    @property
    def uploads(self) -> "uploads.Uploads":
        """Training data that clients upload in several calls."""
        return self._resource(uploads.Uploads)

    @property
    def files(self) -> "file_service.Files":
        """Files that clients keep for later."""
        return self._resource(file_service.Files)

    @property
    def batches(self) -> "batch_service.Batches":
        """Files of requests that a job answers."""
        return self._resource(batch_service.Batches)

    @property
    def fine_tuning(self) -> "fine_tuning_service.FineTuning":
        """Training jobs in the words of fine-tuning services."""
        return self._resource(fine_tuning_service.FineTuning)

    @property
    def health(self) -> "health_service.Health":
        """The health checks."""
        return self._resource(health_service.Health)

    @property
    def metrics(self) -> "metrics_service.Metrics":
        """Figures for Prometheus. Only the host may use it."""
        return self._resource(metrics_service.Metrics)

    def _resource(self, kind: Callable[[Runtime, Principal], R]) -> R:
        self._life.check()
        return kind(self._runtime, self._principal)

    # ---- what it reports

    def trace_with(self, tracing: Tracing | None) -> None:
        """Trace requests and completions, or no longer. Only the host may call this."""
        self._require_host()
        self._runtime.cache.tracing = tracing

    def observe(self, event: object) -> None:
        """Notify the observer. What it raises is logged and changes nothing. Only the host may use it."""
        self._require_host()
        self._runtime.observe(event)

    @property
    def spool(self) -> Spool:
        """The data of calls in progress. Only the host may use it."""
        self._require_host()
        return Spool(self._runtime.artifacts, self._runtime.require_room)

    # ---- views, workers, upkeep

    def acting_as(self, principal: Principal) -> "Platform":
        """Return the platform as another principal sees it. Only the host may call this."""
        self._require_host()
        return Platform(self._runtime, principal, self._life)

    def sessions(self, authenticator: Authenticator | None = None) -> "browser.Sessions":
        """Return the sessions of browsers, whose callers `authenticator` identifies, or else the platform's keys."""
        self._require_host()
        return browser.Sessions(self._runtime, self.keys, authenticator)

    def worker(
        self,
        concurrency: int = 1,
        executor: Executor | None = None,
        *,
        accelerators: int | None = 0,
        memory: int | None = None,
    ) -> "worker_service.Worker":
        """Make a worker for the queue: a context manager that runs up to `concurrency` jobs at a time.

        It gives its jobs so many `accelerators`, and so many GiB of `memory`, at a time, and leaves those that need
        more to other workers; None means any number.
        """
        self._require_host()
        capacity = resources.Capacity(accelerators, memory)
        executor = executor or self._life.executor(concurrency)
        return worker_service.Worker(self._runtime, executor, concurrency, capacity)

    def add_base_model(
        self,
        path: str | os.PathLike[str],
        *,
        id: str,
        name: str | None = None,
        pricing: Pricing = Pricing(),  # noqa: B008 - frozen
        tuning: "base_model_domain.Tuning | None" = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CatalogueEntry:
        """Offer the causal language model in the folder `path`, in the transformers format, and train on it.

        Every file is checked and its digest stored, which reads all weights once: `progress` is called with the bytes
        read and the total. `tuning` sets what training changes, by default an adapter. Other processes offer the model
        when they next open the platform. Adding the same folder again changes nothing.

        Raises `InvalidInput` naming the file at fault, `Conflict` for an id that is taken, `MissingExtra`.
        """
        self._require_host()
        chosen = tuning or base_model_domain.Tuning.LORA
        return base_model.add_base_model(
            self._runtime, path, id, name=name, pricing=pricing, tuning=chosen, progress=progress
        )

    def base_models(self) -> "Listing[base_model_domain.BaseModel]":
        """List the base models in local folders by id."""
        self._require_host()
        return short_listing(lambda: sorted(self._runtime.base_models or (), key=_id), _id, None)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy, the store to `path` and artifacts next to it, while others continue to work.

        Artifacts never change, so they are copied before the store, and those that were added meanwhile after it.
        Raises `FileExistsError` if `path` exists, `StorageFull`, `StoreError`.
        """
        self._require_host()
        if os.path.lexists(path):
            raise FileExistsError(f"{os.fspath(path)} exists; a backup never replaces a file")
        self._runtime.artifacts.backup(artifacts_folder(path))
        self._runtime.store.backup(os.fspath(path))
        self._runtime.artifacts.backup(artifacts_folder(path))

    def delete_entity(self, entity: str) -> int:
        """Delete all data of one entity for ever, its keys, models, jobs, runs and ledger with them.

        Returns how many records were deleted. Running jobs are cancelled first. Safe to call again after a crash.
        """
        self._require_host()
        return erasure.erase_entity(self._runtime, check_name(entity, "entity"))

    def keep_events(self, days: float, export: str | os.PathLike[str] | None = None) -> "event_retention.RemovedEvents":
        """Remove the events of jobs that ended more than so many days ago. The jobs and their results stay.

        They are first appended to the file `export`, one JSON object a line, if that is given. Raises `InvalidInput`.
        """
        self._require_host()
        return event_retention.keep_events(self._runtime, days, export)

    def keep_ledger(self, days: float, export: str | os.PathLike[str] | None = None) -> int:
        """Remove the rows of the ledger that were booked more than so many days ago. Totals and budgets stay.

        They are first appended to the file `export`, as events are. Returns how many. Raises `InvalidInput`.
        """
        self._require_host()
        return ledger_retention.keep_ledger(self._runtime, days, export)

    def keep_runs(self, days: float, export: str | os.PathLike[str] | None = None) -> "run_retention.RemovedRuns":
        """Delete the evaluation runs that ended more than so many days ago, with their predictions and scores.

        They are first appended to the file `export`, as events are. Raises `InvalidInput`.
        """
        self._require_host()
        return run_retention.keep_runs(self._runtime, self.evaluations.runs, days, export)

    def sweep(self, grace: float = 15 * 60.0) -> "sweep_service.OrphanReport":
        """Remove artifacts that no record names, which a crash may leave, and find the records whose artifacts are
        missing, as in a copy that was made without them.

        If there are any, it waits `grace` seconds to distinguish them from artifacts whose record is not yet written.
        A running job that has shown no sign of life in that time is taken from its worker first.
        """
        self._require_host()
        return sweep_service.collect_orphans(self._runtime, grace)

    def sync(self) -> None:
        """Make everything that was acknowledged as durable as the store promises."""
        self._life.check()
        self._runtime.store.sync()

    def close(self) -> None:
        """Sync, and close what was opened with the platform. Idempotent. Raises `StoreError` when it cannot sync."""
        if self._life.closed or process_identity.forks != self._life.forks:
            return
        self._life.closed = True
        self._runtime.threads.close()
        self._life.close()

    def _require_host(self) -> None:
        self._life.check()
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may do this")

    def __enter__(self) -> Self:
        self._life.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._life.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_new_thread(self.close)
