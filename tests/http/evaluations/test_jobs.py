"""Evaluations that workers do, over HTTP: asked for, followed, and refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from modelyard.compose import open_platform
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.platform import Platform

CAPTURES = Path(__file__).parents[2] / "captures" / "evaluation"
PLACE = {"project": "capture", "entity": "acme"}
ROWS = [{"prompt": f"say {number}", "expected": f"say {number}"} for number in range(3)]
ECHO = "weave:///acme/capture/object/parrot"


@attrs.frozen
class Asker:
    """Sends to the routes below /evaluations."""

    client: Any

    @property
    def evaluations(self) -> Any:
        return self.client.platform.evaluations

    def send(self, word: str, key: str | None = None, **body: Any) -> Any:
        body = {"project_id": "acme/capture", **body}
        return self.client.send("POST", f"/evaluations/{word}", body, auth="Basic", key=key)

    def of_run(self, run_id: str, word: str, method: str = "POST", place: str = "acme/capture", query: str = "") -> Any:
        path = f"/v2/{place}/evaluation_runs/{run_id}/{word}"
        return self.client.send(method, path, query=query, auth="Basic")

    def events(self, run_id: str, query: str = "") -> list[Any]:
        answer = self.of_run(run_id, "events", "GET", query=query)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/jsonl"), answer.raw
        return [json.loads(line) for line in answer.raw.splitlines()]

    def status(self, call_id: str) -> Any:
        answer = self.send("status", call_id=call_id)
        assert answer.status == 200, answer.raw
        return answer.json["status"]

    def published(self) -> str:
        """The reference of an evaluation with three rows and a declarative scorer."""
        publish = self.evaluations.objects.publish
        dataset = publish("dataset", "rows", {}, ROWS, **PLACE).ref
        scorer = publish("scorer", "found", {"scorer": {"type": "contains"}}, **PLACE).ref
        return str(publish("evaluation", "quiz", {"dataset": str(dataset), "scorers": [str(scorer)]}, **PLACE).ref)

    def refused(self, word: str, **body: Any) -> tuple[int, Any]:
        answer = self.send(word, **body)
        if answer.status == 422:
            return 422, [".".join(problem["loc"]) for problem in answer.json["detail"]]
        return answer.status, answer.json["error_code"]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("parrot", project="capture", base_model="tabular-mini", entity="acme")
        yield opened


@pytest.fixture
def alone(platform: Platform, client_for: Any) -> Asker:
    return Asker(client_for(platform))


@pytest.fixture
def worker(platform: Platform) -> Worker:
    """Has announced itself, and runs nothing until the test says so."""
    announced = platform.worker()
    announced.beat()
    return announced


@pytest.fixture
def asker(alone: Asker, worker: Worker) -> Asker:
    """Where jobs are taken, as a worker is there; they run when the test runs them."""
    return alone


def test_a_model_is_evaluated_by_a_worker_and_followed_to_its_end(asker: Asker, platform: Platform) -> None:
    requested = asker.send("evaluate_model", evaluation_ref=asker.published(), model_ref=ECHO)
    assert requested.status == 200, requested.raw
    call_id = requested.json["call_id"]
    assert asker.status(call_id) == {"code": "running", "completed_rows": 0, "total_rows": 0}
    platform.worker().run_until_idle()
    status = asker.status(call_id)
    run = platform.evaluations.runs.get(call_id)
    assert (status["code"], status["output"]) == (
        "complete",
        json.loads(json.dumps(dict(run.summary or {}), default=dict)),
    )
    assert run.model.endswith("/parrot:step0")


def test_a_run_in_shards_is_one_run_whose_events_are_continued_from_any_of_them(asker: Asker, worker: Worker) -> None:
    body = {"evaluation_ref": asker.published(), "model_ref": ECHO, "shards": 2, "needs": {"memory": 4}}
    call_id = asker.send("evaluate_model", **body).json["call_id"]
    worker.run_next()
    assert asker.status(call_id) == {"code": "running", "completed_rows": 2, "total_rows": 3}
    worker.run_until_idle()
    assert asker.status(call_id)["code"] == "complete"
    events = asker.events(call_id)
    assert {"shard_ended", "evaluation_ended"} < {event["type"] for event in events}
    assert asker.events(call_id, f"after={quote(events[2]['id'])}") == events[3:]
    assert asker.refused("evaluate_model", **{**body, "shards": 0}) == (422, ["body.shards"])


def test_finished_rows_are_reported_while_a_run_is_in_progress(asker: Asker, worker: Worker) -> None:
    """By a reader of events, who runs the job where no worker is."""
    call_id = asker.send("evaluate_model", evaluation_ref=asker.published(), model_ref=ECHO).json["call_id"]
    worker.stop()
    seen = []
    for _ in asker.evaluations.events(call_id):
        seen.append(asker.status(call_id))
    assert {"code": "running", "completed_rows": 0, "total_rows": 3} in seen
    assert seen[-1]["code"] == "complete"


def test_rescoring_the_outputs_of_a_run_makes_a_new_run(asker: Asker, platform: Platform) -> None:
    evaluation = asker.published()
    source = platform.evaluations.run(evaluation, "acme/capture/parrot", **PLACE).run
    other = platform.evaluations.objects.publish("scorer", "same", {"scorer": {"type": "exact_match"}}, **PLACE)
    capture = json.loads((CAPTURES / "post-evaluations-rescore-200.json").read_text())
    body = {"source_evaluation_run_id": source.id, "scorer_refs": [str(other.ref)]}
    assert body.keys() | {"project_id"} == capture["request"]["body"].keys()
    made = asker.send("rescore", **body).json
    assert made.keys() == capture["response"]["body"].keys()
    assert made["call_id"] == made["evaluation_run_id"] != source.id
    platform.worker().run_until_idle()
    assert asker.status(made["call_id"])["code"] == "complete"
    run = platform.evaluations.runs.get(made["evaluation_run_id"])
    assert (run.source_evaluation_run_id, run.source_known) == (source.id, True)
    assert platform.evaluations.runs.lineage(run.id).sources == (source,)
    assert {score.scorer for score in platform.evaluations.scores.list(run_id=run.id, **PLACE)} == {str(other.ref)}


def test_what_has_happened_to_a_run_is_listed_and_only_grows(asker: Asker, worker: Worker, platform: Platform) -> None:
    call_id = asker.send("evaluate_model", evaluation_ref=asker.published(), model_ref=ECHO).json["call_id"]
    worker.stop()
    assert asker.events(call_id) == []
    seen: list[Any] = []
    for _ in asker.evaluations.events(call_id):
        now = asker.events(call_id)
        assert now[: len(seen)] == seen
        seen = now
    first, *progress, last = seen
    assert first.keys() == {"id", "type", "data", "created_at"}
    assert (first["type"], last["type"]) == ("evaluation_started", "evaluation_ended")
    assert {event["type"] for event in progress} == {"evaluation_progress"}
    cost = progress[-1]["data"]["cost"]
    assert float(cost) > 0
    reported = {"done": 3, "total": 3, "score": 0.0, "scored": 3, "failed": 0, "cost": cost, "begun": 3, "open": []}
    assert progress[-1]["data"] == reported
    assert asker.events(call_id, "offset=1&limit=1") == seen[1:2]
    assert asker.events(call_id, "limit=0") == []
    assert asker.events(call_id, f"after={seen[0]['id']}") == seen[1:]
    made = platform.evaluations.runs.create(ECHO, ECHO, **PLACE)
    assert asker.events(made.id) == []


def failed_run(platform: Platform, scorers: Any = "exact_match") -> str:
    """The id of a run that was broken off after the first of three rows."""

    def shown(done: int, total: int | None, numbers: Any) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        platform.evaluations.run("e", "acme/capture/parrot", ROWS, scorers, concurrency=1, progress=shown, **PLACE)
    return list(platform.evaluations.runs.list(**PLACE))[-1].id


def test_a_run_that_failed_is_resumed_by_a_worker_under_its_id(asker: Asker, platform: Platform) -> None:
    run_id = failed_run(platform)
    before = asker.events(run_id)
    assert asker.status(run_id) == {"code": "failed", "error": "interrupted"}
    assert asker.of_run(run_id, "resume").json == {"success": True}
    assert asker.status(run_id)["code"] == "running"
    again = asker.of_run(run_id, "resume")
    assert (again.status, again.json["error_code"]) == (400, "conflict")
    platform.worker().run_until_idle()
    assert asker.status(run_id)["code"] == "complete"
    assert len(platform.evaluations.result(run_id).rows) == 3
    after = asker.events(run_id)
    assert after[: len(before)] == before
    assert [event["type"] for event in after if event["type"] != "evaluation_progress"] == [
        "evaluation_started",
        "evaluation_failed",
        "evaluation_started",
        "evaluation_ended",
    ]
    assert [e.id for e in platform.evaluations.events(run_id, after[0]["id"])] == [e["id"] for e in after[1:]]


def test_what_cannot_be_resumed_is_refused(asker: Asker, platform: Platform) -> None:
    def refusal(run_id: str, **where: str) -> tuple[int, str]:
        answer = asker.of_run(run_id, "resume", **where)
        return answer.status, answer.json["error_code"]

    done = platform.evaluations.run("e", "acme/capture/parrot", ROWS, **PLACE).run.id
    assert refusal(done) == (400, "RUN_ALREADY_FINISHED")
    assert refusal(platform.evaluations.runs.create(ECHO, ECHO, **PLACE).id) == (400, "conflict")
    assert refusal(failed_run(platform, lambda output, row: True)) == (400, "conflict")
    assert refusal("00000000-0000-7000-8000-000000000000") == (404, "not_found")
    assert refusal(done, place="acme/other") == (404, "not_found")
    assert asker.of_run(done, "events", "GET", "acme/other").status == 404
    assert asker.of_run(done, "events", "GET", query="limit=-1").status == 422


def test_nothing_is_resumed_without_a_worker(alone: Asker, platform: Platform) -> None:
    run_id = failed_run(platform)
    assert alone.of_run(run_id, "resume").status == 503
    assert platform.evaluations.runs.get(run_id).state == "failed"


def test_an_entry_of_the_catalogue_is_evaluated_by_its_own_reference(asker: Asker, platform: Platform) -> None:
    evaluation, entry = asker.published(), "tabular-mini"
    own = platform.evaluations.run(evaluation, entry, **PLACE).run.model
    assert own == f"weave:///acme/capture/object/{entry}"
    for ref in (own, f"{own}:latest"):
        requested = asker.send("evaluate_model", evaluation_ref=evaluation, model_ref=ref)
        assert requested.status == 200, requested.raw
        platform.worker().run_until_idle()
        run = platform.evaluations.runs.get(requested.json["call_id"])
        assert (run.state, run.model) == ("completed", own)
    assert asker.refused("evaluate_model", evaluation_ref=evaluation, model_ref=f"{own}:v0") == (404, "model_not_found")


def test_runs_of_clients_are_shown_as_recorded(alone: Asker, platform: Platform) -> None:
    run = platform.evaluations.runs.create(ECHO, ECHO, **PLACE)
    for name, call_id in (("-2", "8ad52557-5293-4861-95cf-511c63042dd3"), ("-3", run.id)):
        capture = json.loads((CAPTURES / f"post-evaluations-status-200{name}.json").read_text())
        assert {"status": alone.status(call_id)} == capture["response"]["body"]
    platform.evaluations.runs.finish(run.id, {"judge": {"mean": 0.5}})
    assert alone.status(run.id) == {"code": "complete", "output": {"judge": {"mean": 0.5}}}
    for stop in (platform.evaluations.runs.fail, platform.evaluations.runs.cancel):
        stopped = platform.evaluations.runs.create(ECHO, ECHO, **PLACE)
        stop(stopped.id, "it rained")
        assert alone.status(stopped.id) == {"code": "failed", "error": "it rained"}
    bare = platform.evaluations.runs.create(ECHO, ECHO, **PLACE)
    platform.evaluations.runs.finish(bare.id)
    assert alone.status(bare.id) == {"code": "complete", "output": {}}


def test_a_run_of_another_project_is_not_found(alone: Asker, platform: Platform) -> None:
    run = platform.evaluations.runs.create(ECHO, ECHO, project="q", entity="acme")
    assert alone.status(run.id) == {"code": "not_found"}
    assert alone.refused("rescore", source_evaluation_run_id=run.id, scorer_refs=[ECHO]) == (404, "not_found")


def test_without_a_worker_nothing_is_queued(alone: Asker) -> None:
    evaluation = alone.published()
    assert alone.refused("evaluate_model", evaluation_ref=evaluation, model_ref=ECHO) == (503, "no_worker")
    assert list(alone.evaluations.runs.list(**PLACE)) == []


@pytest.mark.parametrize(
    ("word", "body", "refusal"),
    [
        ("rescore", {"source_evaluation_run_id": "x", "scorer_refs": []}, (422, ["body.scorer_refs"])),
        ("rescore", {"source_evaluation_run_id": "x", "scorer_refs": ["bad", ECHO]}, (422, ["body.scorer_refs.0"])),
        ("rescore", {"source_evaluation_run_id": "x", "scorer_refs": [ECHO]}, (404, "not_found")),
        ("evaluate_model", {}, (422, ["body.evaluation_ref", "body.model_ref"])),
        ("evaluate_model", {"evaluation_ref": "", "model_ref": "m"}, (422, ["body.evaluation_ref", "body.model_ref"])),
        ("evaluate_model", {"evaluation_ref": ECHO, "model_ref": ECHO}, (404, "not_found")),
        (
            "evaluate_model",
            {"project_id": "acme", "evaluation_ref": ECHO, "model_ref": ECHO},
            (422, ["body.project_id"]),
        ),
        ("evaluate_model", {"project_id": "b/p", "evaluation_ref": ECHO, "model_ref": ECHO}, (403, "forbidden")),
        ("evaluate_model", {"project_id": "b/p", "evaluation_ref": "", "model_ref": ""}, (403, "forbidden")),
        ("status", {"project_id": "acme/a/b", "call_id": "x"}, (422, ["body.project_id"])),
        ("status", {"call_id": ""}, (422, ["body.call_id"])),
        ("status", {"project_id": "b/p", "call_id": "x"}, (403, "forbidden")),
    ],
)
def test_what_does_not_fit_is_refused(asker: Asker, word: str, body: Any, refusal: Any) -> None:
    assert asker.refused(word, **body) == refusal


def test_a_model_that_is_not_here_and_a_source_that_runs_are_refused(asker: Asker, platform: Platform) -> None:
    missing = {"evaluation_ref": asker.published(), "model_ref": f"{ECHO}:nobody"}
    assert asker.refused("evaluate_model", **missing) == (404, "model_not_found")
    running = platform.evaluations.runs.create(ECHO, ECHO, **PLACE).id
    scorer = str(platform.evaluations.objects.get("scorer", "found", **PLACE).ref)
    assert asker.refused("rescore", source_evaluation_run_id=running, scorer_refs=[scorer]) == (400, "conflict")


def test_source_code_is_never_run_so_such_a_scorer_is_422(asker: Asker, platform: Platform) -> None:
    run = platform.evaluations.runs.create(ECHO, ECHO, **PLACE)
    platform.evaluations.runs.finish(run.id)
    code = platform.evaluations.objects.publish("scorer", "evil", {"op_source_code": "def score(): ..."}, **PLACE)
    refused = asker.refused("rescore", source_evaluation_run_id=run.id, scorer_refs=[str(code.ref)])
    assert refused == (422, ["body.scorer_refs"])


def test_a_wrong_key_gets_no_status(asker: Asker) -> None:
    assert asker.send("status", key="wrong", call_id="x").status == 401
