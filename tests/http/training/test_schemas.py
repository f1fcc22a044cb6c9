"""The training interface's bodies: strict, every problem named, what cannot be honoured refused by name."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.job import JobKind, JobStatus
from modelyard.domain.models import Model
from modelyard.domain.record import Page
from modelyard.domain.training import TrainingEvent, TrainingJob
from modelyard.domain.training_config import RLConfig
from modelyard.errors import InvalidInput, UnsupportedParameter
from modelyard.formats.converter import structure, unstructure
from modelyard.formats.training_data import read_groups
from modelyard.formats.trajectories import group_of
from modelyard.http.message import problems_at
from modelyard.http.models.schemas import ModelCreate, TrainableModelPage, model_object
from modelyard.http.training.schemas import (
    RLOptionsBody,
    event_object,
    job_object,
    options_of,
    rl_request,
    sft_request,
)
from modelyard.http.trajectory_body import GroupsBody

CAPTURES = Path(__file__).parents[2] / "captures" / "training"
ID = "01a1fdba-3701-7000-9bbe-63a17706fc6b"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def rl(**config: Any) -> dict[str, Any]:
    return {"model_id": ID, "trajectory_groups": [], "experimental_config": config}


def sft(**config: Any) -> dict[str, Any]:
    return {"model_id": ID, "training_data_url": "modelyard:///e/p/n:v0", "config": config}


def problems(ask: Any, body: Any) -> dict[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as caught:
        ask(body)
    return {problem.loc: problem.msg for problem in caught.value.problems}


def captured(name: str) -> list[dict[str, Any]]:
    (path,) = CAPTURES.glob(f"{name}-*.json")
    return [exchange["request"]["body"] for exchange in json.loads(path.read_text())["exchanges"]]


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["10", "11", "12"])
def test_the_options_that_a_public_client_sends_are_taken(name: str) -> None:
    body = captured(name)[0]
    request = rl_request(body | {"trajectory_groups": []})
    sent = {key: value for key, value in (body.get("experimental_config") or {}).items() if value is not None}
    assert options_of(request.experimental_config) == sent


def test_the_options_of_the_wire_are_those_of_the_configuration() -> None:
    wire = {field.name for field in attrs.fields(RLOptionsBody)}
    assert wire == {field.name for field in attrs.fields(RLConfig)} | {"loss_fn"}


NEUTRAL = [None, False, 0, 0.0]


@each_case("value", NEUTRAL)
def test_an_option_that_we_lack_is_accepted_at_its_neutral_value(value: object) -> None:
    assert options_of(rl_request(rl(future_option=value)).experimental_config) == {}
    assert options_of(sft_request(sft(future_option=value)).config) == {}
    assert sft_request({**sft(), "experimental_config": {"future_option": value}})


@each_case("value", [True, 1, -0.5, "", "off", [], {}])
def test_an_option_that_we_lack_is_refused_by_name_where_it_would_matter(value: object) -> None:
    assert problems(rl_request, rl(future_option=value)).keys() == {("body", "experimental_config", "future_option")}
    assert problems(sft_request, sft(future_option=value)).keys() == {("body", "config", "future_option")}
    both = sft(future_option=value) | {"experimental_config": {"another": value}}
    assert problems(sft_request, both).keys() == {
        ("body", "config", "future_option"),
        ("body", "experimental_config", "another"),
    }


def test_options_without_effect_are_always_accepted() -> None:
    assert rl_request(rl(plot_tensors=True, metric_logging="all", logprob_calculation_chunk_size=512))
    assert rl_request(rl(kl_penalty_source="current_learner"))
    assert problems(rl_request, rl(kl_penalty_source="sampler"))


@each_case("value", ["", False, 0, "/path"])
def test_a_path_of_the_server_is_never_taken(value: object) -> None:
    assert problems(rl_request, rl(kl_ref_adapter_path=value))
    assert rl_request(rl(kl_ref_adapter_path=None))


def resolved(body: Any) -> RLConfig:
    return RLConfig.resolve(options_of(rl_request(body).experimental_config))


def test_ppo_and_loss_fn_may_agree_but_not_differ() -> None:
    assert resolved(rl(ppo=True, loss_fn="ppo")).ppo
    assert not resolved(rl(loss_fn="cispo")).ppo
    assert problems(resolved, rl(ppo=True, loss_fn="cispo")).keys() == {("loss_fn",)}
    assert problems(rl_request, rl(loss_fn="dro")).keys() == {("body", "experimental_config", "loss_fn")}


def test_all_problems_are_named_at_once() -> None:
    body = rl(learning_rate="fast", ppo=1, epsilon=True, future_option="x") | {"model_id": "no-id"}
    found = problems(rl_request, body)
    config = ("body", "experimental_config")
    assert found.keys() == {
        (*config, "learning_rate"),
        (*config, "ppo"),
        (*config, "epsilon"),
        (*config, "future_option"),
        ("body", "model_id"),
    }
    assert problems(rl_request, {}).keys() == {("body", "model_id"), ("body", "trajectory_groups")}
    assert problems(rl_request, []).keys() == {("body",)}
    bounds = problems(resolved, rl(learning_rate=-1.0, advantage_balance=2, packed_sequence_length=0))
    assert bounds.keys() == {("learning_rate",), ("advantage_balance",), ("packed_sequence_length",)}


def test_sft_options_keep_their_types() -> None:
    request = sft_request(sft(learning_rate=[1e-4, 5e-5], batch_size="auto", assistant_turns="last"))
    assert options_of(request.config) == {
        "learning_rate": (1e-4, 5e-5),
        "batch_size": "auto",
        "assistant_turns": "last",
    }
    found = problems(sft_request, sft(learning_rate=[1e-4, "x"], batch_size=2.0, assistant_turns="first"))
    assert found.keys() == {
        ("body", "config", "learning_rate", 1),
        ("body", "config", "batch_size"),
        ("body", "config", "assistant_turns"),
    }


@each_case("name", ["", "a b", "a/b", "..", "x" * 129, "é", "a\n"])
def test_names_have_an_alphabet(name: str) -> None:
    body = {"project": name, "name": name, "base_model": "b", "entity": name}
    found = problems(lambda body: structure(ModelCreate, body, "body"), body)
    assert found.keys() == {("body", "project"), ("body", "name"), ("body", "entity")}


# ---- places --------------------------------------------------------------------------------------------------------


def moved(*loc: str | int) -> tuple[str | int, ...]:
    with pytest.raises(UnsupportedParameter) as caught, problems_at("body", "config", data="training_data_url"):
        raise UnsupportedParameter.at(*loc, msg="no")
    return caught.value.problems[0].loc


def test_problems_of_a_use_case_get_the_places_of_the_client() -> None:
    assert moved("learning_rate", 1) == ("body", "config", "learning_rate", 1)
    assert moved("data", 3) == ("body", "training_data_url", 3)
    assert moved("body", "x") == ("body", "x")
    assert moved("query", "x") == ("query", "x")
    assert moved() == ("body", "config")


# ---- large bodies --------------------------------------------------------------------------------------------------


def cut(raw: bytes, size: int) -> Iterator[bytes]:
    return (raw[at : at + size] for at in range(0, len(raw), size))


def answered(**fields: Any) -> dict[str, Any]:
    return {"messages_and_choices": [{"role": "user", "content": "hi"}], **fields}


GROUPS = st.lists(
    st.fixed_dictionaries(
        {"trajectories": st.lists(st.floats(-1, 1).map(lambda reward: answered(reward=reward)), max_size=3)},
        optional={"metadata": st.just({"a": [1]}), "logs": st.just(["x"]), "exceptions": st.none()},
    ),
    max_size=3,
)


@given(GROUPS, st.integers(1, 50), st.randoms())
def test_a_body_read_piece_by_piece_says_what_it_says_as_a_whole(
    groups: list[dict[str, Any]], size: int, order: Any
) -> None:
    members = [("model_id", ID), ("trajectory_groups", groups), ("experimental_config", {"ppo": None})]
    order.shuffle(members)
    body = GroupsBody(cut(json.dumps(dict(members)).encode(), size))
    lines = b"".join(body.lines())
    assert list(read_groups(io.BytesIO(lines))) == [group_of(group) for group in groups]
    assert body.rest == dict(members) | {"trajectory_groups": []}


@each_case("name", ["10", "11", "12", "17"])
def test_captured_bodies_are_read_piece_by_piece(name: str) -> None:
    sent = captured(name)[0]
    lines = b"".join(GroupsBody(cut(json.dumps(sent).encode(), 100)).lines())
    assert list(read_groups(io.BytesIO(lines))) == [group_of(group) for group in sent["trajectory_groups"]]


@each_case(
    ("groups", "loc"),
    [
        ({}, ()),
        ([5], (0,)),
        ([{"trajectories": []}, {}], (1, "trajectories")),
        ([{"trajectories": None}], (0, "trajectories")),
        ([{"trajectories": {}}], (0, "trajectories")),
        ([{"trajectories": [answered(), {}]}], (0, "trajectories", 1, "messages_and_choices")),
        ([{"trajectories": [answered(reward="good")]}], (0, "trajectories", 0, "reward")),
        ([{"trajectories": [answered(metadata={"big": 2**70})]}], (0, "trajectories", 0, "metadata", "big")),
        ([{"trajectories": [], "logs": [5]}], (0, "logs", 0)),
        ([{"trajectories": [], "metadata": {"x": "\ud800"}}], (0, "metadata")),
    ],
)
def test_problems_in_the_middle_name_group_trajectory_and_field(groups: Any, loc: tuple[str | int, ...]) -> None:
    raw = json.dumps({"trajectory_groups": groups}).encode()
    assert problems(lambda raw: list(GroupsBody([raw]).lines()), raw).keys() == {("body", "trajectory_groups", *loc)}


def test_groups_that_are_null_or_absent_are_missing() -> None:
    for raw in (b'{"model_id": "x"}', b'{"trajectory_groups": null}'):
        body = GroupsBody([raw])
        assert list(body.lines()) == []
        assert body.rest.get("trajectory_groups") is None


@pytest.mark.parametrize(
    "raw", [b'{"trajectory_groups": [], "trajectory_groups": []}', b'{"trajectory_groups": []} {}']
)
def test_repeated_groups_and_anything_after_the_body_are_refused(raw: bytes) -> None:
    assert problems(lambda raw: list(GroupsBody([raw]).lines()), raw).keys() == {("body",)}


# ---- answers -------------------------------------------------------------------------------------------------------

MODEL = Model(ID, "acme", "bots", "m", "tabular-mini", NOON)
JOB = TrainingJob(
    id=ID,
    kind=JobKind.RL,
    model_id=ID,
    entity="acme",
    project="bots",
    status=JobStatus.SUCCEEDED,
    created_at=NOON,
    training_start=NOON,
    training_end=None,
    error_message=None,
    step=3,
    metrics={"loss": 0.5},
    config={"learning_rate": 1e-4},
    attempts=1,
    progress=2,
    total=4,
    queue_position=7,
    last_heartbeat=NOON,
)


def test_answers_have_the_members_of_the_wire() -> None:
    assert unstructure(model_object(MODEL))["created_at"] == "2026-01-02T12:00:00.000000Z"
    job = unstructure(job_object(JOB))
    assert (job["object"], job["kind"], job["status"]) == ("training_job", "rl", "succeeded")
    assert (job["training_end"], job["step"], job["metrics"]) == (None, 3, {"loss": 0.5})
    reported = (job["queue_position"], job["last_heartbeat"], job["estimated_end"])
    assert reported == (7, "2026-01-02T12:00:00.000000Z", None)
    event = unstructure(event_object(TrainingEvent(ID, 1, "training_ended", {}, NOON)))
    assert event == {"id": ID, "type": "training_ended", "data": {}, "created_at": "2026-01-02T12:00:00.000000Z"}


def test_a_page_names_its_first_and_last_item() -> None:
    other = attrs.evolve(MODEL, id="other")
    page = unstructure(TrainableModelPage.of(Page((MODEL, other), True)))
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, ID, "other")
    assert list(page) == ["object", "data", "has_more", "first_id", "last_id"]
    assert page["data"] == [unstructure(model_object(model)) for model in (MODEL, other)]
    assert unstructure(TrainableModelPage.of(Page((), False))) == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": "",
        "last_id": "",
    }
