"""Runs and saved weights as Tinker's REST client lists them, as far as it is offered."""

from functools import partial
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.converter import structure_exactly
from modelyard.http.interface import Auth
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.tinker.http.schemas import (
    Expiry,
    Offsets,
    RunList,
    ShownRun,
    ShownWeights,
    WeightsInfo,
    WeightsList,
    WeightsNamed,
)
from modelyard.parts.tinker.interface import TINKER
from modelyard.parts.tinker.records import SCHEME, TrainingRun, WeightsKind
from modelyard.parts.tinker.service import TrainingRuns
from modelyard.parts.tinker.sessions import ListedSlice

MOST = 1000
OFFSETS = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST}, "How many at most."),
    Parameter("offset", {"type": "integer", "minimum": 0}, "After how many."),
    Parameter("access_scope", description="Whose: what the key may see, whatever is named."),
)
_PROJECT = Parameter("project_id", description="Only those of this project.")
SCOPE = OFFSETS[2:]


def runs_of(call: RouteCall) -> TrainingRuns:
    """Return the runs that the caller may see."""
    return call.platform.compat.training_runs


def with_all_members(value: Any, status: int = 200) -> Response:
    """Answer with all members of a value: Tinker's client has other defaults, or none."""
    return json_response(attrs.asdict(value), status)


def offset_and_limit(call: RouteCall, default: int) -> tuple[int, int]:
    """Read after how many a listing begins, and how many it has at most. Raises `InvalidInput`."""
    return call.integer("offset", 0, 0, 2**31), call.integer("limit", default, 1, MOST)


def _cursor(call: RouteCall, found: ListedSlice, default: int) -> Offsets:
    return Offsets(*offset_and_limit(call, default), found.total)


# ---- runs --------------------------------------------------------------------------------------------------------


def list_training_runs(call: RouteCall) -> Response:
    """List training runs, the newest first."""
    runs = runs_of(call)
    found = runs.list(*offset_and_limit(call, 20), call.one("project_id"))
    shown = tuple(_shown(runs, run) for run in found.items)
    return json_response(RunList(shown, _cursor(call, found, 20)))


def show_training_run(call: RouteCall) -> Response:
    """Show a training run."""
    runs = runs_of(call)
    return json_response(_shown(runs, runs.get(call.params["run_id"])))


def _shown(runs: TrainingRuns, run: TrainingRun) -> ShownRun:
    saved = [ShownWeights.of(weights) for weights in runs.weights.of_run(run.id)]
    last = {weights.checkpoint_type: weights for weights in saved}
    return ShownRun(
        run.id,
        run.base_model,
        run.entity,
        True,
        False,
        run.adapter["rank"],
        runs.last_request(run),
        last.get("training"),
        last.get("sampler"),
        dict(run.metadata) or None,
    )


# ---- saved weights -----------------------------------------------------------------------------------------------


def list_weights(call: RouteCall) -> Response:
    """List the saved weights of all runs, the newest first."""
    found = runs_of(call).weights.list(*offset_and_limit(call, 100))
    return json_response(WeightsList(tuple(map(ShownWeights.of, found.items)), _cursor(call, found, 100)))


def list_training_run_weights(call: RouteCall) -> Response:
    """List the saved weights of a run."""
    return json_response(WeightsList(tuple(map(ShownWeights.of, runs_of(call).weights.of_run(call.params["run_id"])))))


def delete_weights(call: RouteCall) -> Response:
    """Delete saved weights."""
    runs_of(call).weights.delete(_path(call))
    return json_response({})


def set_weights_expiry(call: RouteCall) -> Response:
    """Have saved weights expire after so many seconds, or never."""
    body = structure_exactly(Expiry, call.body, "body")
    runs_of(call).weights.set_expiry(_path(call), body.ttl_seconds)
    return json_response({})


def show_weights_info(call: RouteCall) -> Response:
    """Show what a run needs to load weights."""
    runs = runs_of(call)
    weights = runs.weights.get(structure_exactly(WeightsNamed, call.body, "body").tinker_path)
    run = runs.get(weights.run_id)
    layers = (run.adapter["train_unembed"], run.adapter["train_mlp"], run.adapter["train_attn"])
    return json_response(WeightsInfo(run.base_model, True, run.adapter["rank"], *layers))


def _path(call: RouteCall) -> str:
    kind = call.params["kind"]
    if kind not in [*WeightsKind]:
        raise InvalidInput.at("path", "kind", msg=f"must be one of {', '.join(WeightsKind)}")
    return f"{SCHEME}{call.params['run_id']}/{kind}/{call.params['name']}"


# ---- the table ---------------------------------------------------------------------------------------------------

_route = partial(documented_route, TINKER, Auth.API_KEY)
BASE = "/api/v1"
_RUN = f"{BASE}/training_runs/{{run_id}}"
_WEIGHTS = f"{_RUN}/checkpoints/{{kind}}/{{name}}"


ROUTES: tuple[Route, ...] = (
    _route("GET", f"{BASE}/training_runs", list_training_runs, response=RunList, query=(*OFFSETS, _PROJECT)),
    _route("GET", _RUN, show_training_run, response=ShownRun, query=SCOPE),
    _route("GET", f"{_RUN}/checkpoints", list_training_run_weights, response=WeightsList),
    _route("DELETE", _WEIGHTS, delete_weights),
    _route("PUT", f"{_WEIGHTS}/ttl", set_weights_expiry, body=Body.CONTROL, request=Expiry),
    _route("GET", f"{BASE}/checkpoints", list_weights, response=WeightsList, query=OFFSETS),
    _route(
        "POST",
        f"{BASE}/weights_info",
        show_weights_info,
        body=Body.CONTROL,
        request=WeightsNamed,
        response=WeightsInfo,
    ),
)
