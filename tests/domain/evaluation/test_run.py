"""References, and states of runs and their transitions."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.evaluation.objects import (
    EVALUATION_KINDS,
    MODEL_KINDS,
    ObjectRef,
    RefKind,
    RefMode,
    object_id,
    reference_problem,
    same_scheme,
)
from modelyard.domain.evaluation.run import RUN_TRANSITIONS, EvaluationRun, RunState, check_run_transition
from modelyard.errors import RunAlreadyFinished

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
EVALUATION = "weave:///acme/capture/object/sample_eval:EEEE"
RUN = EvaluationRun("run", "acme", "capture", EVALUATION, EVALUATION, NOW)

tenants = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,30}", fullmatch=True)
words = st.from_regex(r"[\w.-]{1,40}", fullmatch=True)
versions = st.none() | st.from_regex(r"[\w-]{1,40}", fullmatch=True)
steps = st.tuples(st.sampled_from(["attr", "key", "index", "id"]), st.text(min_size=1, max_size=20))


@st.composite
def references(draw: st.DrawFn) -> ObjectRef:
    kind = draw(st.sampled_from(RefKind))
    version = draw(versions) if kind in (RefKind.OBJECT, RefKind.OP) else None
    path = tuple(draw(st.lists(steps, max_size=4)))
    return ObjectRef(draw(tenants), draw(tenants), kind, draw(words), version, path)


# ---- references ----


@pytest.mark.slow
@given(references())
def test_a_reference_reads_back_as_what_was_written(ref: ObjectRef) -> None:
    assert ObjectRef.parse(str(ref)) == ref


@pytest.mark.slow
@given(references())
def test_both_schemes_are_one(ref: ObjectRef) -> None:
    ours = "modelyard" + str(ref).removeprefix("weave")
    assert ObjectRef.parse(ours) == ref
    assert same_scheme(ours) == str(ref) == same_scheme(str(ref))


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    for candidate in (
        text,
        f"weave:///a/b/object/{text}",
        f"weave:///{text}/b/object/n",
        f"weave:///a/b/object/n/key/{text}",
    ):
        ref = ObjectRef.parse(candidate)
        assert ref is None or ObjectRef.parse(str(ref)) == ref


def test_a_path_is_taken_apart_and_decoded() -> None:
    ref = ObjectRef.parse("weave:///a/b/object/n:v1/attr/rows/index/3/key/x%2Fy%20z")
    assert ref is not None
    assert ref.path == (("attr", "rows"), ("index", "3"), ("key", "x/y z"))


@each_case(
    "text",
    [
        "",
        "sample_eval",
        "weave://a/b/object/n",
        "weave:////a/b/object/n",
        "https:///a/b/object/n",
        "weave:///a/b/object/",
        "weave:///a/b/object/n:",
        "weave:///a/b/object/n:v1:v2",
        "weave:///a/b/thing/n",
        "weave:///../b/object/n",
        "weave:///a/./object/n",
        "weave:///a/b c/object/n",
        "weave:///a/b/object/n m",
        "weave:///a/b/object/n\n",
        "weave:///a/b/object/n\0",
        "weave:///a/b/object/n/key",
        "weave:///a/b/object/n/key/",
        "weave:///a/b/object/n/word/x",
        "weave:///a/b/object/n/key/%f",
        "weave:///a/b/object/n/key/%ff",
        "weave:///a/b/call/id:v1",
        "weave:///a/b/table/digest:v1",
        "weave:///a/b/object/" + "n" * 129,
        "weave:///a/b/object/n" + "/key/x" * 33,
    ],
)
def test_what_is_not_a_reference_is_none(text: str) -> None:
    assert ObjectRef.parse(text) is None


@each_case(
    ("kind", "of_evaluation", "of_model"),
    [("object", True, True), ("op", False, True), ("call", False, False), ("table", False, False)],
)
def test_an_evaluation_is_an_object_and_a_model_an_object_or_an_op(
    kind: str, of_evaluation: bool, of_model: bool
) -> None:
    text = f"weave:///a/b/{kind}/n"
    assert (reference_problem("evaluation", text, EVALUATION_KINDS, RefMode.SYNTAX) is None) == of_evaluation
    assert (reference_problem("model", text, MODEL_KINDS, RefMode.RESOLVE) is None) == of_model


def test_a_wrong_reference_is_reported_with_its_place_and_the_expected_form() -> None:
    problem = reference_problem("evaluation", "hello", EVALUATION_KINDS, RefMode.SYNTAX)
    assert problem is not None
    assert problem.loc == ("evaluation",)
    assert "modelyard:///<entity>/<project>/object/<name>" in problem.msg
    assert "hello" not in problem.msg


def test_a_lenient_reference_is_any_text_that_can_be_kept() -> None:
    assert reference_problem("model", "", MODEL_KINDS, RefMode.LENIENT) is None
    assert reference_problem("model", "anything at all", MODEL_KINDS, RefMode.LENIENT) is None
    assert reference_problem("model", "nul\0", MODEL_KINDS, RefMode.LENIENT) is not None
    assert reference_problem("model", "x" * 20_001, MODEL_KINDS, RefMode.LENIENT) is not None


@each_case(
    ("name", "expected"),
    [("My Model", "my_model"), ("Lab/Model-1.5:x", "lab_model-1.5x"), ("x" * 200, "x" * 128), ("Größe", "größe")],
)
def test_a_name_becomes_an_object_id(name: str, expected: str) -> None:
    assert object_id(name) == expected


@given(st.text(min_size=1))
def test_an_object_id_can_stand_in_a_reference(name: str) -> None:
    if found := object_id(name):
        assert ObjectRef.parse(f"weave:///a/b/object/{found}") is not None


# ---- states ----


@each_case("now", list(RunState))
@each_case("then", list(RunState))
def test_only_a_running_run_ends_and_only_a_failed_one_runs_again(now: RunState, then: RunState) -> None:
    ends = now is RunState.RUNNING and then is not RunState.RUNNING
    resumes = (now, then) == (RunState.FAILED, RunState.RUNNING)
    assert (then in RUN_TRANSITIONS[now]) == (ends or resumes)
    if ends or resumes:
        check_run_transition(now, then)
    else:
        with pytest.raises(RunAlreadyFinished, match=now.value):
            check_run_transition(now, then)


def test_a_cancelled_run_reads_as_failed() -> None:
    states = {state: attrs.evolve(RUN, state=state).status for state in RunState}
    assert states == {
        RunState.RUNNING: "running",
        RunState.COMPLETED: "completed",
        RunState.FAILED: "failed",
        RunState.CANCELLED: "failed",
    }


def test_finishing_again_changes_nothing_unless_the_summary_differs() -> None:
    done = RUN.finished({"accuracy": 1.0, "n": 1}, LATER)
    assert (done.state, done.finished_at) == (RunState.COMPLETED, LATER)
    much_later = LATER + timedelta(days=1)
    assert done.finished(None, much_later) is done
    assert done.finished({"n": 1, "accuracy": 1.0}, much_later) is done
    for other in ({}, {"accuracy": 1.0}, {"accuracy": 1.0, "n": True}, {"accuracy": 1.0, "n": 1, "x": None}):
        with pytest.raises(RunAlreadyFinished):
            done.finished(other, much_later)


def test_a_run_that_finished_without_a_summary_takes_none_later() -> None:
    done = RUN.finished(None, LATER)
    assert done.finished(None, LATER) is done
    with pytest.raises(RunAlreadyFinished):
        done.finished({}, LATER)


def test_a_stopped_run_keeps_its_first_reason_and_cannot_be_finished() -> None:
    failed = RUN.stopped(RunState.FAILED, "no room", LATER)
    assert (failed.reason, failed.finished_at) == ("no room", LATER)
    assert failed.stopped(RunState.FAILED, "another", LATER) is failed
    with pytest.raises(RunAlreadyFinished):
        failed.stopped(RunState.CANCELLED, "nobody wants it", LATER)
    with pytest.raises(RunAlreadyFinished):
        failed.finished(None, LATER)


def test_a_clock_that_goes_back_does_not_end_a_run_before_it_began() -> None:
    assert RUN.finished(None, NOW - timedelta(hours=1)).finished_at == NOW
