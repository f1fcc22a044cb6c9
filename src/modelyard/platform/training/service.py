"""Training jobs: requesting them, and reading their progress and results (specification 4.3)."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Unpack, get_type_hints, overload

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import check_idempotency_key, check_name
from modelyard.domain.job import Job, JobKind, JobStatus, files_of
from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY, Order
from modelyard.domain.training import Dataset, DatasetName, TrainingEvent, TrainingJob
from modelyard.domain.training_config import DistillOptions, DPOOptions, RLOptions, SFTOptions, TrainingConfig
from modelyard.domain.worker import Resources, check_resources
from modelyard.errors import InvalidInput, NotFound, nearest
from modelyard.formats.training_data import DATASETS, RowFormat, group_rows
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.checkpoints.lookup import named_model
from modelyard.platform.extended import Extended
from modelyard.platform.jobs import announced
from modelyard.platform.jobs.events import event_listing
from modelyard.platform.jobs.queue import announce
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing, listed_entity, named_member, named_place
from modelyard.platform.training.data import (
    BaseModelCheck,
    DatasetRows,
    ExampleData,
    GroupData,
    PreferenceData,
    TaughtData,
    any_form,
    check_groups,
    check_rows,
    each_trajectory,
    keep_version,
    named_by_url,
    own,
    readable_rows,
    rows_of,
    store_rows,
    trajectory_reader,
    version_of,
)
from modelyard.platform.training.handle import (
    JobHandle,
    cancel_job,
    found_job,
    narrowest_index,
    resume_job,
    shown,
    shown_job,
    visible,
)
from modelyard.platform.training.methods import METHODS, JobRequest, Method, resolved
from modelyard.platform.training.submission import add_job, new_job, parent_lane, require_offered
from modelyard.platform.training.trajectories import ADVANCES
from modelyard.protocols import Snapshot, StoredArtifact

if TYPE_CHECKING:
    from modelyard.parts.resources import TrainingMembers
else:
    TrainingMembers = object

T = TypeVar("T")
MOST_NAMED = 8
"""Options at most that a refusal lists."""


class Training(Extended, TrainingMembers):
    """The training jobs that a principal may see.

    job = platform.training.sft("bots/support", "examples.jsonl", learning_rate=1e-4)
    checkpoint = job.result()
    """

    AREA: ClassVar[str] = "training."

    # ---- asking for a job

    def sft(
        self,
        model: Model | str,
        data: ExampleData | Dataset | str | os.PathLike[str],
        *,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        **options: Unpack[SFTOptions],
    ) -> JobHandle:
        """Fine-tune a model on examples, in their order. `options` are the fields of `SFTConfig`.

        `model` is a model, its id or its name ("project/name", "entity/project/name"). `data` are examples, as values
        or plain dicts; a dataset or its URL; or, for the host alone, the path of a JSON Lines file. Rows are checked
        now. The same model, URL and configuration requested again while the first job has not ended is that job. With
        an `idempotency_key` (1 to 255 visible ASCII characters) the same request is the same job for ever, whether it
        has ended or not; another request with the key is refused. `needs` are the resources of the job, such as
        `{"accelerators": 1, "memory": 64}` (GiB): a worker that cannot give them leaves the job to others. Raises
        `InvalidInput`, `NotFound`, `Forbidden`, `RateLimited`, `Conflict`, `StorageFull` before the disk is, and
        TypeError for an unknown option."""
        return self.submit(JobKind.SFT, model, data, options, idempotency_key=idempotency_key, needs=needs)

    def rl(
        self,
        model: Model | str,
        groups: GroupData | StoredArtifact | str | os.PathLike[str],
        *,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        **options: Unpack[RLOptions],
    ) -> JobHandle:
        """Train a model on the rewards of its own trajectories. `options` are the fields of `RLConfig`.

        `groups` are values or plain dicts, read as they come; for the host alone, the path of a JSON Lines file; or an
        artifact with them as `formats.training_data` writes them, which belongs to the job unless this raises.
        `idempotency_key` and `needs` are as for `sft`. Raises as `sft` does.
        """
        return self.submit(JobKind.RL, model, groups, options, idempotency_key=idempotency_key, needs=needs)

    def dpo(
        self,
        model: Model | str,
        data: PreferenceData | Dataset | str | os.PathLike[str],
        *,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        **options: Unpack[DPOOptions],
    ) -> JobHandle:
        """Train a model to prefer one answer to another (DPO), on pairs in their order.

        `data` are preferences, in the forms that `sft` takes, and `options` the fields of `DPOConfig`. Rewards are
        measured against the checkpoint that the model has when the job begins: an answer's reward is `beta` times the
        log-ratio of its probabilities. Raises as `sft` does.
        """
        return self.submit(JobKind.DPO, model, data, options, idempotency_key=idempotency_key, needs=needs)

    def distill(
        self,
        model: Model | str,
        data: TaughtData | Dataset | str | os.PathLike[str],
        *,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        **options: Unpack[DistillOptions],
    ) -> JobHandle:
        """Train a model to answer as its teacher would, token by token (arXiv 2306.13649).

        `data` are trajectories, alone or in groups, in the forms that `sft` takes. Each choice has the teacher's log-
        probabilities: its own `logprobs` where the teacher answered, or `teacher_logprobs` where the teacher only
        scored it (`taught`). The more alternatives they have, the more is learned at each token; all other tokens count
        together as one. Both models must have the same tokenizer. `options` are the fields of `DistillConfig`. Raises
        as `sft` does.
        """
        rows = data if isinstance(data, Dataset | str | os.PathLike) else each_trajectory(data)
        return self.submit(JobKind.DISTILL, model, rows, options, idempotency_key=idempotency_key, needs=needs)

    def submit(
        self,
        kind: str,
        model: Model | str,
        data: Iterable[Any] | StoredArtifact | Dataset | str | os.PathLike[str],
        options: Mapping[str, Any] = EMPTY,
        *,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        require_worker: bool = False,
        advances: bool = False,
    ) -> JobHandle:
        """Train a model by the method of this kind, as the method of that name does. With `require_worker`, raises
        `NoWorker` before any data are read if no worker is alive. With `advances`, groups of equal rewards make a step
        all the same, for a client that counts steps."""
        asked = (kind, model, data, options, idempotency_key, needs)
        for part in self._runtime.parts:
            job: JobHandle | None = None if part.submits is None else part.submits(self, *asked)
            if job is not None:
                return job
        method, model = self.method(kind, model)
        check_options(method.kind, method.options, options, method.config)
        request = self._request(method, model, resolved(method.config, options), idempotency_key, needs)
        if require_worker:
            announced.require_worker(self._runtime)
        if isinstance(data, StoredArtifact):
            check_groups(self._runtime.artifacts, data, self._check(request))
            return self._submit(request, {**own(data), **({ADVANCES: True} if advances else {})})
        if isinstance(data, Dataset) or (isinstance(data, str) and "://" in data):
            named = data.url if isinstance(data, Dataset) else data
            return self._submit(request, *self._dataset_named(request, named))
        try:
            stored, rows = self._keep(self._rows(request), data)
        except FileNotFoundError as missing:
            if not isinstance(data, str | os.PathLike):
                raise
            raise named_by_url(self._runtime, request.model, missing) from None
        with remove_unless_recorded(self._runtime.artifacts, stored.name):
            check_rows(request.config, rows)
            return self._submit(request, {**own(stored), "rows": rows})

    # ---- datasets

    def upload(
        self,
        name: str,
        data: DatasetRows | str | os.PathLike[str],
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> Dataset:
        """Store examples or preferences as the next version of a dataset, unless a version has the same rows already.
        Raises `InvalidInput`, `Forbidden`, `StorageFull`."""
        self._runtime.require_room()
        entity, project = named_place(self._runtime, self._principal, entity, project)
        name, began = check_name(name, "name"), self._runtime.clock.monotonic()
        stored, rows = self._keep(DATASETS, data)
        return keep_version(self._runtime, (entity, project, name), stored, rows, began)

    # ---- reading and cancelling

    def job(self, job_id: str) -> JobHandle:
        """Return the handle of a job. Raises `NotFound`."""
        self.get(job_id)
        return JobHandle(self._runtime, self._principal, job_id)

    def get(self, job_id: str) -> TrainingJob:
        """Return one job. Raises `NotFound`."""
        return shown_job(self._runtime, self._principal, job_id)

    @overload
    def events(self, job_id: str, *, order: Order = ..., follow: Literal[False] = ...) -> Listing[TrainingEvent]: ...
    @overload
    def events(self, job_id: str, *, order: Order = ..., follow: Literal[True]) -> Iterator[TrainingEvent]: ...
    def events(self, job_id: str, *, order: Order = "asc", follow: bool = False) -> Iterable[TrainingEvent]:
        """List the events of a job that there are now; with `follow`, yield them live, as its handle does. Raises
        `NotFound`, `InvalidInput`."""
        job = self.job(job_id)
        if follow and order != "asc":
            raise InvalidInput.at("order", msg="must be 'asc' to follow a job")
        if follow:
            return job.events()
        return event_listing(self._runtime, job_id, order)

    def cancel(self, job_id: str) -> TrainingJob:
        """End a job: at once while it waits, at its next step while it runs. Idempotent. Raises `NotFound`."""
        return cancel_job(self._runtime, self._principal, job_id)

    def resume(self, job_id: str) -> JobHandle:
        """Continue a job from its last saved state: one that is paused, or as a new job on the same data one that a
        budget has ended. Raises `NotFound`, `Conflict` for any other, and for one that was continued already,
        `BudgetExceeded`."""
        return JobHandle(self._runtime, self._principal, resume_job(self._runtime, self._principal, job_id).id)

    def list(
        self,
        *,
        model: Model | str | None = None,
        status: JobStatus | str | None = None,
        data: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "asc",
    ) -> Listing[TrainingJob]:
        """List jobs in the order of their creation: all that the caller may see, or those of an entity, a project, a
        model or a status.

        `model` may also be the id of a deleted model. `data` is a dataset's URL, or the SHA-256 of training data: the
        jobs on it, of any model, with the steps that they made. Raises `Forbidden`, `NotFound`, `InvalidInput`.
        """
        entity, status = listed_entity(self._principal, entity, project), named_member(JobStatus, "status", status)
        lane = None if model is None else self._lane(model)
        sees = visible(self._runtime, self._principal)

        def keep(job: Job) -> bool:
            wanted = entity in (None, job.entity) and project in (None, job.project)
            on = data in (None, job.spec.get("digest"), job.spec.get("url"))
            return sees(job) and wanted and on and status in (None, job.status)

        index, *where = narrowest_index(entity, project, lane, status)
        place = partial(self._place, index)

        def show(snapshot: Snapshot, found: Sequence[Job]) -> Sequence[TrainingJob]:
            return shown(self._runtime, snapshot, found, self._runtime.clock.now())

        more: Any = {"keep": keep, "shown": show, "also": () if lane is None else (parent_lane(lane),)}
        return index_listing(self._runtime, Job, index, *where, place=place, order=order, **more)

    # ---- how a job is made

    def method(self, kind: str, model: Model | str) -> tuple[Method, Model]:
        """Return the method of a kind as a model is trained by it, and the model. Raises `NotFound`, `Forbidden`."""
        target = self._model(model)
        return METHODS[kind].of(self._runtime.trainers, target.base_model), target

    def _request(
        self, method: Method, target: Model, config: TrainingConfig, key: str | None, needs: Resources | None
    ) -> JobRequest:
        key = check_idempotency_key(key)
        chosen = check_resources({} if needs is None else needs)
        self._runtime.require_room()
        require_offered(self._runtime, target.base_model, method.kind)
        return JobRequest(method, target, config, key, chosen)

    def _model(self, model: Model | str) -> Model:
        return self._runtime.store.read(lambda snapshot: named_model(snapshot, self._principal, model))

    def _keep(
        self, rows: RowFormat[T], data: Iterable[T | Mapping[str, Any]] | str | os.PathLike[str]
    ) -> tuple[StoredArtifact, int]:
        rows = any_form(self._runtime.parts, rows)
        if not isinstance(data, str | os.PathLike):
            return store_rows(self._runtime.artifacts, rows, rows_of(rows, data))
        if self._principal.scope.entity is not None:
            raise InvalidInput.at("data", msg="only the host may name a file; send a dataset's URL")
        with open(data, "rb") as file:
            return store_rows(self._runtime.artifacts, rows, rows.read(file))

    def _check(self, request: JobRequest) -> BaseModelCheck | None:
        return BaseModelCheck.of(self._runtime, request.model.base_model, request.config)

    def _rows(self, request: JobRequest) -> RowFormat[Any]:
        check = self._check(request)
        if request.method.kind == JobKind.RL:
            read = trajectory_reader(self._runtime.parts, trained=True)
            return group_rows(read if check is None else lambda one: check.trajectory(read(one)))
        return request.method.rows if check is None else check.on(request.method.rows)

    def _dataset_named(self, request: JobRequest, url: str) -> tuple[Mapping[str, Any], str]:
        dataset = self._runtime.store.read(lambda snapshot: self._dataset(snapshot, url))
        rows = readable_rows(self._runtime.artifacts, dataset, request.method.rows, self._check(request))
        check_rows(request.config, rows)
        data = {"dataset_id": dataset.id, "url": dataset.url, "rows": rows, "digest": dataset.digest}
        return data, digest([request.model.id, dataset.url, attrs.asdict(request.config)])

    def _dataset(self, snapshot: Snapshot, url: str) -> Dataset:
        named = DatasetName.parse(url)
        if named is None:
            msg = "must be a dataset's URL, such as modelyard:///<entity>/<project>/<name>:v0"
            raise InvalidInput.at("training_data_url", msg=msg)
        self._principal.require(named.entity, named.project)
        found = version_of(snapshot, named)
        if found is None:
            raise NotFound("Dataset", url)
        return found

    def _submit(self, request: JobRequest, data: Mapping[str, Any], fingerprint: str = "") -> JobHandle:
        return self._add(new_job(self._runtime, self._principal, request, data, fingerprint))

    def _add(self, requested: Job) -> JobHandle:
        """Queue a job, or find the one that an equal request has made: then the files of this one are removed."""
        most = self._runtime.settings.max_queued_jobs
        job = self._runtime.store.transact(lambda tx: add_job(tx, requested, most))
        if job.id == requested.id:
            announce(self._runtime, job)
        else:
            for name in files_of(requested):
                self._runtime.artifacts.remove(name)
        return JobHandle(self._runtime, self._principal, job.id)

    def _lane(self, model: Model | str) -> str:
        if isinstance(model, Model):
            return model.id
        return model if isinstance(model, str) and "/" not in model else self._model(model).id

    def _place(self, index: str, job_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Job, index, found_job(self._runtime, snapshot, self._principal, job_id))


def check_options(kind: str, keywords: type, options: Mapping[str, Any], config: type[TrainingConfig]) -> None:
    asked = ("idempotency_key", "needs")
    known = {*get_type_hints(keywords), *(field.name for field in attrs.fields(config))}
    for name in options:
        if name not in known:
            raise TypeError(
                f"{kind}() has no option {name!r}{config.hint(name, {*known, *asked}) or _its_options(name, config)}"
            )


def _its_options(name: str, config: type[TrainingConfig]) -> str:
    if meant := next((one for one in Resources.__annotations__ if nearest(name, [one], 0.8)), None):
        return f"; give needs={{{meant!r}: ...}}"
    names = [field.name for field in attrs.fields(config)]
    more = ", ..." if len(names) > MOST_NAMED else ""
    return f"; for this base model it has {', '.join(names[:MOST_NAMED])}{more} (modelyard docs reference/training)"
