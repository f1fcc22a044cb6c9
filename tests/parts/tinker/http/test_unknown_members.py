"""Every object of a body of Tinker's client refuses a member that it does not know, at its place."""

import json
from functools import partial
from typing import Any

import attrs
import pytest

from modelyard.errors import InvalidInput
from modelyard.formats.converter import structure_exactly
from modelyard.http.openapi import example_of
from modelyard.http.route import Route
from modelyard.parts.tinker.formats.sampling import SampleBody
from modelyard.parts.tinker.http import rest_routes, routes, session_routes
from modelyard.parts.tinker.http.command_schemas import AdamNumbers, LoadedWeights, NewRun, OptimStep, RefusedCommand
from modelyard.parts.tinker.http.schemas import ReportedEvents
from unknown_members import has_reasons, misspelt, refuses_each_unknown_member, without_effect

FREE = {"user_metadata", "adam_params", "reason", "events"}
BODIES = [
    route
    for module in (rest_routes, routes, session_routes)
    for route in module.ROUTES
    if route.request is not None and "request" in example_of(route)
]
CHUNKS: list[Any] = [{"type": "encoded_text", "tokens": [1, 2]}, {"tokens": []}]
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
            "topk_sample_logprobs": 2,
        },
    ),
    (LoadedWeights, {"path": "p", "optimizer": True, "model_id": "m", "seq_id": 1, "optimizer_config": {}}),
    (AdamNumbers, attrs.asdict(AdamNumbers())),
    (OptimStep, {"model_id": "m", "seq_id": 1, "adam_params": {"any": 1}, "type": "optim_step"}),
]


@pytest.mark.parametrize(("cls", "body"), FULL, ids=lambda one: getattr(one, "__name__", ""))
def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name(cls: Any, body: Any) -> None:
    refuses_each_unknown_member(partial(structure_exactly, cls), body, FREE)


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
    listed = {
        name: reason
        for cls in (ReportedEvents, RefusedCommand, SampleBody)
        for name, reason in without_effect(cls).items()
    }
    has_reasons(listed, "process_uuid", "age_encryption_recipients", "prompt.chunks[].dmel")


@pytest.mark.parametrize("kind", ["image", "image_asset_pointer", "dmel"])
def test_pieces_that_are_not_text_are_refused_by_their_type(kind: str) -> None:
    piece = {"type": kind, "data": "aGk=", "format": "png", "location": "x", "expected_tokens": 4, "dmel": "aGk="}
    body = json.loads(json.dumps(FULL[1][1])) | {"prompt": {"chunks": [piece]}}
    with pytest.raises(InvalidInput, match=r"^prompt\.chunks\.0\.type: is not supported"):
        structure_exactly(SampleBody, body)
