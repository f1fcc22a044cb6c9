"""The whole SDK of W&B Weave, unmodified, against a served platform: what it writes is read back and compared."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

os.environ["WANDB_ERROR_REPORTING"] = "false"
os.environ["WEAVE_PRINT_CALL_LINK"] = "false"
os.environ["WEAVE_USE_SERVER_CACHE"] = "false"  # or what another server was sent counts as sent to this one
weave = pytest.importorskip("weave", reason="the SDK has lanes of its own: tests/clients/lanes.py weave weave-old")

# How the SDK hands its bodies to its own HTTP library.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)

ROWS = [{"q": str(number), "expected": str(number)} for number in range(5)]


@weave.op
def add(a: int, b: int) -> int:
    return a + b


@weave.op
def twice(x: int) -> int:
    return add(x, 1) * 2


@weave.op
def fails() -> None:
    raise ValueError("no such answer")


@weave.op
def exact(expected: str, output: str) -> dict[str, bool]:
    return {"right": expected == output}


@weave.op
def parrot(q: str) -> str:
    return q if q != "3" else "?"


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[Any]:
    names = {"WANDB_API_KEY": served.key, "WANDB_BASE_URL": served.root, "WF_TRACE_SERVER_URL": served.root}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        made = weave.init("acme/sdk")
        yield made
        weave.finish()


@pytest.fixture(autouse=True)
def nothing_left(client: Any) -> Iterator[None]:
    yield
    client.flush()
    client.delete_calls([call.id for call in client.get_calls()])


def plain(value: Any) -> Any:
    """A value of the SDK as JSON data."""
    if hasattr(value, "items"):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def test_ops_and_their_calls(client: Any, served: Any) -> None:
    assert twice(3) == 8
    with pytest.raises(ValueError, match="no such answer"):
        fails()
    client.flush()
    outer, inner, failed = client.get_calls(sort_by=[{"field": "started_at", "direction": "asc"}])
    assert (plain(outer.inputs), outer.output, outer.parent_id) == ({"x": 3}, 8, None)
    assert (plain(inner.inputs), inner.output, inner.parent_id) == ({"a": 3, "b": 1}, 4, outer.id)
    assert inner.trace_id == outer.trace_id != failed.trace_id
    assert "no such answer" in failed.exception
    assert [str(one.summary["weave"]["status"].value) for one in (outer, failed)] == ["success", "error"]
    assert [one.id for one in outer.children()] == [inner.id]
    kept = served.platform.compat.traces.calls.get(inner.id, entity="acme", project="sdk")
    assert (kept.op, kept.inputs["a"], kept.output["value"]) == ("add", 3, 4)
    ref = weave.publish(add)
    client.flush()
    assert ref.get()(2, 3) == 5
    assert [
        one.id for one in client.get_calls(filter={"op_names": [ref.uri if isinstance(ref.uri, str) else ref.uri()]})
    ]


def test_queries_of_calls(client: Any) -> None:
    for number in range(5):
        add(number, 10)
    client.flush()
    over = {"$expr": {"$gt": [{"$getField": "inputs.a"}, {"$literal": 2}]}}
    assert [one.output for one in client.get_calls(query=over)] == [13, 14]
    down = [{"field": "inputs.a", "direction": "desc"}]
    assert [one.output for one in client.get_calls(sort_by=down, limit=2)] == [14, 13]
    assert [one.output for one in client.get_calls(limit=2, offset=3)] == [13, 14]
    assert len(client.get_calls()) == 5
    assert [one.output for one in client.get_calls(page_size=2)] == [10, 11, 12, 13, 14]
    (first, *_), value = client.get_calls(limit=1), "shown"
    first.set_display_name(value)
    client.flush()
    assert client.get_call(first.id).display_name == value
    first.delete()
    assert len(client.get_calls()) == 4


def test_objects_and_tables(client: Any) -> None:
    value = {"a": 1, "b": [1, {"c": None}], "text": "é"}
    ref = weave.publish(value, "thing")
    client.flush()
    assert plain(ref.get()) == value
    assert plain(weave.ref("thing:v0").get()) == value
    other = weave.publish({**value, "a": 2}, "thing")
    client.flush()
    assert weave.ref("thing:latest").get()["a"] == 2
    assert other.digest != ref.digest
    dataset = weave.Dataset(name="questions", rows=weave.Table(ROWS))
    published = weave.publish(dataset)
    client.flush()
    found = published.get()
    assert (found.name, [plain(dict(row)) for row in found.rows]) == ("questions", ROWS)
    many = [{"n": number} for number in range(2500)]
    large = weave.publish(weave.Dataset(name="large", rows=weave.Table(many)))
    client.flush()
    rows = large.get().rows
    assert (len(rows), [row["n"] for row in rows] == list(range(2500))) == (2500, True)
    client.delete_object_version(other)
    with pytest.raises(Exception, match=r"deleted|404|not found"):
        other.get()


def test_feedback(client: Any) -> None:
    _, call = add.call(1, 2)
    client.flush()
    call.feedback.add_reaction("\N{THUMBS UP SIGN}")
    call.feedback.add_note("well done")
    call.feedback.add("rating", {"stars": 4})
    client.flush()
    found = {one.feedback_type: plain(one.payload) for one in client.get_call(call.id).feedback}
    assert found["wandb.note.1"] == {"note": "well done"}
    assert found["rating"] == {"stars": 4}
    assert len(found) == 3
    note = next(one for one in call.feedback if one.feedback_type == "wandb.note.1")
    call.feedback.purge(note.id)
    assert len(call.feedback.refresh()) == 2
    (shown,) = client.get_calls(include_feedback=True)
    assert len(shown.summary["weave"]["feedback"]) == 2


def test_an_evaluation(client: Any) -> None:
    evaluation = weave.Evaluation(name="exam", dataset=weave.Dataset(name="exam-rows", rows=ROWS), scorers=[exact])
    summary = asyncio.run(evaluation.evaluate(parrot))
    client.flush()
    assert summary["exact"]["right"] == {"true_count": 4, "true_fraction": 0.8}
    (run,) = client.get_calls(filter={"trace_roots_only": True})
    assert plain(run.output)["exact"] == plain(summary)["exact"]
    scored = [one.output for one in client.get_calls() if "op/exact" in one.op_name]
    assert sorted(one["right"] for one in scored) == [False, True, True, True, True]
    predictions = [one for one in client.get_calls(include_feedback=True) if "op/parrot" in one.op_name]
    assert len(predictions) == 5
    assert all(one.summary["weave"]["feedback"] for one in predictions)
    assert len(list(client.get_calls(scored_by="exact"))) == 5
    assert list(client.get_calls(scored_by="none")) == []


def test_an_evaluation_that_is_logged(client: Any) -> None:
    log = weave.EvaluationLogger(name="logged", model="parrot", dataset="few")
    for row in ROWS[:2]:
        prediction = log.log_prediction(inputs=row, output=row["q"])
        prediction.log_score("right", True)
        prediction.finish()
    log.log_summary({"mean": 1.0})
    client.flush()
    (run,) = client.get_calls(filter={"trace_roots_only": True})
    assert "mean" in str(plain(run.output))
    assert len(list(client.get_calls())) > 4


@pytest.mark.parametrize("fails", [False, True])
def test_a_conversation_is_calls_of_one_thread(client: Any, served: Any, fails: bool) -> None:
    from opentelemetry import trace

    with suppress(ValueError), weave.start_conversation(conversation_id="conv-1", agent_name="helper") as conversation:
        with conversation.start_turn(user_message="where is it?", model="echo") as turn:
            with turn.start_llm(model="echo", provider_name="here") as llm:
                llm.usage = weave.Usage(input_tokens=4, output_tokens=2)
            with weave.start_tool(name="look", arguments='{"id": 7}') as tool:
                tool.result = '{"found": true}'
                if fails:
                    raise ValueError("no tool")
    trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
    found = {call.op_name: call for call in client.get_calls()}
    agent, chat, used = found["invoke_agent"], found["chat"], found["execute_tool"]
    assert {call.thread_id for call in found.values()} == {"conv-1"}
    assert (chat.parent_id, used.parent_id, used.trace_id) == (agent.id, agent.id, agent.trace_id)
    assert (plain(used.inputs), plain(used.output)) == ({"arguments": {"id": 7}}, {"found": True})
    assert chat.summary["usage"]["echo"]["total_tokens"] == 6
    assert (used.exception is not None) is fails


def test_what_is_not_offered_is_refused_by_name(client: Any) -> None:
    ref = weave.publish({"text": "hi"}, name="thing")
    refused = [
        (lambda: client.add_cost("echo", 0.1, 0.2), "the ledger"),
        (lambda: client.query_costs("echo"), "the ledger"),
        (lambda: client.add_tags(ref, ["x"]), "tags"),
        (lambda: client.create_annotation_queue(name="q", description="", scorer_refs=[]), "feedback"),
    ]
    for action, words in refused:
        try:
            action()
        except AttributeError:  # a client before it could
            continue
        except Exception as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


class Length(weave.Scorer):  # type: ignore[misc]
    @weave.op
    def score(self, output: str) -> int:
        return len(output)


class Repeats(weave.Model):  # type: ignore[misc]
    times: int = 1

    @weave.op
    def predict(self, q: str) -> str:
        return q * self.times


@weave.op
def fails_on_two(q: str) -> str:
    if q == "2":
        raise ValueError("no such answer")
    return q


def test_an_evaluation_is_a_run_that_is_reported_and_compared(client: Any, served: Any) -> None:
    rows = [{"q": str(number), "expected": str(number)} for number in range(12)]
    quiz = weave.Evaluation(name="quiz", dataset=rows, scorers=[exact, Length()], trials=2)
    for model in (fails_on_two, Repeats(times=2)):
        asyncio.run(quiz.evaluate(model))
    client.flush()
    evaluations = served.platform.evaluations
    runs = [*evaluations.runs.list(entity="acme", project="sdk")]
    base, twice = runs = [run for run in runs if "/quiz:" in run.evaluation]
    assert [run.state for run in runs] == ["completed", "completed"]
    assert base.evaluation == twice.evaluation != ""
    assert "/op/fails_on_two:" in base.model
    assert "/object/Repeats:" in twice.model
    found = evaluations.result(base.id)
    assert len(found.rows) == 24
    assert {row.row["q"] for row in found.rows} == {row["q"] for row in rows}
    assert {row.trial for row in found.rows} == {0, 1}
    assert all(row.output == row.row["q"] for row in found.rows if not row.detail)
    assert [row.row["q"] for row in found.errors] == ["2", "2"]
    assert all("no such answer" in row.detail for row in found.errors)
    assert base.summary["scorers"]["exact.right"]["mean"] == 1.0
    assert twice.summary["scorers"]["Length"]["mean"] == pytest.approx((10 * 2 + 2 * 4) / 12)
    compared = evaluations.compare(base, twice, project="sdk", entity="acme")
    assert compared.metric("exact.right").verdict == "worse"
    (call, *_) = [one for one in client.get_calls() if "Evaluation.evaluate" in one.op_name]
    again = served.platform.compat.traces.keep_runs([call.id], entity="acme", project="sdk")
    assert {run.id for run in again} <= {base.id, twice.id}
    assert len(evaluations.result(base.id).rows) == 24


def test_what_is_logged_row_by_row_is_a_run_too(client: Any, served: Any) -> None:
    logger = weave.EvaluationLogger(name="by hand", model="mine", dataset="rows")
    for row in ROWS:
        logged = logger.log_prediction(inputs={"q": row["q"]}, output=row["q"])
        logged.log_score(scorer="right", score=row["q"] != "3")
        logged.finish()
    logger.log_summary({"done": True})
    client.flush()
    *_, run = served.platform.evaluations.runs.list(entity="acme", project="sdk")
    assert run.summary["scorers"]["right"]["mean"] == 0.8
    assert {row.row["q"] for row in served.platform.evaluations.result(run.id).rows} == {row["q"] for row in ROWS}
