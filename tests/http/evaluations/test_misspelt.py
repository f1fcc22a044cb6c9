"""Members of bodies of the evaluation interface that are misspelt: refused with the nearest name, not ignored."""

from typing import Any

import pytest

from http_client import Client

PLACE = "/v2/acme/quizzes"
OBJECT = "weave:///acme/quizzes/object/"
QUIZ = {"name": "quiz", "dataset": f"{OBJECT}rows"}
RUN = {"evaluation": f"{OBJECT}quiz", "model": f"{OBJECT}bot"}
ASKED = {"project_id": "acme/quizzes", "evaluation_ref": f"{OBJECT}quiz", "model_ref": f"{OBJECT}bot"}


@pytest.mark.parametrize(
    ("path", "body", "member", "meant"),
    [
        (f"{PLACE}/evaluations", {**QUIZ, "trails": 3}, "trails", "trials"),
        (f"{PLACE}/evaluations", {**QUIZ, "scorer": [f"{OBJECT}same"]}, "scorer", "scorers"),
        (
            f"{PLACE}/evaluation_runs",
            {**RUN, "source_evaluation_run": "x"},
            "source_evaluation_run",
            "source_evaluation_run_id",
        ),
        (
            f"{PLACE}/eval_results/compare",
            {"baseline": "a", "candidate": "b", "confidance": 0.9},
            "confidance",
            "confidence",
        ),
        (f"{PLACE}/eval_results/query", {"evaluation_run_ids": ["a"], "limits": 1}, "limits", "limit"),
        (
            "/evaluations/rescore",
            {"project_id": "acme/quizzes", "source_evaluation_run_id": "x", "scorer_ref": ["x"]},
            "scorer_ref",
            "scorer_refs",
        ),
    ],
)
def test_a_misspelt_member_is_refused_with_the_one_that_is_meant(
    client: Client, path: str, body: Any, member: str, meant: str
) -> None:
    refused = client.send("POST", path, body, auth="Basic")
    assert refused.status == 422, refused.raw
    said = {problem["loc"][-1]: problem["msg"] for problem in refused.json["detail"]}
    assert said[member] == f"is not known; did you mean {meant!r}?"


@pytest.mark.parametrize("extra", ["entity", "project", "op", "wb_user_id", "client_version", "models"])
def test_what_is_not_meant_for_us_is_ignored(client: Client, extra: str) -> None:
    assert client.send("POST", f"{PLACE}/evaluation_runs", {**RUN, extra: "x"}, auth="Basic").status == 200


def test_a_misspelt_option_of_training_is_refused_with_the_one_that_is_meant(client: Client) -> None:
    model = client.ok(
        "POST",
        "/v1/preview/models",
        {"project": "p", "name": "m", "base_model": "tabular-mini", "return_existing": True},
    )
    body = {"model_id": model["id"], "training_data_url": "x://a/b/c", "config": {"learning_rat": 0.5, "optimizer": 1}}
    refused = client.send("POST", "/v1/preview/sft-training-jobs", body).json["detail"]
    assert [(problem["loc"][-1], problem["msg"]) for problem in refused] == [
        ("learning_rat", "is not supported; did you mean 'learning_rate'?"),
        ("optimizer", "is not supported; leave it out to train without it"),
    ]
