"""Scorers that are data, published over HTTP, and the evaluations that use them: no Python of the host takes part."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from http_client import Answer, Client
from modelyard.compose import open_platform
from modelyard.platform.platform import Platform

BASE = "/v2/acme/quizzes"
ROWS = [{"prompt": "say Yes", "expected": "say yes"}, {"prompt": "say 7", "expected": "say 7"}]
ECHO = "weave:///acme/quizzes/object/echo"
JUDGE = {"type": "llm_judge", "model": "echo", "prompt": "yes: {output}"}

Ask = Callable[..., Answer]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


@pytest.fixture
def client(platform: Platform, client_for: Any) -> Client:
    made: Client = client_for(platform)
    platform.worker().beat()
    return made


@pytest.fixture
def ask(client: Client) -> Ask:
    def send(path: str, body: Any = None) -> Answer:
        return client.send("GET" if body is None else "POST", path, body, auth="Basic")

    return send


def published(ask: Ask, name: str, **content: Any) -> str:
    answer = ask(f"{BASE}/scorers", {"name": name, **content})
    assert answer.status == 200, answer.raw
    return str(answer.json["scorer"])


def quiz(ask: Ask, *scorers: str) -> str:
    assert ask(f"{BASE}/datasets", {"name": "rows", "rows": ROWS}).status == 200
    dataset = "weave:///acme/quizzes/object/rows:v0"
    answer = ask(f"{BASE}/evaluations", {"name": "quiz", "dataset": dataset, "scorers": list(scorers)})
    assert answer.status == 200, answer.raw
    return str(answer.json["evaluation_ref"])


def queued(ask: Ask, word: str, **body: Any) -> Answer:
    return ask(f"/evaluations/{word}", {"project_id": "acme/quizzes", **body})


def means(ask: Ask, platform: Platform, queue: Answer) -> Any:
    """Run a queued job, and return the mean of each scorer."""
    assert queue.status == 200, queue.raw
    platform.worker().run_until_idle()
    status = queued(ask, "status", call_id=queue.json["call_id"]).json["status"]
    assert status["code"] == "complete", status
    return {name: scorer["mean"] for name, scorer in status["output"]["scorers"].items()}


def test_a_model_is_evaluated_and_scored_again_over_http_alone(ask: Ask, platform: Platform) -> None:
    evaluation = quiz(ask, published(ask, "same", scorer={"type": "exact_match"}))
    queue = queued(ask, "evaluate_model", evaluation_ref=evaluation, model_ref=ECHO)
    assert means(ask, platform, queue) == {"same": 0.5}
    others = [
        published(ask, "alike", scorer={"type": "exact_match", "ignore_case": True}),
        published(ask, "seven", scorer={"type": "regular_expression", "pattern": "[0-9]"}),
        published(ask, "judged", scorer=JUDGE),
    ]
    again = queued(ask, "rescore", source_evaluation_run_id=queue.json["call_id"], scorer_refs=others)
    assert means(ask, platform, again) == {"alike": 1.0, "seven": 0.5, "judged": 1.0}


def test_a_declarative_scorer_is_shown_as_published_and_is_the_one_of_python(ask: Ask, platform: Platform) -> None:
    rule = {"type": "contains", "ignore_case": True}
    ref = published(ask, "found", scorer=rule, description="d")
    (shown,) = ask(f"{BASE}/scorers").lines
    assert (shown["scorer"], shown["score_op"], shown["description"]) == (rule, ref, "d")
    content = {"scorer": rule, "description": "d"}
    objects = platform.evaluations.objects
    assert str(objects.publish("scorer", "found", content, entity="acme", project="quizzes").ref) == ref


def test_source_code_next_to_a_scorer_is_kept_and_the_scorer_runs(ask: Ask, platform: Platform) -> None:
    ref = published(ask, "same", scorer={"type": "exact_match"}, op_source_code="def score(): ...")
    assert ask(f"{BASE}/ops/same.score/versions/latest").json["code"] == "def score(): ..."
    queue = queued(ask, "evaluate_model", evaluation_ref=quiz(ask, ref), model_ref=ECHO)
    assert means(ask, platform, queue) == {"same": 0.5}


@pytest.mark.parametrize(
    ("scorer", "places"),
    [
        ("exact_match", ["scorer"]),
        ([], ["scorer"]),
        ({}, ["scorer.type"]),
        ({"type": "exact"}, ["scorer.type"]),
        ({"type": ["contains"]}, ["scorer.type"]),
        ({"type": "regular_expression"}, ["scorer.pattern"]),
        ({"type": "regular_expression", "pattern": "("}, ["scorer.pattern"]),
        ({"type": "contains", "expected": 1, "expceted": "x"}, ["scorer.expceted", "scorer.expected"]),
        ({"type": "numeric", "absolute": -1}, ["scorer.absolute"]),
        ({"type": "llm_judge", "model": "echo", "prompt": "p", "scale": "stars"}, ["scorer.scale"]),
        (None, ["op_source_code"]),
    ],
)
def test_a_scorer_that_cannot_be_read_is_refused_at_its_place(ask: Ask, scorer: Any, places: list[str]) -> None:
    answer = ask(f"{BASE}/scorers", {"name": "s", "scorer": scorer})
    assert answer.status == 422
    assert [".".join(loc) for loc in answer.locs] == [f"body.{place}" for place in places]
    assert ask(f"{BASE}/scorers").lines == []


@pytest.mark.parametrize(
    "content",
    [{"op_source_code": "def score(): ..."}, {"scorer": {**JUDGE, "options": {"temperature": "hot"}}}],
    ids=["source code", "options of a judge"],
)
def test_what_is_wrong_with_a_published_scorer_is_located_at_its_reference(ask: Ask, content: Any) -> None:
    ref = published(ask, "s", **content)
    refused = queued(ask, "evaluate_model", evaluation_ref=quiz(ask, ref), model_ref=ECHO)
    assert (refused.status, [loc[:2] for loc in refused.locs]) == (422, [["body", "evaluation_ref"]])
    same = published(ask, "same", scorer={"type": "exact_match"})
    source = queued(ask, "evaluate_model", evaluation_ref=quiz(ask, same), model_ref=ECHO).json["call_id"]
    ask(f"{BASE}/evaluation_runs/{source}/cancel", {})
    again = queued(ask, "rescore", source_evaluation_run_id=source, scorer_refs=[ref])
    assert (again.status, [loc[:2] for loc in again.locs]) == (422, [["body", "scorer_refs"]])
