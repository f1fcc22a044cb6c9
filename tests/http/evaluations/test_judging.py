"""Objects, predictions and scores as clients of the evaluation interface meet them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modelyard.compose import open_platform
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Settings

PLACE = "/v2/acme/red"
DATA = "weave:///acme/red/object/rows"
MODEL = "weave:///acme/red/object/m"
ROWS = [{"question": "q0", "expected": "0"}, {"question": "q1", "expected": "1"}]
TABLE = "14e85c7d56c9fe17c4617af54dd78d1b301ebd7ae504773709aec2664c53ebab"

Ask = Callable[..., Any]


def asking(client: Any) -> Ask:
    def ask(method: str, path: str, body: Any = None, query: Any = (), key: str | None = None, **more: Any) -> Any:
        where = path if path.startswith("/v2") else PLACE + path
        return client.send(method, where, body, query=query, auth="Basic", key=key, **more)

    return ask


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def yard(request: pytest.FixtureRequest, client_for: Any) -> Iterator[tuple[Platform, Ask]]:
    with open_platform(settings=Settings(max_data_body=100_000)) as platform:
        yield platform, asking(client_for(platform, asynchronous=request.param))


@pytest.fixture
def ask(yard: tuple[Platform, Ask]) -> Ask:
    return yard[1]


def lines(answer: Any) -> list[Any]:
    assert (answer.status, answer.headers["content-type"]) == (200, "application/jsonl"), answer.raw
    return [json.loads(line) for line in answer.raw.splitlines()]


def places(answer: Any) -> list[str]:
    assert answer.status == 422, answer.raw
    assert all(problem.keys() == {"loc", "msg", "type"} for problem in answer.json["detail"])
    return [".".join(problem["loc"]) for problem in answer.json["detail"]]


# ---- objects


def test_a_datasets_digest_and_table_are_those_of_its_content(ask: Ask) -> None:
    made = ask("POST", "/datasets", {"rows": ROWS, "name": "Rows"}).json
    assert (made["object_id"], made["version_index"], len(made["digest"])) == ("rows", 0, 43)
    for version in ("latest", "v0", made["digest"]):
        shown = ask("GET", f"/datasets/rows/versions/{version}").json
        assert (shown["name"], shown["description"]) == ("Rows", None)
        assert shown["rows"] == f"weave:///acme/red/table/{TABLE}"
    assert ask("POST", "/datasets", {"name": "Rows", "description": None, "rows": ROWS, "project_id": "x"}).json == made


def test_everything_that_is_wrong_with_a_dataset_is_reported_at_once(yard: tuple[Platform, Ask]) -> None:
    platform, ask = yard
    answer = ask("POST", "/datasets", {"rows": [ROWS[0], 5, None, "x"], "name": "", "description": 7})
    assert places(answer) == ["body.description", "body.name", "body.rows.1", "body.rows.2", "body.rows.3"]
    assert places(ask("POST", "/datasets", {"name": "x"})) == ["body.rows"]
    assert places(ask("POST", "/datasets", {"rows": {"a": 1}})) == ["body.rows"]
    assert places(ask("POST", "/datasets", raw=b'{"rows": [{"a": 1}, {"a": NaN}]}')) == ["body.rows.1.a"]
    assert places(ask("POST", "/datasets", raw=b'{"rows": [{"a": 1}')) == ["body.rows"]
    assert places(ask("POST", "/datasets", raw=b"[]")) == ["body"]
    assert ask("POST", "/datasets", {"rows": [{"a": "x" * 100_000}]}).status == 413
    assert not list(platform._runtime.artifacts.names())
    assert lines(ask("GET", "/datasets")) == []


def test_unnamed_datasets_and_ops_have_the_names_of_their_kinds(ask: Ask) -> None:
    assert ask("POST", "/datasets", {"rows": []}).json["object_id"] == "dataset"
    assert ask("POST", "/ops", {}).json["object_id"] == "op"


def test_each_kind_names_its_reference_as_clients_expect(ask: Ask) -> None:
    scorer = ask("POST", "/scorers", {"name": "s", "op_source_code": "x"}).json
    model = ask("POST", "/models", {"name": "m", "source_code": "x"}).json
    evaluation = ask("POST", "/evaluations", {"name": "e", "dataset": DATA}).json
    op = ask("POST", "/ops", {"name": "o", "source_code": "x"}).json
    assert scorer["scorer"] == f"weave:///acme/red/object/s:{scorer['digest']}"
    assert model["model_ref"] == f"weave:///acme/red/object/m:{model['digest']}"
    assert evaluation["evaluation_ref"] == f"weave:///acme/red/object/e:{evaluation['digest']}"
    assert op.keys() == {"digest", "object_id", "version_index"}


def test_objects_are_shown_with_all_their_members(ask: Ask) -> None:
    ask("POST", "/scorers", {"name": "s", "op_source_code": "def score(): ...", "description": "d"})
    shown = ask("GET", "/scorers/s/versions/latest").json
    (op,) = lines(ask("GET", "/ops"))
    assert (shown["description"], op["code"]) == ("d", "def score(): ...")
    assert shown["score_op"] == f"weave:///acme/red/op/s.score:{op['digest']}"
    assert ask("GET", "/ops/s.score/versions/v0", query={"eager": "true"}).json == op
    ask("POST", "/models", {"name": "m", "source_code": "x", "attributes": {"a": [1, {"b": None}]}})
    assert ask("GET", "/models/m/versions/v0").json["attributes"] == {"a": [1, {"b": None}]}
    ask("POST", "/evaluations", {"name": "e", "dataset": DATA, "scorers": [DATA], "trials": 3, "evaluation_name": "n"})
    shown = ask("GET", "/evaluations/e/versions/v0").json
    assert (shown["dataset"], shown["scorers"], shown["trials"], shown["evaluation_name"]) == (DATA, [DATA], 3, "n")
    assert shown["evaluate_op"] is shown["predict_and_score_op"] is shown["summarize_op"] is None


def test_a_scorer_without_source_code_is_its_own_op(yard: tuple[Platform, Ask]) -> None:
    platform, ask = yard
    content = {"scorer": {"type": "exact_match"}}
    right = platform.evaluations.objects.publish("scorer", "right", content, project="red", entity="acme")
    (shown,) = lines(ask("GET", "/scorers"))
    assert shown["score_op"] == str(right.ref)


def test_wrong_objects_are_refused_with_all_their_problems(ask: Ask) -> None:
    wrong = {"dataset": "x", "scorers": [DATA, "weave:///a/b/call/c"], "trials": 0}
    assert sorted(places(ask("POST", "/evaluations", wrong))) == [
        "body.dataset",
        "body.name",
        "body.scorers.1",
        "body.trials",
    ]
    assert places(ask("POST", "/evaluations", {**wrong, "name": "e", "trials": 1})) == [
        "body.dataset",
        "body.scorers.1",
    ]
    assert places(ask("POST", "/scorers", {"name": "!!"})) == ["body.op_source_code"]
    assert places(ask("POST", "/scorers", {"name": "!!", "op_source_code": ""})) == ["body.name"]
    assert places(ask("GET", "/models", query={"limit": "-1", "offset": "x"})) == ["query.limit", "query.offset"]


def test_a_deleted_version_says_since_when(ask: Ask) -> None:
    first, second = (ask("POST", "/ops", {"name": "o", "source_code": code}).json["digest"] for code in "ab")
    assert ask("DELETE", "/ops/o", query=[("digests", first), ("digests", "unknown")]).json == {"num_deleted": 1}
    gone = ask("GET", f"/ops/o/versions/{first}")
    assert (gone.status, gone.json["error_code"]) == (404, "object_deleted")
    assert gone.json["deleted_at"] in gone.json["reason"]
    assert "deleted_at" not in ask("GET", "/ops/o/versions/v7").json
    assert [line["digest"] for line in lines(ask("GET", "/ops"))] == [second]
    assert ask("DELETE", "/ops/o").json == {"num_deleted": 1}


# ---- predictions and scores


def run_of(ask: Ask) -> str:
    return str(ask("POST", "/evaluation_runs", {"evaluation": DATA, "model": MODEL}).json["evaluation_run_id"])


def predicted(ask: Ask, run: str | None = None, **more: Any) -> str:
    body = {"model": MODEL, "inputs": {"q": 1}, "output": "1", "evaluation_run_id": run, **more}
    answer = ask("POST", "/predictions", body)
    assert answer.status == 200, answer.raw
    return str(answer.json["prediction_id"])


def test_a_prediction_and_its_scores_are_shown_whole(ask: Ask) -> None:
    run, spans = run_of(ask), [{"trace_id": "t", "span_id": "s"}]
    prediction = predicted(ask, run, inputs={"a": [1, {"b": None}]}, genai_span_ref=spans)
    shown = ask("GET", f"/predictions/{prediction}").json
    assert (shown["inputs"], shown["output"], shown["evaluation_run_id"]) == ({"a": [1, {"b": None}]}, "1", run)
    assert (shown["genai_span_ref"], shown["wb_user_id"], shown["finished_at"]) == (spans, None, None)
    values = [True, 1, 1.0, "text", None, {"passed": True, "detail": {"overlap": 0.5, "many": [1]}, "why": None}]
    for value in values:
        body = {"prediction_id": prediction, "scorer": DATA, "value": value, "evaluation_run_id": run}
        score = ask("POST", "/scores", body).json["score_id"]
        shown = ask("GET", f"/scores/{score}").json
        assert (shown["scorer"], shown["evaluation_run_id"], shown["prediction_id"]) == (DATA, run, prediction)
    kept = [line["value"] for line in lines(ask("GET", "/scores", query={"evaluation_run_id": run}))]
    assert [repr(value) for value in kept] == [repr(value) for value in values]


def test_wrong_predictions_and_scores_are_refused_with_all_their_problems(ask: Ask) -> None:
    wrong = {"model": "m", "inputs": [], "genai_span_ref": [{"trace_id": 5}]}
    assert sorted(set(places(ask("POST", "/predictions", wrong)))) == [
        "body.genai_span_ref.0.span_id",
        "body.genai_span_ref.0.trace_id",
        "body.inputs",
        "body.model",
    ]
    assert places(ask("POST", "/predictions", {"model": "m", "inputs": {}})) == ["body.model"]
    prediction = predicted(ask)
    assert places(ask("POST", "/scores", {"prediction_id": prediction, "scorer": "", "value": [1]})) == [
        "body.value",
        "body.scorer",
    ]
    assert places(ask("POST", "/scores", {"prediction_id": prediction, "scorer": DATA})) == ["body.value"]
    other = {"prediction_id": prediction, "scorer": DATA, "value": 1, "evaluation_run_id": run_of(ask)}
    assert places(ask("POST", "/scores", other)) == ["body.evaluation_run_id"]
    assert lines(ask("GET", "/scores")) == []


def test_finishing_keeps_the_output_and_refuses_another(ask: Ask) -> None:
    prediction = predicted(ask)
    for body in (None, {}, {"output": "1", "prediction_id": "x"}, {"output": None}):
        answer = ask("POST", f"/predictions/{prediction}/finish", body)
        assert (answer.status, answer.json) == (200, {"success": True})
    refused = ask("POST", f"/predictions/{prediction}/finish", {"output": "2"})
    assert (refused.status, refused.json["error_code"]) == (400, "conflict")
    shown = ask("GET", f"/predictions/{prediction}").json
    assert shown["output"] == "1"
    assert shown["finished_at"] > shown["started_at"]


def test_a_finished_run_has_closed_its_predictions_and_takes_no_more(ask: Ask) -> None:
    run = run_of(ask)
    open_one = predicted(ask, run, output=None)
    assert ask("POST", f"/evaluation_runs/{run}/finish").status == 200
    assert ask("GET", f"/predictions/{open_one}").json["finished_at"] is not None
    body = {"prediction_id": open_one, "scorer": DATA, "value": 1}
    for answer in (
        ask("POST", "/predictions", {"model": MODEL, "inputs": {}, "output": 1, "evaluation_run_id": run}),
        ask("POST", "/scores", body),
        ask("DELETE", "/predictions", query={"prediction_ids": open_one}),
    ):
        assert (answer.status, answer.json["error_code"]) == (400, "RUN_ALREADY_FINISHED")


def test_unknown_ids_are_404_and_lists_of_unknown_runs_empty(ask: Ask) -> None:
    for method, path, body in (
        ("GET", "/predictions/x", None),
        ("POST", "/predictions/x/finish", None),
        ("GET", "/scores/x", None),
        ("POST", "/scores", {"prediction_id": "x", "scorer": DATA, "value": 1}),
        ("POST", "/predictions", {"model": MODEL, "inputs": {}, "evaluation_run_id": "x"}),
    ):
        answer = ask(method, path, body)
        assert (answer.status, answer.json["error_code"]) == (404, "not_found")
    assert lines(ask("GET", "/predictions", query={"evaluation_run_id": "x"})) == []


def test_lists_are_cut_and_deletions_counted(ask: Ask) -> None:
    run = run_of(ask)
    made = [predicted(ask, run) for _ in range(3)]
    alone = predicted(ask)
    found = lines(ask("GET", "/predictions", query={"evaluation_run_id": run, "limit": 1, "offset": 1}))
    assert [line["prediction_id"] for line in found] == made[1:2]
    assert [line["prediction_id"] for line in lines(ask("GET", "/predictions"))] == [*made, alone]
    answer = ask("DELETE", "/predictions", query={"prediction_ids": ",".join([made[0], alone, "x"])})
    assert answer.json == {"num_deleted": 2}
    assert places(ask("DELETE", "/scores")) == ["query.score_ids"]


def test_a_place_that_the_key_lacks_is_forbidden_in_the_same_words(yard: tuple[Platform, Ask]) -> None:
    platform, ask = yard
    prediction, key = predicted(ask), platform.keys.create("acme", ["blue"]).secret
    answers = [
        ask("POST", "/datasets", {"rows": 5}, key=key),
        ask("GET", "/models/m/versions/latest", key=key),
        ask("DELETE", "/ops/o", key=key),
        ask("POST", "/predictions", {}, key=key),
        ask("GET", f"/predictions/{prediction}", key=key),
        ask("GET", "/scores", query={"limit": "x"}, key=key),
    ]
    assert {answer.status for answer in answers} == {403}
    assert len({answer.json["reason"] for answer in answers}) == 1
    elsewhere = f"/v2/acme/blue/predictions/{prediction}"
    assert ask("GET", elsewhere, key=key).status == ask("GET", elsewhere).status == 404
    assert not list(platform._runtime.artifacts.names())
