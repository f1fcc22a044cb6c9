"""The routes of training jobs and training data (specification 4.3)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from modelyard.domain.job import JobKind, JobStatus
from modelyard.domain.training import Dataset
from modelyard.domain.training_config import TrainingConfig
from modelyard.errors import Forbidden, InvalidInput, NotFound
from modelyard.formats.training_data import read_dataset
from modelyard.http.body_schemas import NeedsBody, resources_of
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.interfaces import TRAINING
from modelyard.http.listing import NAMESPACE, PAGING, requested_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.http.training.schemas import (
    DatasetObject,
    DistillJobCreate,
    DPOJobCreate,
    RLJobCreate,
    SFTJobCreate,
    TrainingEventPage,
    TrainingJobObject,
    TrainingJobPage,
    dataset_object,
    distill_request,
    dpo_request,
    job_object,
    options_of,
    rl_request,
    sft_request,
)
from modelyard.http.trajectory_body import groups_body
from modelyard.platform.training.methods import METHODS
from modelyard.protocols import StoredArtifact

JOBS = "/v1/preview/training-jobs"
JOB = f"{JOBS}/{{training_job_id}}"


# ---- jobs ----------------------------------------------------------------------------------------------------------


def create_rl_job(call: RouteCall) -> Response:
    """Create an RL job, which trains a model on the rewards of its trajectories."""
    key = idempotency_key(call)
    with groups_body(call, trained=True) as (rest, stored):
        own = config_of(call, JobKind.RL, rest)
        body = rl_request(rest, own)
        options = options_of(body.experimental_config, rest.get("experimental_config"), own)
        with problems_at("body", "experimental_config", model="model_id", data="trajectory_groups"):
            return _create(call, JobKind.RL, body.model_id, stored, options, key, body.needs)


def create_sft_job(call: RouteCall) -> Response:
    """Create an SFT job, which fine-tunes a model on a dataset."""
    own = config_of(call, JobKind.SFT, call.body)
    return _create_on_dataset(call, JobKind.SFT, sft_request(call.body, own), own)


def create_dpo_job(call: RouteCall) -> Response:
    """Create a DPO job, which trains a model on a dataset of preferences."""
    own = config_of(call, JobKind.DPO, call.body)
    return _create_on_dataset(call, JobKind.DPO, dpo_request(call.body, own), own)


def create_distill_job(call: RouteCall) -> Response:
    """Create a distillation job, which trains a model to answer as its teacher would."""
    own = config_of(call, JobKind.DISTILL, call.body)
    return _create_on_dataset(call, JobKind.DISTILL, distill_request(call.body, own), own)


def config_of(call: RouteCall, kind: str, body: Any) -> type[TrainingConfig]:
    """Return the configuration by which the model of a body is trained; the method's own if there is no such model."""
    model = body.get("model_id") if isinstance(body, dict) else None
    with suppress(NotFound, Forbidden, InvalidInput):
        return call.platform.training.method(kind, str(model).lower())[0].config
    return METHODS[kind].config


def _create_on_dataset(
    call: RouteCall, kind: str, body: SFTJobCreate | DPOJobCreate | DistillJobCreate, own: type[TrainingConfig]
) -> Response:
    key, url = idempotency_key(call), "training_data_url"
    options = options_of(body.config, call.body.get("config"), own)
    with problems_at("body", "config", data=url, training_data_url=url, model="model_id"):
        if "://" not in body.training_data_url:
            raise InvalidInput.at("data", msg="must be the URL that the upload of a dataset returned")
        return _create(call, kind, body.model_id, body.training_data_url, options, key, body.needs)


def _create(
    call: RouteCall,
    kind: str,
    model_id: str,
    data: str | StoredArtifact,
    options: Mapping[str, Any],
    key: str | None,
    needs: NeedsBody | None,
) -> Response:
    training, model_id = call.platform.training, model_id.lower()
    wanted = None if needs is None else resources_of(needs)
    asked: Any = {"idempotency_key": key, "needs": wanted, "require_worker": True, "advances": kind == JobKind.RL}
    job = training.submit(kind, model_id, data, options, **asked)
    return json_response(job_object(job.refresh()))


def show_training_job(call: RouteCall) -> Response:
    """Show a training job."""
    return json_response(job_object(call.platform.training.get(call.params["training_job_id"])))


def list_training_jobs(call: RouteCall) -> Response:
    """List training jobs in the order of their creation."""
    with problems_at("query"):
        status, entity, project = _status(call), call.one("entity"), call.one("project")
        jobs = partial(call.platform.training.list, model=call.one("model_id"), status=status, data=call.one("data"))
        page = requested_page(call, lambda order: jobs(entity=entity, project=project, order=order))
    return json_response(TrainingJobPage.of(page))


def _status(call: RouteCall) -> JobStatus | None:
    text = call.one("status")
    if text is not None and text not in list(JobStatus):
        raise InvalidInput.at("status", msg=f"must be one of {', '.join(JobStatus)}", type="literal_error")
    return None if text is None else JobStatus(text)


def list_training_events(call: RouteCall) -> Response:
    """List the events of a training job in order."""
    job_id = call.params["training_job_id"]
    page = requested_page(call, lambda order: call.platform.training.events(job_id, order=order))
    return json_response(TrainingEventPage.of(page))


def cancel_training_job(call: RouteCall) -> Response:
    """Cancel a training job: at once while it waits, at its next step while it runs."""
    return json_response(job_object(call.platform.training.cancel(call.params["training_job_id"])))


def resume_training_job(call: RouteCall) -> Response:
    """Continue a training job that a budget has ended, from its last saved state, as a new job."""
    ended = call.platform.training.get(call.params["training_job_id"])
    call.platform.jobs.require_worker()
    return json_response(job_object(call.platform.training.resume(ended.id).refresh()))


# ---- datasets ------------------------------------------------------------------------------------------------------


def upload_dataset(call: RouteCall) -> Dataset:
    """Store rows to train on, one JSON object a line, as the next version of a dataset."""
    with problems_at("query"):
        project, name = _required(call, "project"), _required(call, "name")
        with _rows_in_body():
            examples = read_dataset(call.file)
            return call.platform.training.upload(name, examples, project=project, entity=call.one("entity"))


def _required(call: RouteCall, name: str) -> str:
    value = call.one(name)
    if value is None:
        raise InvalidInput.at(name, msg="is required", type="missing")
    return value


@contextmanager
def _rows_in_body() -> Iterator[None]:
    """Locate the problems of rows in the body; the location of names stays."""
    try:
        yield
    except InvalidInput as wrong:
        if wrong.problems[0].loc[:1] not in (("line",), ("data",)):
            raise
        with problems_at("body"):
            raise


_DATASET = (
    Parameter("entity", description="The entity; the key's default one when absent."),
    Parameter("project", description="The project.", required=True),
    Parameter("name", description="The dataset's name.", required=True),
)
_JOB_FILTERS = (
    Parameter("model_id", description="Only jobs of this model."),
    Parameter("data", description="Only jobs on this data: the URL of a dataset, or the SHA-256 of what was sent."),
    Parameter("status", {"type": "string", "enum": [status.value for status in JobStatus]}, "Only jobs in this state."),
)


_route = partial(documented_route, TRAINING, Auth.BEARER)
_IDS = {"training_job_id": "id", "model_id": "model_id"}
job_route = partial(_route, "POST", response=TrainingJobObject, headers=(IDEMPOTENCY_KEY,), links=_IDS)

ROUTES: tuple[Route, ...] = (
    job_route(JOBS, create_rl_job, body=Body.DATA, request=RLJobCreate),
    job_route("/v1/preview/sft-training-jobs", create_sft_job, body=Body.CONTROL, request=SFTJobCreate),
    job_route("/v1/preview/dpo-training-jobs", create_dpo_job, body=Body.CONTROL, request=DPOJobCreate),
    job_route("/v1/preview/distill-training-jobs", create_distill_job, body=Body.CONTROL, request=DistillJobCreate),
    _route("GET", JOBS, list_training_jobs, query=(*_JOB_FILTERS, *NAMESPACE, *PAGING), response=TrainingJobPage),
    _route("GET", JOB, show_training_job, response=TrainingJobObject, links=_IDS),
    _route("GET", f"{JOB}/events", list_training_events, query=PAGING, response=TrainingEventPage),
    _route("POST", f"{JOB}/cancel", cancel_training_job, response=TrainingJobObject),
    _route("POST", f"{JOB}/resume", resume_training_job, response=TrainingJobObject, links=_IDS),
    _route(
        "POST",
        "/v1/preview/datasets",
        creating(upload_dataset, dataset_object),
        body=Body.DATA,
        query=_DATASET,
        headers=(IDEMPOTENCY_KEY,),
        response=DatasetObject,
    ),
)
