"""Results joined by row over HTTP, recorded exchanges among them."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard.compose import open_platform
from modelyard.http.evaluations import results as http
from modelyard.platform.platform import Platform

CAPTURES = Path(__file__).parents[2] / "captures" / "evaluation"
PLACE = {"project": "capture", "entity": "acme"}
PATH = "/v2/acme/capture/eval_results/query"
EVALUATION = "weave:///acme/capture/object/sample-eval-b09aae78:oPWgyselUz7390WStHSzUGz7uRP0RW5J958K7Jfqx6k"
MODEL = "weave:///acme/capture/object/sample-model-b09aae78:a885JdxOCBz2o90mDB1GIEOa6OXo351XhJVGNX8L9iE"
SCORER = "weave:///acme/capture/object/sample-scorer-b09aae78:iwZqgjFBGAtuQcukETthMmAivFYEXGIPo9MUz5wDiIE"
THEIR_RUN = "01a1f83b-65f2-768e-861d-f8c25dc4a692"


@attrs.frozen
class Asked:
    """A client, and the id of a run like the recorded one: three rows, of which one is wrong."""

    client: Any
    run_id: str

    @property
    def evaluations(self) -> Any:
        return self.client.platform.evaluations

    def send(self, body: Any) -> Any:
        return self.client.send("POST", PATH, body, auth="Basic")

    def ok(self, **body: Any) -> Any:
        answer = self.send({"evaluation_run_ids": [self.run_id], **body})
        assert answer.status == 200, answer.raw
        return answer.json

    def questions(self, **body: Any) -> list[str]:
        rows = self.ok(include_raw_data_rows=True, **body)["rows"]
        return [row["raw_data_row"]["question"] for row in rows]

    def refused(self, **body: Any) -> tuple[int, Any]:
        answer = self.send({"evaluation_run_ids": [self.run_id], **body})
        if answer.status == 422:
            return 422, [".".join(problem["loc"]) for problem in answer.json["detail"]]
        return answer.status, answer.json["error_code"]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def requested(request: pytest.FixtureRequest, platform: Platform, client_for: Any) -> Asked:
    client = client_for(platform, asynchronous=request.param)
    run = platform.evaluations.runs.create(EVALUATION, MODEL, **PLACE)
    for number, output in enumerate(["0", "1", "wrong"]):
        answer(platform, run.id, number, output, float(output == str(number)))
    return Asked(client, run.id)


def answer(platform: Platform, run_id: str, number: int, output: str, value: Any, scorer: str = SCORER) -> None:
    inputs = {"question": f"q{number}", "expected": str(number)}
    made = platform.evaluations.predictions.create(MODEL, inputs, output, run_id=run_id, **PLACE)
    platform.evaluations.scores.create(made.id, scorer, value, **PLACE)


def field(path: str) -> Any:
    return {"$getField": path}


def filters(expression: Any, **more: Any) -> Any:
    return {"filters": [{"query": {"$expr": expression}, **more}]}


# ---- recorded exchanges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["post-eval_results-query-200", "post-eval_results-query-200-2"])
def test_a_recorded_query_is_answered_as_it_was(requested: Asked, name: str) -> None:
    capture = json.loads((CAPTURES / f"{name}.json").read_text().replace(THEIR_RUN, requested.run_id))
    ours, theirs = requested.send(capture["request"]["body"]), capture["response"]["body"]
    assert (ours.status, ours.headers["content-type"]) == (200, "application/json")
    assert without_own(ours.json) == without_own(theirs)
    assert includes(ours.json, theirs)


OWN = {"predict_and_score_call_id", "predict_call_id", "scorer_call_ids", "model_latency_seconds", "started_at"}
ADDED = {"error", "scorer_errors"}


def without_own(value: Any) -> Any:
    """What does not differ from one server to another."""
    if isinstance(value, dict):
        return {name: without_own(member) for name, member in value.items() if name not in OWN | ADDED}
    return [without_own(item) for item in value] if isinstance(value, list) else value


def includes(ours: Any, theirs: Any) -> bool:
    """Whether ours has every member that theirs has."""
    if isinstance(theirs, dict):
        return theirs.keys() <= ours.keys() and all(includes(ours[name], theirs[name]) for name in theirs)
    return not isinstance(theirs, list) or all(includes(*pair) for pair in zip(ours, theirs, strict=True))


def test_a_recorded_query_without_ids_is_refused_as_it_was(requested: Asked) -> None:
    capture = json.loads((CAPTURES / "post-eval_results-query-422.json").read_text())
    ours = requested.send(capture["request"]["body"])
    assert (ours.status, ours.json["detail"][0]["loc"]) == (422, ["body"])


# ---- what is included --------------------------------------------------------------------------------------------


def test_what_is_not_requested_is_left_out(requested: Asked) -> None:
    body = requested.ok()
    assert len(body["rows"]) == 3
    assert (body["total_rows"], body["summary"], body["warnings"]) == (3, None, [])
    (trial,) = body["rows"][0]["evaluations"][0]["trials"]
    assert body["rows"][0]["raw_data_row"] is None
    assert list(trial["scorer_call_ids"]) == list(trial["scores"]) == ["sample-scorer-b09aae78"]
    assert trial["predict_call_id"] == trial["predict_and_score_call_id"]
    bare = requested.ok(include_predict_and_score_children=False)["rows"][0]["evaluations"][0]["trials"][0]
    assert (bare["predict_call_id"], bare["scorer_call_ids"]) == (None, {})
    assert bare["scores"] == trial["scores"]
    only = requested.ok(include_rows=False, include_summary=True)
    assert (only["rows"], only["total_rows"], only["summary"]["row_count"]) == ([], 3, 3)


def test_runs_are_named_in_either_list_and_missing_ones_are_warned_of(requested: Asked) -> None:
    body = {"evaluation_call_ids": [requested.run_id], "evaluation_run_ids": ["gone"], "include_summary": True}
    found = requested.send(body).json
    assert found["warnings"] == ["there is no evaluation run 'gone' here"]
    assert [run["evaluation_call_id"] for run in found["summary"]["evaluations"]] == [requested.run_id]


def test_a_null_is_as_good_as_absent_and_unknown_members_are_ignored(requested: Asked) -> None:
    nulls = dict.fromkeys(
        ("evaluation_call_ids", "sort_by", "filters", "limit", "summary_require_intersection", "offset")
    )
    assert requested.ok(**nulls, something_new=1)["total_rows"] == 3


def test_errors_of_the_model_and_of_scorers_are_seen(requested: Asked, platform: Platform) -> None:
    run = platform.evaluations.runs.create(EVALUATION, MODEL, **PLACE)
    answer(platform, run.id, 1, "x", None)
    (prediction,) = platform.evaluations.predictions.list(run_id=run.id, **PLACE)
    (score,) = platform.evaluations.scores.list(run_id=run.id, **PLACE)
    failed = [
        attrs.evolve(prediction, output={}, error="overloaded"),
        attrs.evolve(score, value={}, error="ValueError: no"),
    ]
    platform._runtime.store.transact(lambda tx: [tx.replace(record) for record in failed])
    (row,) = requested.ok(evaluation_run_ids=[run.id])["rows"]
    (trial,) = row["evaluations"][0]["trials"]
    assert (trial["model_output"], trial["error"], trial["scores"]) == (None, "overloaded", {})
    assert trial["scorer_errors"] == {"sample-scorer-b09aae78": "ValueError: no"}


def test_costs_are_included_on_request_and_are_those_of_the_model(requested: Asked, platform: Platform) -> None:
    for prediction in platform.evaluations.predictions.list(run_id=requested.run_id, **PLACE):
        spent = attrs.evolve(prediction, prompt_tokens=2, completion_tokens=3, cost=Decimal("0.25"))
        platform._runtime.store.transact(lambda tx, spent=spent: tx.replace(spent))
    for include, cost, total in ((False, None, None), (True, 0.25, 0.75)):
        body = requested.ok(include_costs=include, include_summary=True)
        trials = [trial for row in body["rows"] for trial in row["evaluations"][0]["trials"]]
        assert [(trial["total_tokens"], trial["total_cost"]) for trial in trials] == [(5, cost)] * 3
        (summary,) = body["summary"]["evaluations"]
        assert (summary["predict_total_tokens"], summary["predict_total_cost"]) == (15, total)


def test_many_rows_are_sent_piece_by_piece(requested: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = requested.send({"evaluation_run_ids": [requested.run_id], "include_summary": True}).json
    for lines in (1, 2, 3):
        monkeypatch.setattr(http, "FIRST_LINES", lines)
        assert requested.send({"evaluation_run_ids": [requested.run_id], "include_summary": True}).json == whole


# ---- filters and sorting -----------------------------------------------------------------------------------------

SCORE = "scores.sample-scorer-b09aae78"


@pytest.mark.parametrize(
    ("expression", "questions"),
    [
        ({"$eq": [field(SCORE), {"$literal": 1}]}, {"q0", "q1"}),
        ({"$not": [{"$gt": [field(SCORE), {"$literal": 0.5}]}]}, {"q2"}),
        (
            {
                "$and": [
                    {"$gte": [field(SCORE), {"$literal": 0}]},
                    {"$eq": [field("inputs.expected"), {"$literal": "1"}]},
                ]
            },
            {"q1"},
        ),
        ({"$or": [{"$eq": [field("inputs.question"), {"$literal": q}]} for q in ("q0", "q2")]}, {"q0", "q2"}),
        ({"$in": [field("inputs.question"), [{"$literal": "q1"}, {"$literal": "q9"}]]}, {"q1"}),
        (
            {"$contains": {"input": field("inputs.question"), "substr": {"$literal": "Q"}, "case_insensitive": True}},
            {"q0", "q1", "q2"},
        ),
        ({"$contains": {"input": field("inputs.question"), "substr": {"$literal": "Q"}}}, set()),
        ({"$lt": [{"$convert": {"input": field("inputs.expected"), "to": "int"}}, {"$literal": 2}]}, {"q0", "q1"}),
        ({"$eq": [{"$convert": {"input": field("scores.other"), "to": "exists"}}, {"$literal": True}]}, set()),
    ],
)
def test_rows_are_filtered_by_expressions(requested: Asked, expression: Any, questions: set[str]) -> None:
    assert set(requested.questions(**filters(expression))) == questions
    assert set(requested.questions(**filters(expression, evaluation_call_id=requested.run_id))) == questions
    assert requested.questions(**filters(expression, evaluation_call_id="other")) == []


def test_rows_are_sorted_and_compared_across_runs(requested: Asked, platform: Platform) -> None:
    other = platform.evaluations.runs.create(EVALUATION, MODEL, **PLACE).id
    for number, value in ((0, 0.5), (1, 1.0), (2, 0.9)):
        answer(platform, other, number, "x", value)
    both = {"evaluation_run_ids": [requested.run_id, other]}
    sort = {"field": SCORE, "direction": "desc"}
    assert requested.questions(**both, sort_by=[{**sort, "mode": "difference"}]) == ["q2", "q0", "q1"]
    assert requested.questions(**both, sort_by=[{**sort, "evaluation_call_id": other}]) == ["q1", "q2", "q0"]
    assert requested.questions(sort_by=[{"field": "inputs.question", "direction": "desc"}], limit=2) == ["q2", "q1"]
    high = filters({"$gt": [field(SCORE), {"$literal": 0.6}]})
    assert set(requested.questions(**both, **high)) == {"q0", "q1", "q2"}
    assert set(requested.questions(**both, **high, filter_logic_operator="and")) == {"q1"}


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "locs"),
    [
        ({"evaluation_run_ids": []}, ["body"]),
        ({"limit": -1, "offset": -1}, ["body.limit", "body.offset"]),
        ({"sort_by": [{"field": "scores.x", "direction": "up"}]}, ["body.sort_by.0.direction"]),
        ({"filter_logic_operator": "xor"}, ["body.filter_logic_operator"]),
        ({"filters": [{"query": {}}]}, ["body.filters.0.query"]),
        ({"filters": [{}]}, ["body.filters.0.query"]),
        (filters({"$regex": []}), ["body.filters.0.query.$expr"]),
        (filters({"$size": field("inputs.x")}), ["body.filters.0.query.$expr"]),
        (filters({"$eq": [1, 2]}), ["body.filters.0.query.$expr.$eq.0"]),
        (filters({"$eq": [{"$literal": 1}]}), ["body.filters.0.query.$expr.$eq"]),
        (filters({"$and": [{"$gt": [{"$literal": 1}, {"$foo": 1}]}]}), ["body.filters.0.query.$expr.$and.0.$gt.1"]),
        (filters({"$literal": True}), ["body.filters.0.query.$expr"]),
        (filters({"$eq": [field("scores.x"), {"$literal": 1}], "$gt": []}), ["body.filters.0.query.$expr"]),
        (filters({"$in": [field("inputs.x"), {"$literal": 1}]}), ["body.filters.0.query.$expr.$in.1"]),
        (
            filters({"$not": [{"$convert": {"input": {"$literal": 1}, "to": "date"}}]}),
            ["body.filters.0.query.$expr.$not.0.$convert.to"],
        ),
        (filters({"$contains": {"input": {"$literal": ""}}}), ["body.filters.0.query.$expr.$contains"]),
        (filters({"$eq": [{"$getField": 1}, {"$literal": 1}]}), ["body.filters.0.query.$expr.$eq.0.$getField"]),
        (filters({"$or": [{"$not": [{"$literal": 1}]}] * 501}), ["body.filters.0.query.$expr.$or.499.$not.0"]),
    ],
)
def test_what_does_not_fit_is_named_at_its_place(requested: Asked, body: Any, locs: list[str]) -> None:
    assert requested.refused(**body) == (422, locs)


@pytest.mark.parametrize(
    "body",
    [
        {"sort_by": [{"field": "summary.x", "direction": "asc"}]},
        {"sort_by": [{"field": "inputs.x", "direction": "asc", "mode": "difference"}]},
        filters({"$eq": [field("outputs.x"), {"$literal": 1}]}),
    ],
)
def test_a_field_that_results_do_not_have_is_400(requested: Asked, body: Any) -> None:
    assert requested.refused(**body) == (400, "bad_request")
