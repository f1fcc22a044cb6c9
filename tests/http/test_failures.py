"""Every exception of the library has its status in every error format."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from each import check_each, each_case
from every_route import error_formats
from modelyard import errors, open_platform
from modelyard.backends import ScriptedBackend, on, say
from modelyard.http import errors as refusal
from modelyard.http.error_responses import DETAIL, REASON, error_status, failed
from modelyard.http.interface import ErrorFormat


def all_below(cls: type) -> list[type]:
    return [cls, *(found for below in cls.__subclasses__() for found in all_below(below))]


PROBLEM = [errors.Problem(("body", "n"), "must be at least 1")]
ARGUMENTS: dict[type, tuple[Any, ...]] = {
    errors.InvalidInput: (PROBLEM,),
    errors.UnsupportedParameter: (PROBLEM,),
    errors.ContextLengthExceeded: (PROBLEM,),
    errors.NoAnswerPrepared: (PROBLEM,),
    errors.NotFound: ("model", "m"),
    errors.ModelNotFound: ("model", "m"),
    errors.ObjectDeleted: ("model", "m", datetime(2026, 1, 1, tzinfo=UTC)),
    errors.RateLimited: ("slow down", 2.5),
    errors.BodyTooLarge: (10,),
    errors.MissingExtra: ("torch", "torch"),
    errors.JobFailed: ("j", "failed", "why"),
    errors.Overloaded: ("full", 3.0),
    errors.QueueFull: ("full", 3.0),
    refusal.MethodNotAllowed: (["GET"],),
}
CLASSES = [cls for cls in all_below(errors.ModelyardError) if cls.__module__.startswith("modelyard")]


@each_case("error_format", error_formats())
def test_every_class_has_a_status_and_a_body(error_format: ErrorFormat) -> None:
    def check(cls: type) -> None:
        failure = cls(*next((ARGUMENTS[one] for one in cls.__mro__ if one in ARGUMENTS), ("a sentence",)))
        response = failed(failure, error_format, "req-1")
        assert isinstance(response.body, bytes)
        body = json.loads(response.body)
        if issubclass(cls, errors.CallerError | errors.QueueFull):
            assert 400 <= response.status < 500
        else:
            assert response.status >= 500
        members = {"error": "error", "errors": "errors", "type": "error", "code": "message"}
        member = members.get(error_format.name, "detail")
        assert body[member] if member in ("detail", "message") else "message" in str(body[member])
        assert ("retry-after" in dict(response.headers)) is (response.status in (429, 503, 529))

    check_each({cls.__name__: cls for cls in CLASSES}, check)


@each_case(
    ("failure", "statuses"),
    [
        (errors.InvalidInput(PROBLEM), (400, 422, 422, 400, 400, 400)),
        (errors.Conflict("taken"), (409, 409, 400, 409, 409, 409)),
        (errors.RunAlreadyFinished("frozen"), (400, 400, 400, 400, 400, 400)),
        (errors.BudgetExceeded("spent"), (402, 402, 402, 402, 402, 402)),
        (errors.NoWorker("start one"), (503, 503, 503, 503, 503, 503)),
        (errors.Overloaded("full"), (503, 503, 503, 503, 529, 503)),
        (errors.QueueFull("full"), (429, 429, 429, 429, 429, 429)),
        (ValueError("ours"), (500, 500, 500, 500, 500, 500)),
    ],
)
def test_statuses_by_error_format(failure: Exception, statuses: tuple[int, ...]) -> None:
    names = ("error", "detail", "reason", "errors", "type", "code")
    known = dict(zip(names, statuses, strict=True))
    for error_format in error_formats():
        assert error_status(failure, error_format) == known[error_format.name]


def test_the_evaluation_interface_reports_problems_as_specified() -> None:
    body = json.loads(failed(errors.InvalidInput(PROBLEM), REASON, "r").body)  # type: ignore[arg-type]
    assert body == {"detail": [{"loc": ["body", "n"], "msg": "must be at least 1", "type": "value_error"}]}


def test_a_conflict_asks_clients_not_to_try_again() -> None:
    assert dict(failed(errors.Conflict("taken"), DETAIL, "r").headers)["x-should-retry"] == "false"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (42, "a script cannot answer with 42; give a string"),
        (["a", "b"], "a script cannot stream a list of strings"),
        (lambda request: [request, 5], "a script cannot stream CompletionRequest"),
        (say("a", 5), "a script cannot stream 5"),  # type: ignore[arg-type]
        ({"x": object()}, "this answer of a script cannot be written as JSON: object"),
    ],
)
def test_a_script_that_cannot_be_followed_is_named_and_no_client_tries_again(
    client_for: Any, answer: Any, why: str, streamed: bool
) -> None:
    with open_platform(backend=ScriptedBackend([on().answer(answer)])) as platform:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "stream": streamed}
        refused = client_for(platform).send("POST", "/v1/chat/completions", body)
    if refused.status == 200:  # something was said before
        assert streamed
        assert why in refused.events[-1]["error"]["message"]
        return
    assert (refused.status, refused.headers["x-should-retry"]) == (400, "false")
    assert (refused.json["error"]["code"], refused.json["error"]["param"]) == ("no_answer_prepared", "messages")
    assert why in refused.json["error"]["message"]
