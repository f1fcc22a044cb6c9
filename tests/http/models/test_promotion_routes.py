"""Aliases of checkpoints over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example
from modelyard.platform.platform import Platform

NO_ID = "01a1fdba-3701-7000-9bbe-63a17706fc6b"


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        model = opened.models.create("m", project="p", base_model="tabular-mini", entity="acme")
        row = Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))
        for size in (1, 2):
            opened.training.sft(model.id, [row] * size).wait()
        yield opened


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, platform: Platform, client_for: Any) -> Any:
    return client_for(platform, asynchronous=request.param)


@pytest.fixture
def aliases(platform: Platform) -> str:
    model = platform.models.find("m", project="p", entity="acme")
    assert model is not None
    return f"/v1/preview/models/{model.id}/aliases"


def test_an_alias_is_set_listed_served_rolled_back_and_removed(client: Any, aliases: str) -> None:
    assert client.send("PUT", f"{aliases}/prod", {"step": 1}).json["from_step"] is None
    made = client.send("PUT", f"{aliases}/prod", {"step": 2}).json
    assert (made["change"], made["from_step"], made["step"], made["verdict"]) == ("promoted", 1, 2, None)
    assert made["by"] in [key.id for key in client.platform.keys.list()]
    (listed,) = client.send("GET", aliases).json["data"]
    assert (listed["id"], listed["step"], listed["previous_step"]) == ("prod", 2, 1)
    answer = client.chat(model="wandb-artifact:///acme/p/m:prod")
    assert answer.status == 200, answer.raw
    (booked,) = client.platform.usage.list(entity="acme")
    assert booked.checkpoint_step == 2
    assert client.send("POST", f"{aliases}/prod/rollback").json["step"] == 1
    assert client.send("DELETE", f"{aliases}/prod").json["step"] is None
    assert client.send("GET", aliases).json["data"] == []
    assert client.chat(model="acme/p/m:prod").status == 404


def test_the_history_is_paged(client: Any, aliases: str) -> None:
    made = [client.send("PUT", f"{aliases}/prod", {"step": step}).json for step in (1, 2, 0)]
    page = client.send("GET", f"{aliases}/prod/promotions", query="limit=2").json
    assert (page["data"], page["has_more"]) == (made[:2], True)
    rest = client.send("GET", f"{aliases}/prod/promotions", query=f"after={page['last_id']}").json
    assert (rest["data"], rest["has_more"]) == (made[2:], False)


def test_a_requirement_is_checked_and_its_numbers_are_returned(client: Any, aliases: str) -> None:
    evaluations, place = client.platform.evaluations, {"project": "p", "entity": "acme"}
    runs = {}
    for step, value in ((1, 1.0), (2, 0.0)):
        model = f"weave:///acme/p/object/m:step{step}"
        runs[step] = evaluations.runs.create("weave:///acme/p/object/exam", model, **place).id
        for number in range(8):
            made = evaluations.predictions.create(model, {"n": number}, "x", run_id=runs[step], **place)
            evaluations.scores.create(made.id, "weave:///acme/p/object/judge", value, **place)
        evaluations.runs.finish(runs[step])
    client.send("PUT", f"{aliases}/prod", {"step": 1})
    require = {"evaluation": "exam", "confidence": 0.9}
    refused = client.send("PUT", f"{aliases}/prod", {"step": 2, "require": require})
    assert (refused.status, "the candidate is worse" in refused.json["detail"]) == (409, True)
    named = {"runs": {"candidate": runs[2], "baseline": runs[1]}, "margin": 2}
    verdict = client.send("PUT", f"{aliases}/prod", {"step": 2, "require": named}).json["verdict"]
    assert (verdict["baseline_run"], verdict["metrics"]["judge"]["difference"]) == (runs[1], -1.0)


@pytest.mark.parametrize(
    ("alias", "body", "loc"),
    [
        ("latest", {"step": 1}, ["path", "alias"]),
        ("step1", {"step": 1}, ["path", "alias"]),
        ("Prod", {"step": 1}, ["path", "alias"]),
        ("prod", {}, ["body", "step"]),
        ("prod", {"step": "1"}, ["body", "step"]),
        ("prod", {"step": -1}, ["body", "step"]),
        ("prod", {"step": 1, "not_worse": {"evaluation": "e"}}, ["body", "not_worse"]),
        ("prod", {"step": 1, "require": {"evaluation": "e", "margn": 0.1}}, ["body", "require", "margn"]),
        ("prod", {"step": 1, "require": {}}, ["body", "require", "evaluation"]),
        ("prod", {"step": 1, "require": {"evaluation": "e", "margin": -1}}, ["body", "require", "margin"]),
        ("prod", {"step": 1, "require": {"evaluation": "e", "confidence": 1}}, ["body", "require", "confidence"]),
    ],
)
def test_what_does_not_fit_is_named_at_its_place(client: Any, aliases: str, alias: str, body: Any, loc: Any) -> None:
    answer = client.send("PUT", f"{aliases}/{alias}", body)
    assert answer.status == 422
    assert [problem["loc"] for problem in answer.json["detail"]] == [loc]


def test_what_is_not_there_is_404_and_what_contradicts_the_history_409(client: Any, aliases: str) -> None:
    assert client.send("PUT", f"{aliases}/prod", {"step": 9}).status == 404
    assert client.send("POST", f"{aliases}/prod/rollback").status == 404
    assert client.send("DELETE", f"{aliases}/prod").status == 404
    assert client.send("GET", f"/v1/preview/models/{NO_ID}/aliases").status == 404
    client.send("PUT", f"{aliases}/prod", {"step": 1})
    assert client.send("POST", f"{aliases}/prod/rollback").status == 409
    model = aliases.removesuffix("/aliases")
    assert client.send("DELETE", f"{model}/checkpoints", {"steps": [1]}).status == 409
    assert client.send("DELETE", model).status == 409
    stranger = client.platform.keys.create("other").secret
    for method, path in (("GET", aliases), ("DELETE", f"{aliases}/prod"), ("POST", f"{aliases}/prod/rollback")):
        assert client.send(method, path, key=stranger).status == 404
