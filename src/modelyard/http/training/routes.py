"""The routes of the training interface but for its chat completions (specification 4.3)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from modelyard.domain.job import JobStatus
from modelyard.domain.models import Model
from modelyard.domain.paging import Order
from modelyard.errors import InvalidInput, NotFound, NoWorker
from modelyard.formats.converter import structure
from modelyard.formats.json_stream import CHUNK, file_chunks
from modelyard.formats.training_data import read_examples, read_groups
from modelyard.http.message import Response, json_response
from modelyard.http.route import Auth, Body, Call, Handler, Interface, Parameter, Route
from modelyard.http.training.request_schemas import (
    CheckpointsDelete,
    GroupsBody,
    LogCreate,
    ModelCreate,
    RLJobCreate,
    SFTJobCreate,
    options_of,
    places,
    rl_request,
    sft_request,
)
from modelyard.http.training.response_schemas import (
    CheckpointFiles,
    CheckpointPage,
    CheckpointsDeleted,
    DatasetObject,
    Logged,
    ModelDeleted,
    TrainableModel,
    TrainableModelPage,
    TrainingEventPage,
    TrainingJobObject,
    TrainingJobPage,
    checkpoint_object,
    dataset_object,
    event_object,
    files_object,
    job_object,
    model_object,
    page_object,
)
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.jobs.worker import alive
from modelyard.protocols import StoredArtifact

MODELS = "/v1/preview/models"
MODEL = f"{MODELS}/{{model_id}}"
CHECKPOINTS = f"{MODEL}/checkpoints"
FILES = f"{CHECKPOINTS}/{{step}}/files"
JOBS = "/v1/preview/training-jobs"
JOB = f"{JOBS}/{{training_job_id}}"

DEFAULT_PAGE, MAX_PAGE = 20, 100
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")


# ---- models ------------------------------------------------------------------------------------------------------


def create_model(call: Call) -> Response:
    """Create a model, or return the one that has its name."""
    body = structure(ModelCreate, call.body, "body")
    with places("body"):
        model = call.platform.models.create(
            body.name,
            project=body.project,
            base_model=body.base_model,
            entity=body.entity,
            return_existing=body.return_existing,
        )
    return json_response(model_object(model))


def list_models(call: Call) -> Response:
    """List models in the order of their creation."""
    with places("query"):
        page = call.platform.models.list(entity=call.one("entity"), project=call.one("project"), **paging(call))
    return json_response(page_object(page, model_object))


def show_model(call: Call) -> Response:
    """Show a model."""
    return json_response(model_object(call.platform.models.get(call.params["model_id"])))


def delete_model(call: Call) -> Response:
    """Delete a model with its checkpoints, logs and files; its jobs end, and stay readable."""
    gone = call.platform.models.delete(call.params["model_id"])
    return json_response(
        {"model_id": gone.model_id, "deleted_checkpoints": gone.deleted_checkpoints, "deleted_run": gone.deleted_run}
    )


def list_base_models(call: Call) -> Response:
    """List the ids of the models that training can start from."""
    return json_response(list(call.platform.models.base_models()))


# ---- checkpoints -------------------------------------------------------------------------------------------------


def list_checkpoints(call: Call) -> Response:
    """List the checkpoints of a model by step."""
    page = call.platform.models.checkpoints(call.params["model_id"], **paging(call))
    return json_response(page_object(page, checkpoint_object))


def delete_checkpoints(call: Call) -> Response:
    """Delete checkpoints of a model, all that are named or none."""
    body = structure(CheckpointsDelete, call.body, "body")
    with places("body"):
        gone = call.platform.models.delete_checkpoints(call.params["model_id"], body.steps)
    return json_response({"deleted_count": gone.deleted_count, "not_found_steps": list(gone.not_found_steps)})


def list_files(call: Call) -> Response:
    """List the files of a checkpoint."""
    return json_response(files_object(call.platform.models.checkpoint(call.params["model_id"], _step(call))))


def download_file(call: Call) -> Response:
    """Download a file of a checkpoint."""
    models, model_id, name = call.platform.models, call.params["model_id"], call.params["name"]
    checkpoint = models.checkpoint(model_id, _step(call))
    file = FileBody(models.open_file(model_id, checkpoint.step, name))
    size = str(checkpoint.files[name]["size"])
    return Response(200, [("content-type", "application/octet-stream"), ("content-length", size)], file)


def _step(call: Call) -> int:
    text = call.params["step"]
    if not _STEP.fullmatch(text):
        raise NotFound("Checkpoint", text)
    return int(text)


class FileBody:
    """A file as the pieces of a body; it is closed at its end, or when the client goes away."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = b"" if self._file.closed else self._file.read(CHUNK)
        if not chunk:
            self.close()
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


# ---- logs ----------------------------------------------------------------------------------------------------------


def log_to_model(call: Call) -> Response:
    """Keep trajectory groups of a split, such as "val", with their rewards and metrics."""
    model = call.platform.models.get(call.params["model_id"])
    body, stored = _read_groups(call)
    artifacts = call.platform.runtime.artifacts
    try:
        request = structure(LogCreate, body.rest, "body")
        _check_same_model(request, model)
        with artifacts.open(stored.name) as file, places("body"):
            call.platform.models.log(model.id, read_groups(file), request.split)
    finally:
        artifacts.remove(stored.name)
    return json_response({})


def _check_same_model(request: LogCreate, model: Model) -> None:
    if request.model_id is not None and request.model_id.lower() != model.id:
        raise InvalidInput.at("body", "model_id", msg="is not the model of the path; leave it out")


def _read_groups(call: Call) -> tuple[GroupsBody, StoredArtifact]:
    """The body without its groups, and the groups as an artifact, which whoever calls keeps or removes."""
    with _spooled(call) as file:
        body = GroupsBody(file_chunks(file))
        return body, call.platform.runtime.artifacts.put(body.lines())


@contextmanager
def _spooled(call: Call) -> Iterator[BinaryIO]:
    """The raw body as a file, removed afterwards."""
    assert call.data is not None
    artifacts = call.platform.runtime.artifacts
    try:
        with artifacts.open(call.data.name) as file:
            yield file
    finally:
        artifacts.remove(call.data.name)


# ---- jobs ----------------------------------------------------------------------------------------------------------


def create_rl_job(call: Call) -> Response:
    """Create an RL job, which trains a model on the rewards of its trajectories."""
    body, stored = _read_groups(call)
    with remove_unless_recorded(call.platform.runtime.artifacts, stored):
        request = rl_request(body.rest)
        _check_can_run(call, request.model_id)
        with places("body", "experimental_config"):
            job = call.platform.training.rl(request.model_id.lower(), stored, **options_of(request.experimental_config))
    return json_response(job_object(job.refresh()))


def create_sft_job(call: Call) -> Response:
    """Create an SFT job, which fine-tunes a model on a dataset."""
    request = sft_request(call.body)
    _check_can_run(call, request.model_id)
    if "://" not in request.training_data_url:
        raise InvalidInput.at("body", "training_data_url", msg="must be the URL that the upload of a dataset answered")
    with places("body", "config", data="training_data_url", training_data_url="training_data_url"):
        job = call.platform.training.sft(
            request.model_id.lower(), request.training_data_url, **options_of(request.config)
        )
    return json_response(job_object(job.refresh()))


def _check_can_run(call: Call, model_id: str) -> None:
    """Raise `NotFound` for an unknown model, and `NoWorker` when nothing would run a job of it."""
    call.platform.models.get(model_id.lower())
    if not alive(call.platform.runtime):
        raise NoWorker(
            "no worker is alive, so the job would never start; start one (modelyard work --store FILE, "
            "modelyard serve --store FILE --worker, or platform.worker() in Python), then send this again"
        )


def show_job(call: Call) -> Response:
    """Show a training job."""
    return json_response(job_object(call.platform.training.get(call.params["training_job_id"])))


def list_jobs(call: Call) -> Response:
    """List training jobs in the order of their creation."""
    with places("query"):
        page = call.platform.training.list(
            model=call.one("model_id"),
            status=_status(call),
            entity=call.one("entity"),
            project=call.one("project"),
            **paging(call),
        )
    return json_response(page_object(page, job_object))


def _status(call: Call) -> JobStatus | None:
    text = call.one("status")
    if text is not None and text not in list(JobStatus):
        raise InvalidInput.at("status", msg=f"must be one of {', '.join(JobStatus)}", type="literal_error")
    return None if text is None else JobStatus(text)


def list_events(call: Call) -> Response:
    """List the events of a training job in order."""
    page = call.platform.training.events(call.params["training_job_id"], **paging(call))
    return json_response(page_object(page, event_object))


def cancel_job(call: Call) -> Response:
    """Cancel a training job: at once while it waits, at its next step while it runs."""
    return json_response(job_object(call.platform.training.cancel(call.params["training_job_id"])))


# ---- datasets ------------------------------------------------------------------------------------------------------


def upload_dataset(call: Call) -> Response:
    """Keep examples, one JSON object a line, as the next version of a dataset."""
    with _spooled(call) as file, places("query"):
        project, name = _needed(call, "project"), _needed(call, "name")
        with _rows_in_body():
            dataset = call.platform.training.upload(project, name, read_examples(file), entity=call.one("entity"))
    return json_response(dataset_object(dataset))


def _needed(call: Call, name: str) -> str:
    value = call.one(name)
    if value is None:
        raise InvalidInput.at(name, msg="is required", type="missing")
    return value


@contextmanager
def _rows_in_body() -> Iterator[None]:
    """Problems of rows are problems of the body, those of names stay what they are."""
    try:
        yield
    except InvalidInput as wrong:
        if wrong.problems[0].loc[:1] not in (("line",), ("data",)):
            raise
        with places("body"):
            raise


# ---- paging ----------------------------------------------------------------------------------------------------------


def paging(call: Call) -> dict[str, Any]:
    """The arguments that say which part of a listing is asked for. Raises `InvalidInput`."""
    return {
        "after": call.one("after"),
        "limit": call.integer("limit", DEFAULT_PAGE, 1, MAX_PAGE),
        "order": _order(call),
    }


def _order(call: Call) -> Order:
    order = call.one("order")
    if order not in (None, "asc", "desc"):
        raise InvalidInput.at("query", "order", msg="must be 'asc' or 'desc'", type="literal_error")
    return "desc" if order == "desc" else "asc"


PAGING = (
    Parameter("after", description="Go on behind the item with this id."),
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}, "How many."),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}, "In which order."),
)
_PLACE = (
    Parameter("entity", description="The entity; the key's default one when absent."),
    Parameter("project", description="Only this project."),
)
_DATASET = (
    Parameter("entity", description="The entity; the key's default one when absent."),
    Parameter("project", description="The project.", required=True),
    Parameter("name", description="The dataset's name.", required=True),
)
_JOB_FILTERS = (
    Parameter("model_id", description="Only jobs of this model."),
    Parameter("status", {"type": "string", "enum": [status.value for status in JobStatus]}, "Only jobs in this state."),
)


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    summary = (handler.__doc__ or "").partition("\n")[0]
    return Route(method, path, Interface.TRAINING, Auth.BEARER, handler, summary=summary, **more)


ROUTES: tuple[Route, ...] = (
    _route("POST", MODELS, create_model, body=Body.CONTROL, request=ModelCreate, response=TrainableModel),
    _route("GET", MODELS, list_models, query=(*_PLACE, *PAGING), response=TrainableModelPage),
    _route("GET", MODEL, show_model, response=TrainableModel),
    _route("DELETE", MODEL, delete_model, response=ModelDeleted),
    _route("GET", CHECKPOINTS, list_checkpoints, query=PAGING, response=CheckpointPage),
    _route(
        "DELETE",
        CHECKPOINTS,
        delete_checkpoints,
        body=Body.CONTROL,
        request=CheckpointsDelete,
        response=CheckpointsDeleted,
    ),
    _route("GET", FILES, list_files, response=CheckpointFiles),
    _route("GET", f"{FILES}/{{name}}", download_file, media="application/octet-stream"),
    _route("POST", f"{MODEL}/log", log_to_model, body=Body.DATA, request=LogCreate, response=Logged),
    _route("GET", "/v1/preview/base-models", list_base_models, response=tuple[str, ...]),
    _route("POST", JOBS, create_rl_job, body=Body.DATA, request=RLJobCreate, response=TrainingJobObject),
    _route(
        "POST",
        "/v1/preview/sft-training-jobs",
        create_sft_job,
        body=Body.CONTROL,
        request=SFTJobCreate,
        response=TrainingJobObject,
    ),
    _route("GET", JOBS, list_jobs, query=(*_JOB_FILTERS, *_PLACE, *PAGING), response=TrainingJobPage),
    _route("GET", JOB, show_job, response=TrainingJobObject),
    _route("GET", f"{JOB}/events", list_events, query=PAGING, response=TrainingEventPage),
    _route("POST", f"{JOB}/cancel", cancel_job, response=TrainingJobObject),
    _route("POST", "/v1/preview/datasets", upload_dataset, body=Body.DATA, query=_DATASET, response=DatasetObject),
)
