"""Training data from what was asked and answered, over HTTP: what is declarative of `platform.traffic.collect`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.job import JobKind
from modelyard.domain.training import Dataset
from modelyard.formats.constraints import NAME, Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Auth, Body, Interface, Route, RouteCall, documented_route

_LAST_SECOND = 253402300799
_TIME = {"description": "In Unix seconds."}


@attrs.frozen
class TrafficCollect:
    """The body that collects stored answers into a dataset, and trains a model on it if one is named.

    `model` is what answered: a name as it was requested, a trained model or a checkpoint of one. `score` is the path of
    a value in the payload of feedback; `at_least` is what it must be. `pairs` makes preferences of the best and the
    worst answer to the same messages. `redact` names kinds of text to replace. `holdout` is the part of the
    conversations that is kept apart. `train` is the id or the name of a model, which is then trained with the default
    options of SFT, with `pairs` of DPO.
    """

    name: str = attrs.field(validator=NAME)
    project: str | None = attrs.field(default=None, validator=NAME)
    entity: str | None = attrs.field(default=None, validator=NAME)
    model: str | None = attrs.field(default=None, validator=Length(1, 512))
    sources: tuple[Literal["chat", "responses", "traces"], ...] = ("chat", "responses", "traces")
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    since: int | None = attrs.field(default=None, validator=Within(0, _LAST_SECOND), metadata={"schema": _TIME})
    until: int | None = attrs.field(default=None, validator=Within(0, _LAST_SECOND), metadata={"schema": _TIME})
    score: str | None = attrs.field(default=None, validator=Length(1, 512))
    at_least: float | None = None
    pairs: bool = False
    redact: tuple[Literal["email", "secret", "card", "ip", "phone"], ...] = ()
    holdout: float = attrs.field(default=0.0, validator=Within(0, 0.99))
    limit: int = attrs.field(default=10_000, validator=Within(1, 100_000))
    train: str | None = attrs.field(default=None, validator=Length(1, 512))


@attrs.frozen
class CollectedDataset:
    """A dataset that was collected; training names it by its `url`."""

    url: str
    rows: int
    digest: str


@attrs.frozen
class CollectedTraffic:
    """What was collected: null for a side without rows. `left_out` says how much was not, by the reason."""

    train: CollectedDataset | None
    held_out: CollectedDataset | None
    left_out: Mapping[str, int]
    training_job_id: str | None


def collect(call: RouteCall) -> Response:
    """Collect stored answers into a dataset, and train a model on it if one is named."""
    body = structure_exactly(TrafficCollect, call.body, "body")
    chosen: dict[str, Any] = attrs.asdict(body, recurse=False)
    train, chosen["since"], chosen["until"] = chosen.pop("train"), _time(body.since), _time(body.until)
    if train is not None:
        call.platform.models.get(train)
        call.platform.jobs.require_worker()
    with problems_at("body", data="train"):
        found, job = call.platform.traffic.collect(chosen.pop("name"), **chosen), None
        if train is not None:
            job = call.platform.training.submit(JobKind.DPO if body.pairs else JobKind.SFT, train, found.url)
    shown = _dataset(found.train), _dataset(found.held_out), found.left_out
    return json_response(CollectedTraffic(*shown, None if job is None else job.id))


def _time(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _dataset(made: Dataset | None) -> CollectedDataset | None:
    return None if made is None else CollectedDataset(made.url, made.rows, made.digest)


_route = partial(documented_route, Interface.TRAINING, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route(
        "POST",
        "/v1/preview/traffic-datasets",
        collect,
        body=Body.CONTROL,
        request=TrafficCollect,
        response=CollectedTraffic,
    ),
)
