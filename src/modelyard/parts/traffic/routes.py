"""Training data from what was asked and answered, over HTTP: what is declarative of `platform.traffic.collect`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.job import JobStatus
from modelyard.formats.constraints import NAME, Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.body_schemas import NeedsBody, resources_of
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.interfaces import TRAINING
from modelyard.http.listing import NEWEST_FIRST, PageObject, page_class, requested_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.traffic.records import CollectedDataset, CollectionJob

_LAST_SECOND = 253402300799
_TIME = {"description": "In Unix seconds."}


@attrs.frozen
class TrafficCollect:
    """The body that collects stored answers into a dataset, and trains a model on it if one is named.

    `model` is what answered: a name as it was requested, a trained model or a checkpoint of one, a variant or a
    version of one. `score` is the path of
    a value in the payload of feedback, or a judge: an object with the `type` "llm_judge", a `model` and a `prompt`, in
    which `{output}` stands for the answer and `{prompt}` for the last question. `at_least` is what the score must be.
    `pairs` makes preferences of the best and the worst answer to the same messages. `redact` names kinds of text to
    replace. `holdout` is the part of the conversations that is kept apart. `train` is the id or the name of a model,
    which is then trained with the default options of SFT, with `pairs` of DPO. Of
    `needs`, the collection has the priority, and the training all.
    """

    name: str = attrs.field(validator=NAME)
    project: str | None = attrs.field(default=None, validator=NAME)
    entity: str | None = attrs.field(default=None, validator=NAME)
    model: str | None = attrs.field(default=None, validator=Length(1, 512))
    sources: tuple[Literal["chat", "responses", "traces"], ...] = ("chat", "responses", "traces")
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    since: int | None = attrs.field(default=None, validator=Within(0, _LAST_SECOND), metadata={"schema": _TIME})
    until: int | None = attrs.field(default=None, validator=Within(0, _LAST_SECOND), metadata={"schema": _TIME})
    score: str | Mapping[str, Any] | None = attrs.field(default=None, validator=Length(1, 512))
    at_least: float | None = None
    pairs: bool = False
    redact: tuple[Literal["email", "secret", "card", "ip", "phone"], ...] = ()
    holdout: float = attrs.field(default=0.0, validator=Within(0, 0.99))
    limit: int | None = attrs.field(default=None, validator=Within(1, 100_000_000))
    train: str | None = attrs.field(default=None, validator=Length(1, 512))
    needs: NeedsBody | None = None


@attrs.frozen
class TrafficDataset:
    """A job that collects stored answers into datasets. `read` of about `total` answers were read.

    When it has ended, `train` and `held_out` are its datasets, null for one without rows. `left_out` counts what is in
    neither, by the reason. `training_job_id` is the job that trains on `train`. Times are in Unix seconds.
    """

    id: str
    entity: str
    project: str
    name: str
    status: JobStatus
    created_at: int
    started_at: int | None
    ended_at: int | None
    read: int
    total: int | None
    train: CollectedDataset | None
    held_out: CollectedDataset | None
    left_out: Mapping[str, int]
    training_job_id: str | None
    error_message: str | None


def traffic_dataset(job: CollectionJob) -> TrafficDataset:
    """Return a collection as it is shown."""
    shown = attrs.asdict(job, recurse=False)
    times = {name: _seconds(shown[name]) for name in ("created_at", "started_at", "ended_at")}
    return TrafficDataset(**{**shown, **times})


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def _time(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def create_traffic_dataset(call: RouteCall) -> Response:
    """Have a worker collect stored answers into a dataset, and train a model on it if one is named."""
    body, key = structure_exactly(TrafficCollect, call.body, "body"), idempotency_key(call)
    chosen: dict[str, Any] = attrs.asdict(body, recurse=False)
    chosen |= {"since": _time(body.since), "until": _time(body.until)}
    with problems_at("body"):
        chosen["needs"] = None if body.needs is None else resources_of(body.needs)
        handle = call.platform.traffic.submit(chosen.pop("name"), **chosen, idempotency_key=key, require_worker=True)
    return json_response(traffic_dataset(handle.refresh()))


def show_traffic_dataset(call: RouteCall) -> Response:
    """Show a collection of stored answers."""
    return json_response(traffic_dataset(call.platform.traffic.job(call.params["collection_id"]).refresh()))


def cancel_traffic_dataset(call: RouteCall) -> Response:
    """Cancel a collection: at once while it waits, at its next write while it runs."""
    return json_response(traffic_dataset(call.platform.traffic.job(call.params["collection_id"]).cancel()))


def list_traffic_datasets(call: RouteCall) -> Response:
    """List collections of stored answers, the newest first."""
    listing = call.platform.traffic.list
    return json_response(TrafficDatasetPage.of(requested_page(call, lambda order: listing(order=order), "desc")))


TrafficDatasetPage: type[PageObject] = page_class(
    "TrafficDatasetPage", TrafficDataset, traffic_dataset, "Some collections, the newest first."
)

PATH = "/v1/preview/traffic-datasets"
_route = partial(documented_route, TRAINING, Auth.BEARER, response=TrafficDataset)
_ID = {"collection_id": "id"}

ROUTES: tuple[Route, ...] = (
    _route(
        "POST",
        PATH,
        create_traffic_dataset,
        body=Body.CONTROL,
        request=TrafficCollect,
        headers=(IDEMPOTENCY_KEY,),
        links=_ID,
    ),
    documented_route(
        TRAINING, Auth.BEARER, "GET", PATH, list_traffic_datasets, query=NEWEST_FIRST, response=TrafficDatasetPage
    ),
    _route("GET", f"{PATH}/{{collection_id}}", show_traffic_dataset, links=_ID),
    _route("POST", f"{PATH}/{{collection_id}}/cancel", cancel_traffic_dataset),
)
