"""Every object of a body of Tinker's client refuses a member that it does not know, at its place."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.domain.training_run import AdamParams, AdapterConfig
from modelyard.errors import InvalidInput
from modelyard.formats.converter import structure_exactly
from modelyard.http.openapi import example_of
from modelyard.http.route import Route
from modelyard.parts.tinker.formats.sampling import SampleBody
from modelyard.parts.tinker.http import rest_routes, routes, session_routes
from modelyard.parts.tinker.http.command_schemas import (
    CancelledAnswer,
    LoadedWeights,
    NewRun,
    OptimStep,
    RefusedCommand,
    RetrievedAnswer,
    SamplerToSave,
    ShownRunInfo,
    StateToSave,
    UnloadedRun,
)
from modelyard.parts.tinker.http.schemas import (
    ClientVersion,
    Expiry,
    NewRunSession,
    NewSampler,
    ReportedEvents,
    SamplerNamed,
    SessionEnd,
    SessionNamed,
    WeightsNamed,
)
from unknown_members import has_reasons, misspelt, objects_in, refuses_each_unknown_member, without_effect

FREE = {"user_metadata", "adam_params", "optimizer_params", "events"}
ROUTES = [*rest_routes.ROUTES, *routes.ROUTES, *session_routes.ROUTES]
BODIES = [route for route in ROUTES if route.request is not None and "request" in example_of(route)]
CHUNKS: list[Any] = [{"type": "encoded_text", "tokens": [1, 2]}, {"tokens": []}]
COMMAND = {"model_id": "m", "seq_id": 1}
SAVED = {**COMMAND, "path": "p", "ttl_seconds": 60, "user_metadata": {"any": "thing"}}
SESSION = {"session_id": "s"}
FULL: list[tuple[Any, dict[str, Any]]] = [
    (
        NewRun,
        {
            "type": "create_model",
            "session_id": "s",
            "model_seq_id": 0,
            "base_model": "m",
            "lora_config": {"rank": 8, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True},
            "optimizer_config": {"type": "adamw"},
            "user_metadata": {"any": {"thing": 1}},
        },
    ),
    (
        SampleBody,
        {
            "type": "sample",
            "prompt": {"chunks": CHUNKS},
            "sampling_params": {"max_tokens": 1, "seed": 1, "stop": "a", "temperature": 1, "top_k": 1, "top_p": 0.5},
            "sampling_session_id": "s",
            "seq_id": 0,
            "num_samples": 2,
            "prompt_logprobs": True,
            "topk_prompt_logprobs": 2,
            "topk_sample_logprobs": 2,
            "prompt_logprobs_last_n": 1,
            "prompt_alt_tokens_k": 0,
            "record_stability_info": False,
        },
    ),
    (LoadedWeights, {"path": "p", "optimizer": True, "type": "load_weights", **COMMAND}),
    (
        LoadedWeights,
        {
            "path": "p",
            "optimizer": True,
            "session_id": "s",
            "model_seq_id": 1,
            "base_model": "m",
            "user_metadata": {"any": 1},
            "optimizer_config": {"type": "adamw"},
        },
    ),
    (AdamParams, attrs.asdict(AdamParams())),
    (AdapterConfig, attrs.asdict(AdapterConfig())),
    (OptimStep, {**COMMAND, "adam_params": {"any": 1}, "type": "optim_step"}),
    (StateToSave, {**SAVED, "overwrite": True, "type": "save_weights"}),
    (SamplerToSave, {**SAVED, "sampling_session_seq_id": 1, "kind": "inflight", "type": "save_weights_for_sampler"}),
    (RefusedCommand, {**COMMAND, "path": "p", "ttl_seconds": 1, "type": "save_weights_external"}),
    (UnloadedRun, {"model_id": "m", "type": "unload_model"}),
    (ShownRunInfo, {"model_id": "m", "type": "get_info"}),
    (RetrievedAnswer, {"request_id": "r", "allow_metadata_only": True}),
    (CancelledAnswer, {"request_id": "r"}),
    (NewSampler, {**SESSION, "sampling_session_seq_id": 1, "base_model": "m", "type": "create_sampling_session"}),
    (SamplerNamed, {"sampling_session_id": "s", "type": "join_sampling_session"}),
    (
        NewRunSession,
        {"tags": ["a"], "user_metadata": {"any": 1}, "sdk_version": "0", "project_id": "p", "display_name": "d"},
    ),
    (SessionNamed, {**SESSION, "type": "session_heartbeat"}),
    (SessionEnd, {"reason": {"type": "errored"}, "detail": "why"}),
    (ClientVersion, {"sdk_version": "0"}),
    (ReportedEvents, {"events": [{"any": 1}], "platform": "p", "sdk_version": "0", **SESSION, "process_uuid": "u"}),
    (Expiry, {"ttl_seconds": 1}),
    (WeightsNamed, {"tinker_path": "p"}),
]


def named(one: Any) -> str:
    return getattr(one, "__name__", "")


@each_case(("cls", "body"), FULL, ids=named)
def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name(cls: Any, body: Any) -> None:
    refuses_each_unknown_member(partial(structure_exactly, cls), body, FREE)


def test_every_body_is_tried() -> None:
    assert {route.request for route in ROUTES if route.request is not None} <= {cls for cls, _ in FULL}


def enumerations(body: Any) -> Iterator[tuple[str, Any]]:
    """Yield each body with a value that one of its enumerations does not have, and the place of it."""
    for place, found in objects_in(body, FREE):
        for name in found.keys() & {"type", "kind"}:
            changed = json.loads(json.dumps(body))
            owner = changed
            for step in place:
                owner = owner[step]
            owner[name] = f"{found[name]}x"
            yield ".".join(map(str, ("body", *place, name))), changed


@each_case(("cls", "body"), FULL, ids=named)
def test_enumerations_take_their_values_only(cls: Any, body: Any) -> None:
    for place, changed in enumerations(body):
        with pytest.raises(InvalidInput) as caught:
            structure_exactly(cls, changed, "body")
        assert [".".join(map(str, problem.loc)) for problem in caught.value.problems] == [place]


@pytest.mark.parametrize("route", BODIES, ids=lambda route: route.path)
def test_each_route_does_so(client: Any, route: Route) -> None:
    example = example_of(route)
    path = route.path.format(**example.get("path", {}))
    changes = [*misspelt(example["request"], FREE)]
    assert changes
    for name, place, changed in changes:
        refused = client.send(route.method, path, changed, check=False)
        loc = ["body", *place.replace("[", ".").replace("]", "").split(".")]
        assert (refused.status, refused.locs) == (422, [loc])
        assert f"'{name}'" in refused.json["detail"][0]["msg"]


@pytest.mark.slow
def test_parameters_of_an_optimizer_step_are_refused_in_its_turn(client: Any) -> None:
    session = client.send("POST", "/api/v1/create_session", {"sdk_version": "0.38.0"}).json["session_id"]
    new = {"session_id": session, "model_seq_id": 0, "base_model": "tabular-mini", "lora_config": {"rank": 4}}
    run = client.send("POST", "/api/v1/create_model", new).json["model_id"]
    step = {"model_id": run, "seq_id": 1, "adam_params": {"learning_rat": 1}}
    promised = client.send("POST", "/api/v1/optim_step", step).json["request_id"]
    with client.platform.worker():
        failed = client.send("POST", "/api/v1/retrieve_future", {"request_id": promised}).json
    assert "learning_rat: is not known; did you mean 'learning_rate'?" in failed["error"]


def test_what_changes_nothing_is_listed_with_a_reason() -> None:
    listed = {name: reason for cls, _ in FULL for name, reason in without_effect(cls).items()}
    has_reasons(listed, "process_uuid", "age_encryption_recipients", "events", "detail", "allow_metadata_only")


@pytest.mark.parametrize("kind", ["image", "image_asset_pointer", "dmel"])
def test_pieces_that_are_not_text_are_refused_by_their_type(kind: str) -> None:
    piece = {"type": kind, "data": "aGk=", "format": "png", "location": "x", "expected_tokens": 4, "dmel": "aGk="}
    body = json.loads(json.dumps(FULL[1][1])) | {"prompt": {"chunks": [piece]}}
    with pytest.raises(InvalidInput, match=r"^prompt\.chunks\.0\.type: is not supported"):
        structure_exactly(SampleBody, body)
    for name in piece.keys() - {"type"}:
        body["prompt"] = {"chunks": [{"tokens": [1], name: piece[name]}]}
        with pytest.raises(InvalidInput, match=rf"^prompt\.chunks\.0\.{name}: is of an image or a sound"):
            structure_exactly(SampleBody, body)
