"""Evaluations that a program traces are kept as runs, in whatever order their calls arrive."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import open_platform
from modelyard.domain.evaluation.run import RunState
from modelyard.errors import StorageFull
from modelyard.parts.traces.evaluation_runs import EVALUATE, ROW
from modelyard.parts.traces.records import CallEnd, TracedCall
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Runtime

BEGAN = datetime(2026, 11, 29, tzinfo=UTC)
OP = "weave:///local/demo/op/"


def whole(id: str, op: str, parent: str | None, output: Any, **changes: Any) -> TracedCall:
    at = BEGAN + timedelta(seconds=int(changes.pop("at", 0)))
    call = TracedCall("local", "demo", id, "e", f"{OP}{op}:v", at, parent, inputs=changes.pop("inputs", {}))
    return call.with_end(CallEnd(id, at + timedelta(seconds=1), output, **changes))


def evaluation(rows: int, **changes: Any) -> list[TracedCall]:
    inputs = {"self": "weave:///local/demo/object/quiz:v0", "model": "weave:///local/demo/object/m:v0"}
    calls = [whole("e", EVALUATE, None, {"right": {}}, inputs=inputs, **changes)]
    for n in range(rows):
        failed = n == 1
        scores: dict[str, Any] = {} if failed else {"right": n % 2 == 0, "Length": n}
        output = {"output": None if failed else f"a{n}", "scores": scores, "model_latency": 0.5}
        usage = {"usage": {"m": {"input_tokens": 2, "completion_tokens": 1}}}
        example = {"q": str(n // 2)}  # two trials of each row
        row = whole(f"p{n}", ROW, "e", output, at=n, inputs={"example": example}, summary=usage)
        exception = '{"type": "ValueError", "message": "no answer"}' if failed else None
        calls += [row, whole(f"m{n}", "m", f"p{n}", None, at=n, exception=exception)]
        calls += [] if failed else [whole(f"s{n}", "right", f"p{n}", n % 2 == 0, at=n + 1)]
    return calls


def told(platform: Platform) -> list[Any]:
    (run,) = platform.evaluations.runs.list()
    assert run.summary is not None
    rows = [
        (row.row["q"], row.output, dict(row.scores), row.detail, row.latency, row.prompt_tokens, row.completion_tokens)
        for row in platform.evaluations.result(run.id).rows
    ]
    assert len({(row.row["q"], row.trial) for row in platform.evaluations.result(run.id).rows}) == len(rows)
    means = {name: one["mean"] for name, one in run.summary["scorers"].items()}
    return [run.state, run.evaluation, run.model, means, sorted(rows, key=str)]


@examples(30)
@given(st.data())
def test_calls_in_any_order_and_sent_twice_make_the_same_run(data: st.DataObject) -> None:
    calls = evaluation(5)
    order = data.draw(st.permutations(calls))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(calls)), max_size=4)))
    again = data.draw(st.lists(st.sampled_from(calls), max_size=3))
    with open_platform(project="demo") as platform:
        traces = platform.compat.traces
        for begin, end in zip([0, *cuts], [*cuts, len(calls)], strict=True):
            traces.calls.record(order[begin:end])
            traces.keep_runs([call.id for call in order[begin:end]])
        traces.calls.record(again)
        traces.keep_runs([call.id for call in again])
        state, *names, means, rows = told(platform)
    assert state is RunState.COMPLETED
    assert names == ["weave:///local/demo/object/quiz:v0", "weave:///local/demo/object/m:v0"]
    assert means == pytest.approx({"right": 2.5 / 3, "Length": 6.5 / 3})
    assert rows == EXPECTED_ROWS


EXPECTED_ROWS = [
    ("0", "a0", {"right": True, "Length": 0}, "", 0.5, 2, 1),
    ("0", None, {}, "ValueError: no answer", 0.5, 2, 1),
    ("1", "a2", {"right": True, "Length": 2}, "", 0.5, 2, 1),
    ("1", "a3", {"right": False, "Length": 3}, "", 0.5, 2, 1),
    ("2", "a4", {"right": True, "Length": 4}, "", 0.5, 2, 1),
]


def test_an_evaluation_that_raised_is_a_run_that_failed() -> None:
    with open_platform(project="demo") as platform:
        traces = platform.compat.traces
        traces.calls.record(evaluation(1, exception="Traceback: out of luck"))
        (run,) = traces.keep_runs(["e"])
        assert (run.state, run.reason) == (RunState.FAILED, "Traceback: out of luck")


def test_no_other_call_makes_a_run() -> None:
    with open_platform(project="demo") as platform:
        traces = platform.compat.traces
        calls = [*evaluation(2)[1:], whole("x", "other", None, 1)]
        traces.calls.record(calls)
        assert traces.keep_runs([*(call.id for call in calls), "unknown"]) == []
        assert [*platform.evaluations.runs.list()] == []


NAMES = st.text(max_size=3) | st.sampled_from(["output", "scores"])
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
JSON = st.recursive(
    LEAVES | st.just("weave:///local/demo/object/x:v0/attr/rows/id/ab"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)


@examples(100)
@given(JSON, JSON, JSON)
def test_whatever_a_client_sends_as_an_evaluation_is_recorded(output: Any, example: Any, model: Any) -> None:
    with open_platform(project="demo") as platform:
        traces = platform.compat.traces
        row = whole("p", ROW, "e", output, inputs={"example": example})
        traces.calls.record([whole("e", EVALUATE, None, output, inputs={"self": example, "model": model}), row])
        for run in traces.keep_runs(["e", "p"]):
            assert len(platform.evaluations.result(run.id).rows) == 1
            str(platform.evaluations.report(run))


NUMBERS = st.sampled_from([1e12, -1.0, 1e308, 2**62, 2**63 - 1, -(2**63), True, 0.5, 3, None, "2", [1]])


@examples(60)
@given(st.data())
def test_whatever_numbers_a_client_sends_its_evaluation_ends_as_a_run(data: st.DataObject) -> None:
    calls = evaluation(0)
    for n in range(3):
        output = {"output": "a", "scores": {"right": data.draw(NUMBERS)}, "model_latency": data.draw(NUMBERS)}
        used = {name: {"input_tokens": data.draw(NUMBERS), "output_tokens": data.draw(NUMBERS)} for name in ("m", "n")}
        calls.append(whole(f"p{n}", ROW, "e", output, inputs={"example": {"q": n}}, summary={"usage": used}))
    with open_platform(project="demo") as platform:
        traces = platform.compat.traces
        traces.calls.record(calls)
        (run,) = traces.keep_runs(["e"])
        assert run.state is RunState.COMPLETED
        rows = platform.evaluations.result(run.id).rows
        assert len(rows) == 3
        for row in rows:
            assert row.latency is not None
            assert 0 <= row.latency <= 1e9
            assert all(count is None or 0 <= count < 2**63 for count in (row.prompt_tokens, row.completion_tokens))
        str(platform.evaluations.report(run))


def test_a_row_at_the_end_of_time_is_kept() -> None:
    calls = evaluation(0)
    at = datetime.max.replace(tzinfo=UTC) - timedelta(seconds=1)
    row = TracedCall("local", "demo", "p", "e", f"{OP}{ROW}:v", at, "e", inputs={"example": {}})
    calls.append(row.with_end(CallEnd("p", at, {"output": "a", "scores": {}, "model_latency": 9e8})))
    with open_platform(project="demo") as platform:
        platform.compat.traces.calls.record(calls)
        (run,) = platform.compat.traces.keep_runs(["e"])
        assert run.state is RunState.COMPLETED


@pytest.mark.parametrize("odd", [StorageFull("no room"), RuntimeError("odd")])
def test_what_goes_wrong_after_the_calls_are_recorded_is_logged(
    odd: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Runtime) -> None:
        raise odd

    with open_platform(project="demo") as platform:
        traces = platform.compat.traces
        traces.calls.record(evaluation(2))
        with monkeypatch.context() as patch:
            patch.setattr(Runtime, "require_room", refuse)
            assert traces.keep_runs(["e"]) == []
        assert "the traced evaluation e is not kept as a run" in caplog.text
        assert [*platform.evaluations.runs.list()] == []
        (run,) = traces.keep_runs(["e"])
        assert run.state is RunState.COMPLETED
