"""The header `Idempotency-Key` of the routes that queue evaluations, and the argument of Python that it becomes."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from http_client import Answer, Client
from modelyard.compose import open_platform
from modelyard.errors import IdempotencyKeyUsed, InvalidInput
from modelyard.platform.platform import Platform

PLACE: Any = {"entity": "acme", "project": "quizzes"}
ROWS = [{"prompt": "say yes", "expected": "say yes"}, {"prompt": "say no", "expected": "say yes"}]
ECHO = "weave:///acme/quizzes/object/echo"


@attrs.frozen
class Requester:
    """Requests evaluations or rescorings."""

    client: Client
    word: str

    @property
    def platform(self) -> Platform:
        return self.client.platform

    def body(self) -> dict[str, Any]:
        objects = self.platform.evaluations.objects
        dataset = objects.publish("dataset", "rows", {}, ROWS, **PLACE).ref
        scorer = str(objects.publish("scorer", "same", {"scorer": {"type": "exact_match"}}, **PLACE).ref)
        quiz = objects.publish("evaluation", "quiz", {"dataset": str(dataset), "scorers": [scorer]}, **PLACE).ref
        if self.word == "evaluate_model":
            return {"evaluation_ref": f"weave:///acme/quizzes/object/{quiz.name}", "model_ref": ECHO}
        source = self.platform.evaluations.run(quiz, "echo", **PLACE).run.id
        return {"source_evaluation_run_id": source, "scorer_refs": [scorer]}

    def ask(self, body: Any, key: str) -> Answer:
        body = {"project_id": "acme/quizzes", **body}
        headers = [("idempotency-key", key)]
        return self.client.send("POST", f"/evaluations/{self.word}", body, headers=headers, auth="Basic")

    def runs(self) -> int:
        return len(list(self.platform.evaluations.runs.list(**PLACE)))


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.worker().beat()
        yield opened


@pytest.fixture(params=["evaluate_model", "rescore"])
def requester(request: pytest.FixtureRequest, platform: Platform, client_for: Any) -> Requester:
    return Requester(client_for(platform), request.param)


def test_the_same_request_is_the_same_run_though_what_it_names_has_changed(requester: Requester) -> None:
    body = requester.body()
    before = requester.runs()
    first = requester.ask(body, "nightly-7")
    assert first.status == 200, first.raw
    requester.platform.worker().run_until_idle()
    objects = requester.platform.evaluations.objects
    objects.publish("evaluation", "quiz", {**objects.get("evaluation", "quiz", **PLACE).content, "trials": 2}, **PLACE)
    again = requester.ask(body, "nightly-7")
    assert (again.status, again.json, requester.runs()) == (200, first.json, before + 1)
    other = requester.ask(body, "nightly-8")
    assert (other.status, requester.runs()) == (200, before + 2)


def test_another_request_with_the_key_is_409_and_not_to_be_repeated(requester: Requester) -> None:
    body = requester.body()
    assert requester.ask(body, "nightly-7").status == 200
    before = requester.runs()
    changed = {"model_ref": f"{ECHO}:latest"} if "model_ref" in body else {"scorer_refs": body["scorer_refs"] * 2}
    refused = requester.ask({**body, **changed}, "nightly-7")
    assert (refused.status, refused.headers["x-should-retry"], requester.runs()) == (409, "false", before)
    assert refused.json["error_code"] == "idempotency_key_used"


def test_what_is_not_a_key_is_refused_at_the_header(requester: Requester) -> None:
    refused = requester.ask(requester.body(), "x" * 256)
    assert (refused.status, refused.locs) == (422, [["header", "Idempotency-Key"]])


def test_a_deleted_run_is_not_made_again(requester: Requester) -> None:
    body = requester.body()
    run_id = requester.ask(body, "nightly-7").json["call_id"]
    requester.platform.evaluations.runs.delete([run_id], **PLACE)
    assert requester.ask(body, "nightly-7").status == 404


@pytest.mark.slow
def test_the_header_is_described(requester: Requester) -> None:
    paths = requester.client.send("GET", "/openapi.json", key="").json["paths"]
    parameters = paths[f"/evaluations/{requester.word}"]["post"]["parameters"]
    assert [(one["name"], one["in"]) for one in parameters] == [("Idempotency-Key", "header")]


def test_rows_and_scorers_are_part_of_a_request_in_python(platform: Platform) -> None:
    submit = platform.evaluations.submit

    def ask(rows: Any = ROWS, scorers: Any = "exact_match", **options: Any) -> str:
        return submit("quiz", "echo", rows, scorers, idempotency_key="k", **PLACE, **options).id

    first, files = ask(), set(platform._runtime.artifacts.names())
    assert ask() == first
    for other in ({"rows": ROWS[:1]}, {"scorers": {"type": "contains"}}, {"trials": 2}):
        with pytest.raises(IdempotencyKeyUsed, match="'k' was used for another request"):
            ask(**other)
    for wrong in ({"rows": iter(ROWS)}, {"scorers": len}):
        with pytest.raises(InvalidInput, match="idempotency_key: cannot be used with"):
            ask(**wrong)
    assert set(platform._runtime.artifacts.names()) == files


def test_a_request_sent_twice_at_a_time_makes_one_run_and_leaves_no_rows_of_the_other(platform: Platform) -> None:
    def ask(rows: Any) -> str:
        return platform.evaluations.submit("quiz", "echo", rows, idempotency_key="k", **PLACE).id

    class Rows(list[Any]):
        """Rows during whose storing the same request comes again."""

        readings = 0
        other = ""

        def __iter__(self) -> Iterator[Any]:
            self.readings += 1
            if self.readings == 2:  # the first is that of the request
                self.other = ask(ROWS)
            return super().__iter__()

    rows = Rows(ROWS)
    assert ask(rows) == rows.other != ""
    assert len(list(platform.evaluations.runs.list(**PLACE))) == 1
    assert len(list(platform._runtime.artifacts.names())) == 1
