"""Predictions and scores: which run takes them, how they end, what goes with what, and who sees them."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.compose import open_platform
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound, RecordConflict, RunAlreadyFinished
from modelyard.platform.evaluations.predictions import add_prediction
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Settings
from modelyard.testing.clock import ManualClock

MODEL = "weave:///local/red/object/m:v0"
SCORER = "weave:///local/red/object/s:v0"
EVALUATION = "weave:///local/red/object/e:v0"
RED = {"project": "red"}


def run_of(platform: Platform, **more: Any) -> EvaluationRun:
    return platform.evaluations.runs.create(EVALUATION, MODEL, **{**RED, **more})


def predicted(
    platform: Platform, run: EvaluationRun | None = None, inputs: Any = None, output: Any = "1"
) -> Prediction:
    run_id = None if run is None else run.id
    platform._runtime.clock.advance(1)  # type: ignore[attr-defined]
    return platform.evaluations.predictions.create(MODEL, inputs or {"q": 1}, output, run_id=run_id, **RED)


def scored(platform: Platform, prediction: Prediction, value: Any = True, **more: Any) -> Score:
    platform._runtime.clock.advance(1)  # type: ignore[attr-defined]
    return platform.evaluations.scores.create(prediction.id, SCORER, value, **{**RED, **more})


# ---- keeping


def test_a_prediction_reads_back_as_it_was_made(platform: Platform) -> None:
    run = run_of(platform)
    made = platform.evaluations.predictions.create(
        MODEL, {"q": [1, "é"]}, {"a": None}, run_id=run.id, spans=[{"trace_id": "t", "span_id": "s"}], **RED
    )
    assert platform.evaluations.predictions.get(made.id) == made
    assert (made.model, made.run_id, made.output["value"]) == (MODEL, run.id, {"a": None})
    assert (made.row_digest, made.trial, made.finished_at) == (digest({"q": [1, "é"]}), 0, None)
    assert made.span["genai_span_ref"] == ({"trace_id": "t", "span_id": "s"},)


def test_equal_rows_of_one_run_are_trials_of_each_other(platform: Platform) -> None:
    run, other = run_of(platform), run_of(platform)
    trials = [predicted(platform, run, {"q": number % 2}).trial for number in range(6)]
    assert trials == [0, 0, 1, 1, 2, 2]
    assert predicted(platform, other, {"q": 0}).trial == 0
    assert predicted(platform, None, {"q": 0}).trial == 0


def test_a_place_in_a_run_is_taken_once(platform: Platform) -> None:
    run = run_of(platform)
    made = attrs.evolve(predicted(platform, run), id="engine", index=3, trial=1)
    store = platform._runtime.store
    store.transact(lambda tx: add_prediction(tx, made))
    with pytest.raises(RecordConflict):
        store.transact(lambda tx: add_prediction(tx, attrs.evolve(made, id="other")))


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
        lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
@examples(30)
def test_a_score_is_any_value_and_stays_what_it_is(value: Any) -> None:
    with open_platform(clock=ManualClock()) as platform:
        score = scored(platform, predicted(platform), value)
        kept = platform.evaluations.scores.get(score.id).value["value"]
        assert (kept, type(kept) is bool) == (value, type(value) is bool)


def test_a_score_is_in_the_run_of_its_prediction(platform: Platform) -> None:
    run, other = run_of(platform), run_of(platform)
    prediction, alone = predicted(platform, run), predicted(platform)
    assert scored(platform, prediction).run_id == run.id
    assert scored(platform, prediction, run_id=run.id).run_id == run.id
    assert scored(platform, alone).run_id is None
    for wrong in (prediction, alone):
        with pytest.raises(InvalidInput, match="evaluation_run_id"):
            scored(platform, wrong, run_id=other.id)


@pytest.mark.parametrize("value", [[1], float("nan"), object(), {"a": float("inf")}])
def test_what_is_not_a_score_is_refused(platform: Platform, value: Any) -> None:
    with pytest.raises(InvalidInput, match="value"):
        scored(platform, predicted(platform), value)


def test_wrong_references_are_refused_and_nothing_is_kept(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="model"):
        platform.evaluations.predictions.create("m", {}, **RED)
    prediction = predicted(platform)
    with pytest.raises(InvalidInput, match="scorer"):
        platform.evaluations.scores.create(prediction.id, "weave:///local/red/table/x", 1, **RED)
    assert len(list(platform.evaluations.predictions.list(**RED))) == 1
    assert not list(platform.evaluations.scores.list(**RED))


def test_the_strict_mode_wants_models_and_scorers_that_are_here() -> None:
    with open_platform(settings=Settings(reference_mode="resolve")) as platform:
        evaluations = platform.evaluations
        with pytest.raises(InvalidInput, match="model: must be the reference of a model"):
            evaluations.predictions.create(MODEL, {}, **RED)
        model = evaluations.objects.publish("model", "m", {"source_code": ""}, **RED)
        scorer = evaluations.objects.publish("scorer", "s", {"op_source_code": "x"}, **RED)
        prediction = evaluations.predictions.create(str(model.ref), {}, **RED)
        for ref in (SCORER, scorer.content["score_op"]):
            assert evaluations.scores.create(prediction.id, ref, 1, **RED).scorer == ref
        with pytest.raises(InvalidInput, match="scorer"):
            evaluations.scores.create(prediction.id, SCORER.replace("v0", "v1"), 1, **RED)


# ---- finishing


def test_a_finished_prediction_keeps_its_output(platform: Platform) -> None:
    predictions, prediction = platform.evaluations.predictions, predicted(platform, output="told")
    platform._runtime.clock.advance(2.5)  # type: ignore[attr-defined]
    finished = predictions.finish(prediction.id)
    assert (finished.output["value"], finished.latency) == ("told", 2.5)
    platform._runtime.clock.advance(60)  # type: ignore[attr-defined]
    assert predictions.finish(prediction.id) == predictions.finish(prediction.id, "told") == finished
    with pytest.raises(Conflict):
        predictions.finish(prediction.id, "other")
    assert predictions.get(prediction.id) == finished


def test_an_output_may_come_at_the_end(platform: Platform) -> None:
    predictions = platform.evaluations.predictions
    later, never = predicted(platform, output=None), predicted(platform, output=None)
    assert later.output == {}
    assert predictions.finish(later.id, 1).output == {"value": 1}
    assert predictions.finish(never.id).output == {"value": None}
    with pytest.raises(Conflict):
        predictions.finish(later.id, True)  # 1 and true differ


def test_finishing_a_run_closes_what_is_open_first(platform: Platform) -> None:
    run = run_of(platform)
    done = platform.evaluations.predictions.finish(predicted(platform, run).id)
    still_open = [predicted(platform, run, {"q": number}, None) for number in range(450)]
    platform.evaluations.runs.finish(run.id)
    kept = {found.id: found for found in platform.evaluations.predictions.list(run_id=run.id, **RED)}
    assert kept[done.id] == done
    closed = [kept[prediction.id] for prediction in still_open]
    assert {found.finished_at for found in closed} == {platform._runtime.clock.now()}
    assert {(found.output["value"], found.latency) for found in closed} == {(None, None)}
    assert platform.evaluations.predictions.finish(still_open[0].id) == closed[0]


@pytest.mark.parametrize("end", ["finish", "cancel", "fail"])
def test_a_run_that_ended_is_frozen(platform: Platform, end: str) -> None:
    run, predictions, scores = run_of(platform), platform.evaluations.predictions, platform.evaluations.scores
    prediction = predicted(platform, run)
    score = scored(platform, prediction)
    getattr(platform.evaluations.runs, end)(run.id)
    before = predictions.get(prediction.id)
    for act in (
        lambda: predicted(platform, run),
        lambda: scored(platform, prediction),
        lambda: predictions.delete([prediction.id], **RED),
        lambda: scores.delete([score.id], **RED),
    ):
        with pytest.raises(RunAlreadyFinished):
            act()
    if end != "finish":
        with pytest.raises(RunAlreadyFinished):
            predictions.finish(prediction.id)
    assert predictions.get(prediction.id) == before
    assert [found.id for found in scores.list(run_id=run.id, **RED)] == [score.id]


# ---- deleting


def test_deleting_a_prediction_takes_its_scores_along(platform: Platform) -> None:
    run = run_of(platform)
    first, second = predicted(platform, run), predicted(platform, run)
    scores = [scored(platform, prediction) for prediction in (first, first, second)]
    assert platform.evaluations.scores.delete([scores[0].id, "unknown", scores[0].id], **RED) == 1
    assert platform.evaluations.predictions.delete([first.id, "unknown"], **RED) == 1
    assert [score.id for score in platform.evaluations.scores.list(**RED)] == [scores[2].id]
    assert [found.id for found in platform.evaluations.predictions.list(**RED)] == [second.id]


@pytest.mark.slow
def test_deleting_runs_takes_all_that_belongs_to_them_along(platform: Platform) -> None:
    runs = [run_of(platform) for _ in range(3)]
    for run in runs:
        for number in range(150):
            scored(platform, predicted(platform, run, {"q": number}))
    alone = predicted(platform)
    assert platform.evaluations.runs.delete([runs[0].id, "unknown", runs[2].id], **RED) == 2
    left = list(platform.evaluations.predictions.list(**RED))
    assert {found.run_id for found in left} == {runs[1].id, None}
    assert len(left) == 151
    assert left[-1].id == alone.id
    assert {score.run_id for score in platform.evaluations.scores.list(**RED)} == {runs[1].id}


def test_a_deleted_entity_leaves_no_prediction_and_no_score(platform: Platform) -> None:
    run = run_of(platform)
    scored(platform, predicted(platform, run))
    other = platform.evaluations.predictions.create(MODEL, {}, "x", project="red", entity="rival")
    platform.delete_entity("local")
    for cls, index in ((Prediction, "by_entity"), (Score, "by_entity"), (EvaluationRun, "by_entity")):
        assert platform._runtime.store.read(lambda found, cls=cls, index=index: found.count(cls, index, "local")) == 0
    assert platform.evaluations.predictions.get(other.id) == other


# ---- listing and seeing


def test_lists_are_in_order_and_continue_after_any_item(platform: Platform) -> None:
    run = run_of(platform)
    made = [predicted(platform, run, {"q": number}).id for number in range(5)]
    alone = predicted(platform).id
    predictions = platform.evaluations.predictions
    assert [found.id for found in predictions.list(**RED)] == [*made, alone]
    assert [found.id for found in predictions.list(run_id=run.id, **RED).page(2, after=made[0])] == made[1:3]
    assert [found.id for found in predictions.list(run_id=run.id, **RED).after(made[2])] == made[3:]
    assert [found.id for found in predictions.list(**RED).after(made[4])] == [alone]
    assert not predictions.list(run_id="unknown", **RED)
    assert not predictions.list()
    with pytest.raises(NotFound):
        predictions.list(**RED).page(after="unknown")


def test_what_is_anothers_looks_as_if_it_did_not_exist(platform: Platform) -> None:
    run = run_of(platform, project="blue")
    blue = platform.evaluations.predictions.create(MODEL, {}, "x", run_id=run.id, project="blue")
    score = platform.evaluations.scores.create(blue.id, SCORER, 1, project="blue")
    red = platform.acting_as(Principal("red", "local", Scope("local", frozenset({"red"})))).evaluations
    for act in (
        lambda: red.predictions.get(blue.id),
        lambda: red.predictions.finish(blue.id),
        lambda: red.scores.get(score.id),
        lambda: red.scores.create(blue.id, SCORER, 1, **RED),
        lambda: red.predictions.create(MODEL, {}, "x", run_id=run.id, **RED),
        lambda: platform.evaluations.predictions.get(blue.id, **RED),
    ):
        with pytest.raises(NotFound):
            act()
    with pytest.raises(Forbidden):
        red.predictions.list(project="blue")
    assert not list(red.predictions.list(run_id=run.id, **RED))
    assert red.predictions.delete([blue.id], **RED) == red.scores.delete([score.id], **RED) == 0
    assert platform.evaluations.runs.get(run.id).state is RunState.RUNNING
