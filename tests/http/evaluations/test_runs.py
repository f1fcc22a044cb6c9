"""The evaluation interface as its clients meet it, recorded exchanges among them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from http_client import Answer, Client, client_of
from modelyard.compose import open_platform
from modelyard.errors import StoreClosed
from modelyard.http.message import Request
from modelyard.platform.platform import Platform

CAPTURES = Path(__file__).parents[2] / "captures" / "evaluation"
RUNS = "/v2/acme/capture/evaluation_runs"
EVALUATION = "weave:///acme/capture/object/sample_eval:" + "E" * 43
MODEL = "weave:///acme/capture/object/sample_model:" + "M" * 43
NEW = {"evaluation": EVALUATION, "model": MODEL}


class Evaluator(Client):
    """Speaks the evaluation interface."""

    def send(self, method: str, path: str = RUNS, body: Any = None, **more: Any) -> Answer:
        return super().send(method, path, body, **{"auth": "Basic", **more})

    def create(self, path: str = RUNS, **more: Any) -> str:
        answer = self.send("POST", path, {**NEW, **more})
        assert answer.status == 200, answer.raw
        return str(answer.json["evaluation_run_id"])


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


@pytest.fixture
def client(platform: Platform) -> Evaluator:
    return client_of(platform, kind=Evaluator)


# ---- the recorded exchanges, in the order in which they happened ----


class Replay:
    """Sends what the public client sent, with our ids in the place of the recorded ones."""

    def __init__(self, client: Evaluator) -> None:
        self.client = client
        self.ours: dict[str, str] = {}

    def __call__(self, name: str, *, as_no_one: bool = False) -> tuple[Answer, Any]:
        """Our answer, and the recorded response with our ids in it."""
        text = (CAPTURES / f"{name}.json").read_text(encoding="utf-8")
        for theirs, mine in self.ours.items():
            text = text.replace(theirs, mine)
        capture = json.loads(text)
        sent, received = capture["request"], capture["response"]
        headers = [(key.lower(), value) for key, value in sent["headers"].items() if isinstance(value, str)]
        client = attrs.evolve(self.client, key="") if as_no_one else self.client
        answer = client.send(
            sent["method"], sent["path"], sent["body"], query=[tuple(pair) for pair in sent["query"]], headers=headers
        )
        assert answer.status == received["status"], answer.raw
        assert answer.headers["content-type"] == received["content_type"]
        return answer, received["body"]

    def create(self, name: str) -> None:
        answer, theirs = self(name)
        assert answer.json.keys() == theirs.keys()
        self.ours[theirs["evaluation_run_id"]] = answer.json["evaluation_run_id"]

    def also(self, theirs: str, **more: Any) -> None:
        """A run whose creation was not kept among the recordings."""
        self.ours[theirs] = self.client.create(**more)


def agree(ours: Any, theirs: Any) -> None:
    """Ours has all that theirs has, apart from times, and the words that their server keeps in a summary."""
    times = ("started_at", "finished_at", "summary")
    assert theirs.keys() <= ours.keys()
    assert {k: ours[k] for k in theirs if k not in times} == {k: v for k, v in theirs.items() if k not in times}
    assert ours["started_at"].endswith("Z")


def test_the_recorded_exchanges_of_the_public_client_work(client: Evaluator) -> None:
    replay = Replay(client)
    replay("post-evaluation_runs-401", as_no_one=True)
    replay.create("post-evaluation_runs-200")
    replay.create("post-evaluation_runs-200-2")
    replay.create("post-evaluation_runs-200-3")
    replay.also("01a1f83b-5d5e-78d1-92ae-7fe1b66e25d3")
    replay.also("01a1f83b-5d8e-7869-b736-3f9fcc466499")
    replay.also("01a1f83b-5f1d-7596-8c50-555c8a2c2af4")
    replay.also("01a1f83b-5f22-756a-bce7-dd60190e864e")
    for name in ("get-evaluation_runs-id-200", "get-evaluation_runs-id-200-2", "get-evaluation_runs-id-200-3"):
        answer, theirs = replay(name)
        agree(answer.json, theirs)
    for name in ("get-evaluation_runs-200", "get-evaluation_runs-200-2", "get-evaluation_runs-200-3"):
        answer, lines = replay(name)
        assert len(answer.lines) == len(lines)
        for ours, theirs in zip(answer.lines, lines, strict=True):
            # Their lists leave provenance out; ours show it as reads do.
            agree({**ours, "source_evaluation_run_id": None}, theirs)
    for name in ("post-evaluation_runs-422", "post-evaluation_runs-422-2", "post-evaluation_runs-422-3"):
        answer, theirs = replay(name)
        places = [(problem["loc"], problem["type"]) for problem in theirs["detail"]]
        assert [(problem["loc"], problem["type"]) for problem in answer.json["detail"]] == places
    replay.also("01a1f83b-65f2-768e-861d-f8c25dc4a692")
    for name in ("", "-2", "-3"):
        answer, theirs = replay(f"post-evaluation_runs-id-finish-200{name}")
        assert answer.json == theirs
    answer, theirs = replay("delete-evaluation_runs-200")
    assert answer.json == theirs
    for name in ("", "-2", "-3"):
        answer, theirs = replay(f"get-evaluation_runs-id-404{name}")
        assert theirs.keys() <= answer.json.keys()
        assert answer.json["reason"].startswith("Evaluation run")


def test_the_list_shows_provenance_as_a_read_does(client: Evaluator) -> None:
    first = client.create()
    second = client.create(source_evaluation_run_id=first)
    (line,) = client.send("GET", query={"source_evaluation_run_ids": first}).lines
    assert line == client.send("GET", f"{RUNS}/{second}").json
    assert (line["source_evaluation_run_id"], line["source_known"]) == (first, True)


# ---- who may ----


def test_a_missing_key_is_answered_with_the_scheme_of_the_interface(client: Evaluator) -> None:
    for secret in ("", "wrong"):
        answer = attrs.evolve(client, key=secret).send("POST", body=NEW)
        assert answer.status == 401
        assert isinstance(answer.json["detail"], str)
        assert answer.headers["www-authenticate"].startswith("Basic")
    bearer = client.send("POST", body=NEW, auth="Bearer")
    assert bearer.status == 401


def test_a_scope_that_the_key_lacks_is_forbidden_in_the_same_words_for_any_content(
    client: Evaluator, platform: Platform
) -> None:
    run = client.create()
    stranger = client.another("acme", ["other"])
    answers = [
        stranger.send("GET", f"{RUNS}/{run}"),
        stranger.send("GET", f"{RUNS}/unknown"),
        stranger.send("GET"),
        stranger.send("POST", body={"evaluation": 7}),
        stranger.send("POST", f"{RUNS}/{run}/finish"),
        stranger.send("DELETE", query={"evaluation_run_ids": run}),
        stranger.send("GET", query={"limit": "x"}),
    ]
    assert {answer.status for answer in answers} == {403}
    assert len({answer.json["reason"] for answer in answers}) == 1
    assert answers[0].json["error_code"] == "forbidden"


def test_a_run_of_another_project_is_not_found(client: Evaluator, platform: Platform) -> None:
    run = client.create("/v2/acme/other/evaluation_runs")
    for other in (client, client.another("acme", ["capture"])):
        assert other.send("GET", f"{RUNS}/{run}").status == 404
        assert other.send("POST", f"{RUNS}/{run}/finish").status == 404
        assert other.send("DELETE", query={"evaluation_run_ids": run}).json == {"num_deleted": 0}
    assert client.send("GET", f"/v2/acme/other/evaluation_runs/{run}").status == 200


# ---- creating ----


def test_every_problem_is_reported_at_its_place_with_nothing_else(client: Evaluator) -> None:
    answer = client.send("POST", body={"evaluation": "secret words", "model": "weave:///a/b/call/c"})
    assert answer.status == 422
    assert answer.json.keys() == {"detail"}
    assert [problem["loc"] for problem in answer.json["detail"]] == [["body", "evaluation"], ["body", "model"]]
    assert all(problem.keys() == {"loc", "msg", "type"} for problem in answer.json["detail"])
    assert b"secret words" not in answer.raw
    assert client.send("GET").raw == b""


def test_a_wrong_type_does_not_hide_a_wrong_reference(client: Evaluator) -> None:
    answer = client.send("POST", body={"evaluation": 5, "model": ""})
    assert answer.status == 422
    assert sorted(problem["loc"] for problem in answer.json["detail"]) == [["body", "evaluation"], ["body", "model"]]


@pytest.mark.parametrize("body", [[], "text", 5])
def test_a_body_that_is_not_an_object_is_reported_as_such(client: Evaluator, body: Any) -> None:
    answer = client.send("POST", body=body)
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["body"])


def test_a_missing_body_is_refused(client: Evaluator) -> None:
    assert client.send("POST").status == 422


def test_an_invalid_name_in_the_path_is_reported_there(client: Evaluator) -> None:
    answer = client.send("POST", "/v2/acme/a%20b/evaluation_runs", NEW)
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["path", "project"])


def test_older_clients_send_no_content_type_and_repeat_the_path_in_the_body(client: Evaluator) -> None:
    assert client.send("POST", body={**NEW, "project_id": "acme/capture", "entity": 5}).status == 200
    assert client.send("POST", body=NEW, headers=[("content-type", "application/json; charset=utf-8")]).status == 200
    answer = client.send("POST", body=NEW, headers=[("content-type", "text/plain")])
    assert answer.status == 415
    assert {"reason", "error_code"} <= answer.json.keys()


def test_a_source_that_is_unknown_is_accepted_and_marked(client: Evaluator) -> None:
    run = client.create(source_evaluation_run_id="unknown")
    shown = client.send("GET", f"{RUNS}/{run}").json
    assert (shown["source_evaluation_run_id"], shown["source_known"]) == ("unknown", False)


# ---- listing ----


def ids(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.raw
    assert answer.headers["content-type"] == "application/jsonl"
    return [line["evaluation_run_id"] for line in answer.lines]


def test_a_listing_is_cut_filtered_and_speaks_the_older_dialect(client: Evaluator) -> None:
    other = "weave:///acme/capture/object/other"
    first, second = client.create(), client.create(evaluation=other)
    third = client.create(model=other)

    def found(*query: tuple[str, Any]) -> list[str]:
        return ids(client.send("GET", query=query))

    assert found() == [first, second, third]
    assert found(("limit", 0)) == []
    assert found(("limit", 1), ("offset", 1)) == [second]
    assert found(("evaluations", EVALUATION), ("evaluations", other)) == [first, second, third]
    assert found(("evaluations", f"{EVALUATION},{other}")) == [first, second, third]
    assert found(("evaluation_refs", other)) == [second]
    assert found(("model_refs", other), ("unknown", "x")) == [third]
    assert found(("evaluation_run_ids", third), ("evaluation_run_ids", first)) == [first, third]


def test_a_listing_continues_after_the_last_item_that_was_read(client: Evaluator) -> None:
    made = [client.create() for _ in range(4)]
    assert ids(client.send("GET", query={"after": made[1]})) == made[2:]
    assert ids(client.send("GET", query={"after": made[0], "limit": 2})) == made[1:3]
    assert ids(client.send("GET", query=[("after", made[0]), *(("evaluation_run_ids", one) for one in made[:2])])) == [
        made[1]
    ]
    assert ids(client.send("GET", query={"after": made[3]})) == []
    late = client.create()
    assert ids(client.send("GET", query={"after": made[3]})) == [late]
    unknown = client.send("GET", query={"after": "unknown"})
    assert (unknown.status, unknown.json["error_code"]) == (404, "not_found")


def test_every_wrong_parameter_is_reported_at_its_place(client: Evaluator) -> None:
    answer = client.send("GET", query={"limit": -1, "offset": "x"})
    assert answer.status == 422
    assert [problem["loc"] for problem in answer.json["detail"]] == [["query", "limit"], ["query", "offset"]]


def many(client: Evaluator, platform: Platform, count: int) -> list[str]:
    view = platform.acting_as(platform.keys.create("acme").key.principal())
    return [view.evaluations.runs.create(EVALUATION, MODEL, project="capture").id for _ in range(count)]


@pytest.mark.parametrize("count", [1000, 1001])
def test_a_listing_of_any_length_is_complete(client: Evaluator, platform: Platform, count: int) -> None:
    made = many(client, platform, count)
    assert ids(client.send("GET")) == made


def test_a_long_listing_comes_piece_by_piece_and_breaks_off_when_the_store_fails(
    client: Evaluator, platform: Platform
) -> None:
    many(client, platform, 2050)
    response = client.endpoint.handle(Request("GET", RUNS, "", client.credentials(auth="Basic"), iter(())))
    assert response.status == 200
    pieces = iter(response.body)
    assert next(pieces).count(b"\n") == 1000
    platform.close()
    with pytest.raises(StoreClosed):
        list(pieces)


# ---- ending and deleting ----


def test_a_run_is_finished_once_with_one_summary(client: Evaluator) -> None:
    run = client.create()
    for body in (
        {"summary": {"accuracy": 1}},
        None,
        {},
        {"summary": None},
        {"summary": {"accuracy": 1}, "project": "x"},
    ):
        answer = client.send("POST", f"{RUNS}/{run}/finish", body)
        assert (answer.status, answer.json) == (200, {"success": True})
    finished = client.send("GET", f"{RUNS}/{run}").json
    assert (finished["status"], finished["summary"]) == ("completed", {"accuracy": 1})
    refused = client.send("POST", f"{RUNS}/{run}/finish", {"summary": {"accuracy": 2}})
    assert (refused.status, refused.json["error_code"]) == (400, "RUN_ALREADY_FINISHED")
    assert client.send("GET", f"{RUNS}/{run}").json == finished


def test_an_unknown_run_cannot_be_ended(client: Evaluator) -> None:
    for word in ("finish", "cancel", "fail"):
        answer = client.send("POST", f"{RUNS}/unknown/{word}")
        assert (answer.status, answer.json["error_code"]) == (404, "not_found")


@pytest.mark.parametrize("summary", [[], "text", 5])
def test_a_summary_that_is_not_an_object_is_refused_and_the_run_continues(client: Evaluator, summary: Any) -> None:
    run = client.create()
    answer = client.send("POST", f"{RUNS}/{run}/finish", {"summary": summary})
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["body", "summary"])
    assert client.send("GET", f"{RUNS}/{run}").json["status"] == "running"


@pytest.mark.parametrize(("word", "state"), [("cancel", "cancelled"), ("fail", "failed")])
def test_a_run_that_is_stopped_reads_as_failed_and_says_why(client: Evaluator, word: str, state: str) -> None:
    run, silent = client.create(), client.create()
    assert client.send("POST", f"{RUNS}/{run}/{word}", {"reason": "no need"}).json == {"success": True}
    assert client.send("POST", f"{RUNS}/{silent}/{word}").status == 200
    shown = client.send("GET", f"{RUNS}/{run}").json
    assert (shown["status"], shown["state"], shown["reason"]) == ("failed", state, "no need")
    assert client.send("GET", f"{RUNS}/{silent}").json["reason"] == state
    assert client.send("POST", f"{RUNS}/{run}/finish").status == 400
    too_long = client.send("POST", f"{RUNS}/{client.create()}/{word}", {"reason": "x" * 2001})
    assert (too_long.status, too_long.json["detail"][0]["loc"]) == (422, ["body", "reason"])


def test_deleting_counts_what_there_was(client: Evaluator) -> None:
    first, second, third = client.create(), client.create(), client.create()
    answer = client.send("DELETE", query=[("evaluation_run_ids", f"{first},unknown"), ("evaluation_run_ids", second)])
    assert answer.json == {"num_deleted": 2}
    assert ids(client.send("GET")) == [third]
    nothing = client.send("DELETE")
    assert (nothing.status, nothing.json["detail"][0]["loc"]) == (422, ["query", "evaluation_run_ids"])
