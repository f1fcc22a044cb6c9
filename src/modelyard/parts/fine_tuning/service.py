"""Fine-tuning: training jobs, requested and shown in the words of the chat format's own clients."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal, check_idempotency_key
from modelyard.domain.job import HELD_OUT, Job, JobEvent, JobKind, files_of
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.record import EMPTY, Order
from modelyard.domain.training_config import TrainingConfig
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.converter import unstructure
from modelyard.parts.fine_tuning import hyperparameters
from modelyard.parts.fine_tuning.graders import reward_of
from modelyard.parts.fine_tuning.records import METHOD_KINDS, REQUEST, FineTuningJob, FineTuningRequest
from modelyard.parts.fine_tuning.shown import as_fine_tuning, full_name, jobs_of, name_of_model
from modelyard.parts.fine_tuning.training_files import TrainingFiles, located
from modelyard.parts.loops import request as loops
from modelyard.parts.loops.part import LOOP
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.checkpoints.lookup import named_model
from modelyard.platform.checkpoints.transactions import checkpoint_place, create
from modelyard.platform.jobs import announced
from modelyard.platform.jobs.events import event_place
from modelyard.platform.jobs.queue import announce, asked_before
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.models.service import Models
from modelyard.platform.paging import (
    check_metadata,
    cursor_at,
    get_or_none,
    index_listing,
    listed_entity,
    listed_index,
    named_place,
)
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import check_not_empty, own
from modelyard.platform.training.handle import cancel_job, found_job, pause_job, resume_job, shown, visible
from modelyard.platform.training.methods import METHODS, JobRequest, Method, resolved
from modelyard.platform.training.submission import add_job, new_job, require_offered
from modelyard.protocols import Snapshot, Tx

NAME_PARTS = 5
"""Parts of a service's name of a tuned model: `ft:<base>:<organization>:<suffix>:<id>`."""


class FineTuning:
    """The training jobs that a principal may see, except those of a loop's rounds.

    file = platform.compat.files.create("train.jsonl", open("train.jsonl", "rb"), purpose="fine-tune") job =
    platform.compat.fine_tuning.create(FineTuningRequest("tabular-mini", file.id))
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal
        self._files = TrainingFiles(runtime, principal)

    # ---- asking for a job

    def create(
        self,
        request: FineTuningRequest,
        *,
        project: str | None = None,
        entity: str | None = None,
        idempotency_key: str | None = None,
        require_worker: bool = False,
    ) -> FineTuningJob:
        """Queue a job that trains a new model, or a trained one further, on an uploaded file.

        The file is checked now, and the job has its own copy. The same request under one `idempotency_key` is one job.
        With `require_worker`, raises `NoWorker` if no worker is alive. Raises as `training.sft` does.
        """
        key = check_idempotency_key(idempotency_key)
        self._runtime.require_room()
        if request.method not in METHOD_KINDS:
            raise InvalidInput.at("method", "type", msg=f"must be one of {', '.join(METHOD_KINDS)}")
        model = self._model(request, *named_place(self._runtime, self._principal, entity, project))
        kind = METHOD_KINDS[request.method]
        trained_by = JobKind.RL if kind == LOOP else kind
        method = METHODS[trained_by].of(self._runtime.trainers, model.base_model)
        given = hyperparameters.checked(request.method, request.hyperparameters, method.config)
        require_offered(self._runtime, model.base_model, trained_by)
        if require_worker:
            announced.require_worker(self._runtime)
        make = self._loop if kind == LOOP else self._batched
        job = make(request, method, model, given, key)
        return self.get(job.id)

    def repeat(
        self,
        record: Mapping[str, Any],
        *,
        model: str,
        training_file: str,
        validation_file: str | None = None,
        project: str | None = None,
        entity: str | None = None,
        idempotency_key: str | None = None,
    ) -> FineTuningJob:
        """Queue the job that the record of a fine-tuning service describes, on files that were uploaded here.

        `record` is the JSON object of a job, as the service's client reads it: its method, hyperparameters, grader,
        suffix, seed and metadata are requested again. Raises as `create` does.
        """
        method = record.get("method") or {}
        kind = str(method.get("type", "supervised"))
        chosen = method.get(kind) or {}
        parts = str(record.get("fine_tuned_model") or "").split(":")
        named = parts[3] if len(parts) == NAME_PARTS else None
        request = FineTuningRequest(
            model,
            training_file,
            method=kind,
            hyperparameters=chosen.get("hyperparameters") or record.get("hyperparameters") or EMPTY,
            grader=chosen.get("grader"),
            validation_file=validation_file,
            suffix=record.get("user_provided_suffix") or named or None,
            seed=record.get("seed"),
            metadata=record.get("metadata") or EMPTY,
        )
        return self.create(request, project=project, entity=entity, idempotency_key=idempotency_key)

    def _model(self, request: FineTuningRequest, entity: str, project: str) -> Model:
        """Return the model to train: a new one, which is not stored yet, or the named one."""
        named = ModelName.parse(request.model)
        if named is None:
            if request.model not in Models(self._runtime, self._principal).trainable():
                known = ", ".join(islice(Models(self._runtime, self._principal).trainable(), 20)) or "none"
                raise InvalidInput.at("model", msg=f"no such model to train; known ones are: {known}")
            model_id = self._runtime.ids()
            name = name_of_model(request.model, request.suffix, model_id)
            return Model(model_id, entity, project, name, request.model, self._runtime.clock.now())
        whole = f"{named.entity}/{named.project}/{named.name}"
        model = self._runtime.store.read(lambda snapshot: named_model(snapshot, self._principal, whole))
        if request.suffix is not None:
            raise InvalidInput.at(
                "suffix", msg="names a new model; a trained one that is trained further keeps its name"
            )
        if named.alias is not None or named.step not in (None, model.last_step):
            msg = f"training continues from the latest checkpoint: {whole}:step{model.last_step}"
            raise InvalidInput.at("model", msg=msg)
        return model

    def _batched(
        self, request: FineTuningRequest, method: Method, model: Model, given: Mapping[str, Any], key: str | None
    ) -> Job:
        artifacts = self._runtime.artifacts
        with _moved({name: ("hyperparameters", name) for name in given}):
            config = resolved(method.config, hyperparameters.options_of(request.method, given))
        with ExitStack() as undone:
            stored, count = self._files.copied(method.kind, model.base_model, request.training_file, "training_file")
            undone.enter_context(remove_unless_recorded(artifacts, stored.name))
            with located("training_file"):
                check_not_empty(count)
            data: dict[str, Any] = {**own(stored), "rows": count}
            rows = 0
            if request.validation_file is not None:
                held_out, rows = self._files.copied(
                    method.kind, model.base_model, request.validation_file, "validation_file"
                )
                undone.enter_context(remove_unless_recorded(artifacts, held_out.name))
                with located("validation_file"):
                    check_not_empty(rows)
                data[HELD_OUT] = {**own(held_out), "rows": rows}
            with _moved({name: ("hyperparameters", name) for name in given}):
                config.check_rows(count, rows)
            job = new_job(self._runtime, self._principal, JobRequest(method, model, config, key, {}), data)
            return self._add(request, given, model, config, job)

    def _loop(
        self, request: FineTuningRequest, method: Method, model: Model, given: Mapping[str, Any], key: str | None
    ) -> Job:
        reward = reward_of(request.grader)
        count = sum(1 for _ in self._files.rows(request.training_file, "training_file"))
        if not count:
            raise InvalidInput.at("training_file", msg="has no rows")
        with _moved({name: ("hyperparameters", name) for name in given}):
            config = loops.resolve(hyperparameters.loop_options_of(given, count), method.config)
        asked = JobRequest(method, model, config, key, {})
        validated = request.validation_file
        held_out = None if validated is None else self._files.rows(validated, "validation_file")
        tasks = self._files.rows(request.training_file, "training_file")
        add = partial(self._add, request, given, model, config)
        places = {"tasks": ("training_file",), "held_out": ("validation_file",), "reward": ("grader",)}
        with _moved(places):
            return loops.new_loop(self._runtime, self._principal, asked, tasks, reward, held_out, add)

    def _add(
        self, request: FineTuningRequest, given: Mapping[str, Any], model: Model, config: TrainingConfig, job: Job
    ) -> Job:
        """Queue a job, with its model if that is new; or find the job that an equal request has made."""
        seed = job.spec["seed"] if request.seed is None else request.seed
        requested = {
            "training_file": request.training_file,
            "validation_file": request.validation_file,
            "method": request.method,
            "grader": None if request.grader is None else dict(request.grader),
            "hyperparameters": hyperparameters.effective(request.method, attrs.asdict(config), given),
            "seed": seed,
            "metadata": dict(request.metadata),
            "suffix": request.suffix,
        }
        spec = {**job.spec, "seed": seed, REQUEST: requested, "request": digest(unstructure(request))}
        job, checkpoint_id = attrs.evolve(job, spec=spec), self._runtime.ids()
        most = self._runtime.settings.max_queued_jobs

        def step(tx: Tx) -> Job:
            known = asked_before(tx, job)
            if known is not None:
                return known
            if get_or_none(tx, Model, model.id) is None:
                create(tx, model, checkpoint_id, False)
            return add_job(tx, job, most)

        queued = self._runtime.store.transact(step)
        if queued.id == job.id:
            announce(self._runtime, queued)
        else:
            for name in files_of(job):
                self._runtime.artifacts.remove(name)
        return queued

    # ---- reading

    def get(self, job_id: str) -> FineTuningJob:
        """Return one job. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._shown(snapshot, [self._found(snapshot, job_id)])[0])

    def list(
        self,
        *,
        metadata: Mapping[str, str] = EMPTY,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "desc",
    ) -> Listing[FineTuningJob]:
        """List jobs, the newest first: all that the caller may see, or those of an entity, a project or metadata.

        Raises `Forbidden`, `InvalidInput`.
        """
        check_metadata(metadata)
        entity = listed_entity(self._principal, entity, project)
        index, *where = listed_index(entity, project)
        place, sees = partial(self._place, index), visible(self._runtime, self._principal)

        def keep(job: Job) -> bool:
            own_metadata = job.spec.get(REQUEST, {}).get("metadata", {})
            return sees(job) and "loop_id" not in job.spec and metadata.items() <= own_metadata.items()

        return index_listing(self._runtime, Job, index, *where, place=place, order=order, keep=keep, shown=self._shown)

    def events(self, job_id: str, *, order: Order = "desc") -> Listing[JobEvent]:
        """List what happened to a job, the newest first. Raises `NotFound`."""
        job = self._runtime.store.read(lambda snapshot: self._found(snapshot, job_id))
        place = partial(event_place, job.id)
        return index_listing(self._runtime, JobEvent, "by_job", job.id, place=place, order=order)

    def checkpoints(self, job_id: str) -> Listing[Checkpoint]:
        """List the checkpoints that a job, or each round of a loop, has made, the newest first. Raises `NotFound`."""
        job = self._runtime.store.read(lambda snapshot: self._found(snapshot, job_id))
        made_by = self._runtime.store.read(lambda snapshot: jobs_of(snapshot, job))
        return index_listing(
            self._runtime,
            Checkpoint,
            "by_model",
            job.subject,
            place=partial(checkpoint_place, job.subject),
            order="desc",
            keep=lambda checkpoint: checkpoint.job_id in made_by,
        )

    def model_name(self, job_id: str) -> str:
        """Return the name of the model that a job trains, without a step. Raises `NotFound`."""
        job = self._runtime.store.read(lambda snapshot: self._found(snapshot, job_id))
        model = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, job.subject))
        return "" if model is None else full_name(model)

    # ---- changing

    def cancel(self, job_id: str) -> FineTuningJob:
        """End a job: at once while it waits, at its next step while it runs. Idempotent. Raises `NotFound`."""
        cancel_job(self._runtime, self._principal, job_id)
        return self.get(job_id)

    def pause(self, job_id: str) -> FineTuningJob:
        """Stop a job until it is resumed: at once while it waits, at its next step while it runs. Idempotent.

        Raises `NotFound`, `Conflict` if the job has ended.
        """
        return self.get(pause_job(self._runtime, self._principal, job_id).id)

    def resume(self, job_id: str) -> FineTuningJob:
        """Continue a paused job, or continue as a new job what a budget has ended. Raises as `training.resume`."""
        return self.get(resume_job(self._runtime, self._principal, job_id).id)

    def delete_model(self, name: str) -> None:
        """Delete a trained model by name: with `:step<N>` that checkpoint, else all of it.

        Raises `NotFound`, `Forbidden`, and `Conflict` if an alias, a job or the catalogue needs it.
        """
        models, named = Models(self._runtime, self._principal), ModelName.parse(name)
        if named is None or named.alias is not None:
            raise NotFound("Model", name)
        whole = f"{named.entity}/{named.project}/{named.name}"
        if named.step is None:
            models.delete(models.get(whole).id)
        elif models.delete_checkpoints(models.get(whole).id, [named.step]).not_found_steps:
            raise NotFound("Model", name)

    # ---- how a job is found and shown

    def _found(self, snapshot: Snapshot, job_id: str) -> Job:
        return found_job(self._runtime, snapshot, self._principal, job_id)

    def _place(self, index: str, job_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Job, index, self._found(snapshot, job_id))

    def _shown(self, snapshot: Snapshot, jobs: Sequence[Job]) -> Sequence[FineTuningJob]:
        faces = shown(self._runtime, snapshot, jobs, self._runtime.clock.now())
        return [as_fine_tuning(snapshot, job, face) for job, face in zip(jobs, faces, strict=True)]


@contextmanager
def _moved(places: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Locate problems at the parameters of this interface."""
    try:
        yield
    except InvalidInput as wrong:
        moved = [
            attrs.evolve(one, loc=(*places.get(str(one.loc[0]), one.loc[:1]), *one.loc[1:])) for one in wrong.problems
        ]
        raise InvalidInput(moved) from None
