"""The routes of models, their checkpoints, logs and aliases (specification 4.3)."""

import re
from functools import partial

from modelyard.domain.models import Model, TrajectoryLog
from modelyard.domain.promotion import Promotion, check_alias
from modelyard.domain.record import Page
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import TRAINING
from modelyard.http.listing import NAMESPACE, PAGING, requested_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.models.schemas import (
    AliasPage,
    CheckpointFiles,
    CheckpointPage,
    CheckpointsDelete,
    CheckpointsDeleted,
    LogCreate,
    Logged,
    ModelCreate,
    ModelDeleted,
    PromotionCreate,
    PromotionObject,
    PromotionPage,
    TrainableModel,
    TrainableModelPage,
    checkpoints_deleted,
    model_deleted,
    model_object,
    promotion_object,
)
from modelyard.http.response_bodies import download
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.http.trajectory_body import groups_body

MODELS = "/v1/preview/models"
MODEL = f"{MODELS}/{{model_id}}"
CHECKPOINTS = f"{MODEL}/checkpoints"
FILES = f"{CHECKPOINTS}/{{step}}/files"
ALIASES = f"{MODEL}/aliases"
ALIAS = f"{ALIASES}/{{alias}}"

_STEP = re.compile(r"0|[1-9][0-9]{0,17}")


# ---- models ------------------------------------------------------------------------------------------------------


def create_trainable_model(call: RouteCall) -> Model:
    """Create a model, or return the one of that name."""
    body = structure_exactly(ModelCreate, call.body, "body")
    with problems_at("body"):
        return call.platform.models.create(
            body.name,
            project=body.project,
            base_model=body.base_model,
            entity=body.entity,
            return_existing=body.return_existing,
        )


def list_trainable_models(call: RouteCall) -> Response:
    """List models in the order of their creation."""
    with problems_at("query"):
        models, entity, project = call.platform.models, call.one("entity"), call.one("project")
        page = requested_page(call, lambda order: models.list(entity=entity, project=project, order=order))
    return json_response(TrainableModelPage.of(page))


def show_trainable_model(call: RouteCall) -> Response:
    """Show a model."""
    return json_response(model_object(call.platform.models.get(call.params["model_id"])))


def delete_trainable_model(call: RouteCall) -> Response:
    """Delete a model with its checkpoints, logs and files; its jobs end, and stay readable."""
    deleted = call.platform.models.delete(call.params["model_id"])
    return json_response(model_deleted(deleted))


def list_base_models(call: RouteCall) -> Response:
    """List the ids of the models that training can start from."""
    return json_response(list(call.platform.models.trainable()))


# ---- checkpoints -------------------------------------------------------------------------------------------------


def list_checkpoints(call: RouteCall) -> Response:
    """List the checkpoints of a model by step."""
    models, model_id = call.platform.models, call.params["model_id"]
    page = requested_page(call, lambda order: models.checkpoints(model_id, order=order))
    return json_response(CheckpointPage.of(page))


def delete_checkpoints(call: RouteCall) -> Response:
    """Delete checkpoints of a model: all of the named ones, or none."""
    body = structure_exactly(CheckpointsDelete, call.body, "body")
    with problems_at("body"):
        deleted = call.platform.models.delete_checkpoints(call.params["model_id"], body.steps)
    return json_response(checkpoints_deleted(deleted))


def list_checkpoint_files(call: RouteCall) -> Response:
    """List the files of a checkpoint."""
    return json_response(CheckpointFiles.of(call.platform.models.checkpoint(call.params["model_id"], _step(call))))


def download_checkpoint_file(call: RouteCall) -> Response:
    """Download a file of a checkpoint."""
    models, model_id, name = call.platform.models, call.params["model_id"], call.params["name"]
    checkpoint = models.checkpoint(model_id, _step(call))
    return download(models.open_file(model_id, checkpoint.step, name), checkpoint.files[name]["size"])


def _step(call: RouteCall) -> int:
    text = call.params["step"]
    if not _STEP.fullmatch(text):
        raise NotFound("Checkpoint", text)
    return int(text)


# ---- logs ----------------------------------------------------------------------------------------------------------


def log_trajectories(call: RouteCall) -> TrajectoryLog:
    """Store trajectory groups of a split, such as "val", with their rewards and metrics."""
    model = call.platform.models.get(call.params["model_id"])
    with groups_body(call) as (rest, stored):
        request = structure_exactly(LogCreate, rest, "body")
        _check_same_model(request, model)
        with problems_at("body"):
            return call.platform.models.log_trajectories(model.id, stored, request.split)


def _check_same_model(request: LogCreate, model: Model) -> None:
    if request.model_id is not None and request.model_id.lower() != model.id:
        raise InvalidInput.at("body", "model_id", msg="is not the model of the path; leave it out")


# ---- aliases


def list_aliases(call: RouteCall) -> Response:
    """List the aliases of a model by name."""
    aliases = call.platform.models.aliases(call.params["model_id"])
    return json_response(AliasPage.of(Page(tuple(aliases), has_more=False)))


def set_alias(call: RouteCall) -> Response:
    """Point an alias to a checkpoint, if that meets the requirement. Idempotent."""
    body = structure_exactly(PromotionCreate, call.body, "body")
    with problems_at("path"):
        alias = check_alias(call.params["alias"])
    with problems_at("body", "require"):
        require = None if body.require is None else body.require.not_worse()
        change = call.platform.models.promote(call.params["model_id"], body.step, alias, require=require)
    return json_response(promotion_object(change))


def roll_back_alias(call: RouteCall) -> Promotion:
    """Point an alias to the checkpoint that it pointed to before."""
    with problems_at("path"):
        return call.platform.models.rollback(call.params["model_id"], call.params["alias"])


def remove_alias(call: RouteCall) -> Response:
    """Remove an alias; its history stays."""
    with problems_at("path"):
        change = call.platform.models.remove_alias(call.params["model_id"], call.params["alias"])
    return json_response(promotion_object(change))


def list_promotions(call: RouteCall) -> Response:
    """List every change of an alias in order."""
    models, model_id, alias = call.platform.models, call.params["model_id"], call.params["alias"]
    page = requested_page(call, lambda order: models.promotions(model_id, alias, order=order))
    return json_response(PromotionPage.of(page))


_route = partial(documented_route, TRAINING, Auth.BEARER)
_creation = partial(_route, "POST", headers=(IDEMPOTENCY_KEY,))
_ID = {"model_id": "id"}

ROUTES: tuple[Route, ...] = (
    _creation(
        MODELS,
        creating(create_trainable_model, model_object),
        body=Body.CONTROL,
        request=ModelCreate,
        response=TrainableModel,
        links=_ID,
    ),
    _route("GET", MODELS, list_trainable_models, query=(*NAMESPACE, *PAGING), response=TrainableModelPage),
    _route("GET", MODEL, show_trainable_model, response=TrainableModel, links=_ID),
    _route("DELETE", MODEL, delete_trainable_model, response=ModelDeleted),
    _route("GET", CHECKPOINTS, list_checkpoints, query=PAGING, response=CheckpointPage),
    _route(
        "DELETE",
        CHECKPOINTS,
        delete_checkpoints,
        body=Body.CONTROL,
        request=CheckpointsDelete,
        response=CheckpointsDeleted,
    ),
    _route("GET", FILES, list_checkpoint_files, response=CheckpointFiles),
    _route("GET", f"{FILES}/{{name}}", download_checkpoint_file, media="application/octet-stream"),
    _creation(
        f"{MODEL}/log",
        creating(log_trajectories, lambda log: Logged()),
        body=Body.DATA,
        request=LogCreate,
        response=Logged,
    ),
    _route("GET", "/v1/preview/base-models", list_base_models, response=tuple[str, ...]),
    _route("GET", ALIASES, list_aliases, response=AliasPage),
    _route("PUT", ALIAS, set_alias, body=Body.CONTROL, request=PromotionCreate, response=PromotionObject),
    _route("DELETE", ALIAS, remove_alias, response=PromotionObject),
    _creation(f"{ALIAS}/rollback", creating(roll_back_alias, promotion_object), response=PromotionObject),
    _route("GET", f"{ALIAS}/promotions", list_promotions, query=PAGING, response=PromotionPage),
)
