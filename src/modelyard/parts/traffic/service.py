"""Datasets of stored answers, and the lineage of a checkpoint: the answers that it was trained on."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Unpack

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal, check_idempotency_key
from modelyard.domain.job import Job
from modelyard.domain.models import Model
from modelyard.domain.record import Order
from modelyard.domain.training import DatasetName
from modelyard.domain.worker import Resources, check_resources
from modelyard.formats.training_data import read_dataset
from modelyard.parts.traffic.collected import Collected, TrainedRow
from modelyard.parts.traffic.collector import Collector
from modelyard.parts.traffic.handle import CollectionHandle, found_collection, is_visible, shown_collection
from modelyard.parts.traffic.kept_rows import KeptRows
from modelyard.parts.traffic.records import COLLECT_JOB, CollectionJob
from modelyard.parts.traffic.request import CollectOptions, CollectRequest
from modelyard.parts.traffic.traffic_row import TrafficRow
from modelyard.platform.checkpoints.lookup import named_model
from modelyard.platform.extended import Extended
from modelyard.platform.jobs import announced
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.jobs.queue import announce, enqueue
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.models.service import Models
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import cursor_at, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import version_of
from modelyard.protocols import Snapshot

if TYPE_CHECKING:
    from modelyard.parts.resources import TrafficMembers
else:
    TrafficMembers = object


class Traffic(Extended, TrafficMembers):
    """The stored answers of chat, responses and traces, as training data.

    collected = platform.traffic.collect("answers", model="desk/support", score="up", at_least=1, redact=["email"])
    checkpoint = platform.training.sft("desk/support", collected.url).result()
    """

    AREA: ClassVar[str] = "traffic."

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        super().__init__(runtime, principal)

    # ---- collecting

    def collect(
        self, name: str, *, where: Callable[[TrafficRow], bool] | None = None, **options: Unpack[CollectOptions]
    ) -> Collected:
        """Collect stored answers, the newest first, into the next version of the dataset `name`, in this process.

        `model` is the name that was requested, a trained model, or a checkpoint of one ("desk/support:prod"); or a
        variant or a version of one ("variants/desk/support@3"), whose rows say which version answered (`variant`).
        `sources` are some of "chat", "responses" and "traces"; `since` and `until` are times, `where` is a function of
        the row.
        `score` is a path in the payload of feedback, a judge as data (`{"type": "llm_judge", ...}`) or a function of
        the row; with one, answers below `at_least` and those without a score are left out. With `pairs` the rows are
        preferences: of the answers to the same messages the best, if it is good enough, against the worst. `redact` is
        applied to every text before rows are compared; other content is left out then. Equal rows become one row with
        the source of the newest. About the part `holdout` of the conversations becomes the dataset `<name>-held-out`;
        the side of a conversation depends only on its beginning. Reading ends when `limit` different answers are found
        that are good enough. Without a `project`, completions and responses are read from every project of the entity,
        and calls from the default project, where the datasets are written. Nothing is written before all is read; a
        dataset is written whole or not at all. Raises `InvalidInput`, `NotFound`, `Forbidden`, `StorageFull`, and what
        a function or judge raises.
        """
        request = CollectRequest.of(self._runtime, self._principal, name, options, where)
        with KeptRows() as kept:
            collector = Collector(self._runtime, self._principal, request, kept)
            for _ in collector.steps():
                collector.forget_lines()
            return Collected(*collector.finish())

    def submit(
        self,
        name: str,
        *,
        train: Model | str | None = None,
        needs: Resources | None = None,
        idempotency_key: str | None = None,
        require_worker: bool = False,
        **options: Unpack[CollectOptions],
    ) -> CollectionHandle:
        """Queue a job that collects as `collect` does, and then trains the model `train` by SFT, with `pairs` by DPO.

        Answers that are stored from now on are not collected. If its worker is lost, the job continues where it was.
        Functions cannot be conditions of a job. Of `needs`, the collection has the priority, and the training all. The
        same request under one `idempotency_key` is one job. With `require_worker`, raises `NoWorker` if no worker is
        alive. Raises as `collect`, and `RateLimited`, `Conflict`.
        """
        key = check_idempotency_key(idempotency_key)
        request = CollectRequest.of(self._runtime, self._principal, name, options)
        trained = train and self._runtime.store.read(lambda snapshot: named_model(snapshot, self._principal, train))
        if require_worker:
            announced.require_worker(self._runtime)
        self._runtime.require_room()
        fields = check_resources(needs or {})
        asked = {"name": name, "collect": request.plain(), "train": trained.id if trained else None}
        asked |= {"needs": dict(needs)} if needs else {}
        spec = {**asked, "request": digest(asked), "asker": requester_spec(self._runtime, self._principal)}
        job_id, now = self._runtime.ids(), self._runtime.clock.now()
        most, place = self._runtime.settings.max_queued_jobs, (request.entity, request.project)
        requested = Job(job_id, COLLECT_JOB, *place, job_id, now, spec, idempotency_key=key, rank=fields["rank"])
        job = store_texts(self._runtime, request.entity, lambda tx: enqueue(tx, requested, most))
        if job.id == job_id:
            announce(self._runtime, job)
        return CollectionHandle(self._runtime, self._principal, job.id)

    # ---- collections

    def job(self, job_id: str) -> CollectionHandle:
        """Return the handle of a collection. Raises `NotFound`."""
        handle = CollectionHandle(self._runtime, self._principal, job_id)
        handle.refresh()
        return handle

    def list(
        self, *, project: str | None = None, entity: str | None = None, order: Order = "desc"
    ) -> Listing[CollectionJob]:
        """List collections, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """
        index, *where = listed_index(listed_entity(self._principal, entity, project), project)

        def place(id: str, snapshot: Snapshot) -> Cursor:
            return cursor_at(Job, index, found_collection(snapshot, self._principal, id))

        keep = partial(is_visible, self._principal)
        return index_listing(self._runtime, Job, index, *where, place=place, order=order, keep=keep, shown=_shown)

    # ---- lineage

    def lineage(self, model: Model | str, step: int) -> Iterator[TrainedRow]:
        """Yield the rows of the datasets that a checkpoint, and those before it, were trained on, the nearest first.

        Raises `NotFound`.
        """
        for trained in Models(self._runtime, self._principal).lineage(model, step).steps:
            named = None if trained.data_url is None else DatasetName.parse(trained.data_url)
            dataset = named and self._runtime.store.read(partial(version_of, named=named))
            if dataset and self._principal.scope.covers(dataset.entity, dataset.project):
                with self._runtime.artifacts.open(dataset.artifact) as file:
                    for number, row in enumerate(read_dataset(file)):
                        yield TrainedRow(trained.step, dataset.url, number, getattr(row, "sources", ()))


def _shown(snapshot: Snapshot, jobs: Sequence[Job]) -> Sequence[CollectionJob]:
    return [shown_collection(snapshot, job) for job in jobs]
