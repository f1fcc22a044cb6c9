"""Runs and their commands, answers, and samplers."""

from collections.abc import Callable
from functools import partial

import attrs

from modelyard.domain.canonical import digest
from modelyard.errors import InvalidInput
from modelyard.flow import Call, Flow
from modelyard.formats.converter import structure_exactly
from modelyard.http.error_responses import sentence
from modelyard.http.errors import Gone, UnsupportedMedia
from modelyard.http.interface import Auth
from modelyard.http.message import PROTOBUF, Response, json_response
from modelyard.http.route import MAX_EXPORT, Body, Route, RouteCall, documented_route
from modelyard.parts.tinker.command_log import Future
from modelyard.parts.tinker.formats.forward_backward import read_head, read_rows
from modelyard.parts.tinker.formats.sampling import SampleBody, sample_message, sample_request
from modelyard.parts.tinker.http.command_schemas import (
    CancelledAnswer,
    FailedRequest,
    LoadedWeights,
    ModelData,
    NewRun,
    OptimStep,
    Promise,
    RefusedCommand,
    RetrievedAnswer,
    RunInfo,
    SamplerToSave,
    ShownRunInfo,
    StateToSave,
    TryAgain,
    UnloadedRun,
)
from modelyard.parts.tinker.http.rest_routes import runs_of, with_all_members
from modelyard.parts.tinker.http.schemas import (
    JoinedSampler,
    MadeSampler,
    NewSampler,
    SamplerNamed,
    ShownSampler,
)
from modelyard.parts.tinker.interface import TINKER
from modelyard.parts.tinker.records import SAMPLER, CommandKind, FutureStatus
from modelyard.parts.tinker.samplers import AskedSample
from modelyard.parts.tinker.service import TrainingRuns

LONG_POLL = 20.0
"""Seconds that a request for an answer waits; the client itself waits 45."""


# ---- runs and their commands -------------------------------------------------------------------------------------


def create_training_run(call: RouteCall) -> Response:
    """Create a run: a model with an adapter on a base model."""
    body = structure_exactly(NewRun, call.body, "body")
    future = runs_of(call).create(
        body.session_id,
        body.model_seq_id,
        base_model=body.base_model,
        adapter=attrs.asdict(body.lora_config),
        metadata=body.user_metadata,
    )
    return _promise(future)


def load_weights(call: RouteCall) -> Response:
    """Load saved weights into a run, or make a run of them."""
    body, runs = structure_exactly(LoadedWeights, call.body, "body"), runs_of(call)
    match body.session_id, body.model_seq_id, body.model_id, body.seq_id:
        case str() as session_id, int() as number, None, None:
            future = runs.create_from(
                session_id,
                number,
                body.path,
                optimizer=body.optimizer,
                base_model=body.base_model,
                metadata=body.user_metadata,
            )
            return _promise(future)
        case None, None, str() as run_id, int() as number:
            return _promise(_or_refused(runs, run_id, number, partial(_load, runs, run_id, number, body)))
    raise InvalidInput.at("body", "model_id", msg="is needed with seq_id, or session_id with model_seq_id")


def _load(runs: TrainingRuns, run_id: str, number: int, body: LoadedWeights) -> str:
    for name in ("base_model", "user_metadata", "optimizer_config"):
        if getattr(body, name) is not None:
            raise InvalidInput.at("body", name, msg="is of a new run; send it with session_id and model_seq_id")
    return runs.load(run_id, number, body.path, optimizer=body.optimizer)


def forward_backward(call: RouteCall) -> Response:
    """Score rows, and unless `forward_only` add their gradients. The body is protobuf."""
    media = (call.headers.text(b"content-type") or "").partition(";")[0].strip().lower()
    if media != PROTOBUF:
        raise UnsupportedMedia(f"the body must be a ForwardBackwardRequest; send Content-Type: {PROTOBUF}")
    if (call.headers.text(b"content-encoding") or "identity").strip().lower() != "identity":
        raise UnsupportedMedia("the body must not be compressed")
    raw, runs = call.file.read(MAX_EXPORT), runs_of(call)
    head = read_head(raw)
    kind = CommandKind.FORWARD if head.forward_only else CommandKind.FORWARD_BACKWARD

    def add() -> str:
        request = read_rows(raw)
        return runs.command(head.run_id, head.number, kind, {"loss": request.loss, "rows": len(request.rows)}, raw)

    return _promise(_or_refused(runs, head.run_id, head.number, add))


def make_optimizer_step(call: RouteCall) -> Response:
    """Make an optimizer step with the gradients so far."""
    body, runs = structure_exactly(OptimStep, call.body, "body"), runs_of(call)

    def add() -> str:
        if body.optimizer_params is not None:
            msg = f"are of {body.optimizer_params.get('type')!r}; the optimizer is adamw, which reads adam_params"
            raise InvalidInput.at("body", "optimizer_params", msg=msg)
        return runs.command(body.model_id, body.seq_id, CommandKind.OPTIM_STEP, body.adam_params or {})

    return _promise(_or_refused(runs, body.model_id, body.seq_id, add))


def save_weights(call: RouteCall) -> Response:
    """Save the weights of a run with the optimizer's state, under a name."""
    body, runs = structure_exactly(StateToSave, call.body, "body"), runs_of(call)

    def add() -> str:
        return runs.save(
            body.model_id,
            body.seq_id,
            CommandKind.SAVE,
            body.path,
            overwrite=body.overwrite,
            ttl_seconds=body.ttl_seconds,
            metadata=body.user_metadata,
        )

    return _promise(_or_refused(runs, body.model_id, body.seq_id, add))


def save_weights_for_sampler(call: RouteCall) -> Response:
    """Save the weights of a run to sample from: under a name, or at once for a sampling session."""
    body, runs = structure_exactly(SamplerToSave, call.body, "body"), runs_of(call)

    def add() -> str:
        session, name, sampler = body.sampling_session_seq_id, body.path, None
        if (name is None) == (session is None):
            raise InvalidInput.at("body", "path", msg="is needed, or sampling_session_seq_id, and not both")
        if session is not None:
            named = f"{body.model_id.partition(':')[0]}:{SAMPLER}:{session}"
            name, sampler = f"session-{session}", {"id": named, "inflight": body.kind == "inflight"}
        elif body.kind == "inflight":
            raise InvalidInput.at("body", "kind", msg="is inflight, which needs sampling_session_seq_id")
        return runs.save(
            body.model_id,
            body.seq_id,
            CommandKind.SAVE_FOR_SAMPLER,
            name,
            ttl_seconds=body.ttl_seconds,
            metadata=body.user_metadata,
            sampler=sampler,
        )

    return _promise(_or_refused(runs, body.model_id, body.seq_id, add))


def refuse_weights_export(call: RouteCall) -> Response:
    """Refuse to export weights in its turn: the files of a checkpoint are downloaded from the model."""
    body, runs = structure_exactly(RefusedCommand, call.body, "body"), runs_of(call)
    why = "save_weights_external is not supported: download the files of a checkpoint of the model"
    return _promise(runs.command(body.model_id, body.seq_id, CommandKind.REFUSED, {"why": why}))


def unload_training_run(call: RouteCall) -> Response:
    """End a run after the commands that it has."""
    return _promise(runs_of(call).unload(structure_exactly(UnloadedRun, call.body, "body").model_id))


def show_training_run_info(call: RouteCall) -> Response:
    """Show what a run trains."""
    run = runs_of(call).get(structure_exactly(ShownRunInfo, call.body, "body").model_id)
    data = ModelData("causal-lm", run.base_model, runs_of(call).tokenizer_of(run.base_model))
    return with_all_members(RunInfo(run.id, data, run.base_model, run.adapter["rank"]))


def _or_refused(runs: TrainingRuns, run_id: str, number: int, add: Callable[[], str]) -> str:
    """Add a command. One that is refused still has its turn, and fails in it, so that those after it have theirs."""
    try:
        return add()
    except InvalidInput as bad:
        if any(problem.loc[-1:] == ("seq_id",) for problem in bad.problems):
            raise
        return runs.command(run_id, number, CommandKind.REFUSED, {"why": sentence(bad.problems)})


def _promise(future_id: str) -> Response:
    return json_response(Promise(future_id, future_id.rpartition(":")[0]))


# ---- samplers ----------------------------------------------------------------------------------------------------


def create_sampling_session(call: RouteCall) -> Response:
    """Create a sampling session for a base model or saved weights."""
    body = structure_exactly(NewSampler, call.body, "body")
    sampler = runs_of(call).samplers.create(
        body.session_id, body.sampling_session_seq_id, base_model=body.base_model, path=body.model_path
    )
    return with_all_members(MadeSampler(sampler.id))


def join_sampling_session(call: RouteCall) -> Response:
    """Give one more client of a sampling session a number."""
    body = structure_exactly(SamplerNamed, call.body, "body")
    return with_all_members(JoinedSampler(runs_of(call).samplers.join(body.sampling_session_id)))


def show_sampling_session(call: RouteCall) -> Response:
    """Show what a sampling session samples from."""
    sampler = runs_of(call).samplers.get(call.params["sampler_id"])
    return json_response(ShownSampler(sampler.id, sampler.base_model, sampler.path or None))


def sample_tokens(call: RouteCall) -> Flow[Response | None]:
    """Begin to sample."""
    body = yield Call(partial(structure_exactly, SampleBody, call.body, "body"), threads=call.threads)
    samplers = runs_of(call).samplers
    sampler = yield Call(partial(samplers.get, body.sampling_session_id), threads=call.threads)
    request, given = sample_request(body, sampler.model), call.body
    identity = yield Call(partial(digest, given), threads=call.threads)
    future = yield from samplers._begin_sampling(
        sampler, body.seq_id, identity, AskedSample(request, lambda completion: sample_message(completion, given))
    )
    sequences = tuple(f"{future}:{at}" for at in range(body.num_samples))
    return json_response(Promise(future, None, sequences))


def cancel_sampling(call: RouteCall) -> Response:
    """Stop sampling for a request that no one waits for any more."""
    runs_of(call).samplers.cancel(structure_exactly(CancelledAnswer, call.body, "body").request_id)
    return json_response({})


# ---- answers -----------------------------------------------------------------------------------------------------


def retrieve_answer(call: RouteCall) -> Flow[Response | None]:
    """Return the answer to a command or a request to sample; wait for it for a while."""
    body, runs = structure_exactly(RetrievedAnswer, call.body, "body"), runs_of(call)
    found = yield from runs._waiting(body.request_id, LONG_POLL)
    return (yield Call(partial(_answer, runs, found), threads=call.threads))  # type: ignore[no-any-return]


def _answer(runs: TrainingRuns, found: Future) -> Response:
    if found.status is FutureStatus.PENDING:
        return with_all_members(TryAgain(found.id), 408)
    if found.status is FutureStatus.LOST:
        raise Gone(f"{found.id}: {found.error}")
    if found.status is FutureStatus.FAILED:
        return with_all_members(FailedRequest(found.error, found.result.get("category", "user")))
    if found.answer:
        return Response(200, [("content-type", PROTOBUF)], runs.answer_bytes(found))
    return json_response(found.result)


# ---- the table ---------------------------------------------------------------------------------------------------

_route = partial(documented_route, TINKER, Auth.API_KEY)
_post = partial(_route, "POST", body=Body.CONTROL)
_command = partial(_post, response=Promise)
BASE = "/api/v1"

ROUTES: tuple[Route, ...] = (
    _command(f"{BASE}/create_model", create_training_run, request=NewRun),
    _command(f"{BASE}/load_weights", load_weights, request=LoadedWeights),
    _route("POST", f"{BASE}/forward_backward", forward_backward, body=Body.MESSAGE, response=Promise),
    _command(f"{BASE}/optim_step", make_optimizer_step, request=OptimStep),
    _command(f"{BASE}/save_weights", save_weights, request=StateToSave),
    _command(f"{BASE}/save_weights_for_sampler", save_weights_for_sampler, request=SamplerToSave),
    _command(f"{BASE}/save_weights_external", refuse_weights_export, request=RefusedCommand),
    _command(f"{BASE}/unload_model", unload_training_run, request=UnloadedRun),
    _post(f"{BASE}/get_info", show_training_run_info, request=ShownRunInfo, response=RunInfo),
    _post(f"{BASE}/create_sampling_session", create_sampling_session, request=NewSampler, response=MadeSampler),
    _post(f"{BASE}/join_sampling_session", join_sampling_session, request=SamplerNamed, response=JoinedSampler),
    _route("GET", f"{BASE}/samplers/{{sampler_id}}", show_sampling_session, response=ShownSampler),
    _route("POST", f"{BASE}/asample", sample_tokens, body=Body.CHAT, request=SampleBody, response=Promise),
    _post(f"{BASE}/cancel_future", cancel_sampling, request=CancelledAnswer),
    _post(f"{BASE}/retrieve_future", retrieve_answer, request=RetrievedAnswer, coded=True, statuses=(200, 408)),
)
