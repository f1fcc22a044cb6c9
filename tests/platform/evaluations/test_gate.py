"""What a promotion may require: that the candidate is not shown to be worse than what the alias points to."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from modelyard import open_platform
from modelyard.domain.promotion import NotWorse, PromotionRuns
from modelyard.errors import Conflict, InvalidInput, NotFound, PromotionRefused
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.models import promotion as service

REF = "weave:///acme/p/object/"
GOOD, BAD = [True] * 10, [False] * 10
MIXED = [True] * 5 + [False] * 5


@pytest.fixture
def trained(yard: Any) -> Any:
    """A yard whose model has the steps 0 to 2, of which 1 is promoted."""
    for number in range(2):
        yard.sft(2, tag=str(number))
    yard.worker().run_until_idle()
    yard.models.promote("p/m", 1)
    return yard


def scored(
    yard: Any,
    step: int,
    values: Sequence[Any],
    evaluation: str = "exam",
    project: str = "p",
    finish: bool = True,
    scheme: str = "weave",
) -> str:
    """A run on the checkpoint of a step, a score for each row."""
    yard.clock.advance(1)
    evaluations, place = Evaluations(yard.runtime, yard.principal), {"project": project}
    model = f"{REF}m:step{step}".replace("weave", scheme)
    run = evaluations.runs.create(REF + evaluation, model, **place)
    for number, value in enumerate(values):
        made = evaluations.predictions.create(model, {"n": number}, "x", run_id=run.id, **place)
        evaluations.scores.create(made.id, REF + "judge", value, **place)
    if finish:
        evaluations.runs.finish(run.id)
    return run.id


def promote(yard: Any, step: int = 2, **require: Any) -> Any:
    return yard.models.promote("p/m", step, require=NotWorse(**({"evaluation": "exam"} | require)))


def pair_of(candidate: str, baseline: str) -> PromotionRuns:
    return {"baseline": baseline, "candidate": candidate}


def step_of(yard: Any) -> int:
    (alias,) = yard.models.aliases("p/m")
    return int(alias.step)


def test_a_checkpoint_that_is_not_worse_is_promoted_and_the_numbers_are_kept(trained: Any) -> None:
    baseline, candidate = scored(trained, 1, MIXED), scored(trained, 2, GOOD)
    made = promote(trained, margin=0.01, confidence=0.9)
    assert (made.step, made.from_step) == (2, 1)
    numbers = dict(made.verdict)
    metric = numbers.pop("metrics")["judge"]
    assert numbers == {
        "outcome": "not worse",
        "evaluation": f"{REF}exam",
        "candidate_run": candidate,
        "baseline_run": baseline,
        "margin": 0.01,
        "confidence": 0.9,
        "rows": 10,
    }
    assert (metric["baseline"], metric["candidate"], metric["difference"], metric["rows"]) == (0.5, 1.0, 0.5, 10)
    assert metric["low"] < 0.5 < metric["high"]
    (_, read) = trained.models.promotions("p/m")
    assert read == made


def test_a_checkpoint_that_is_shown_to_be_worse_is_refused_and_nothing_changes(trained: Any) -> None:
    scored(trained, 1, GOOD)
    scored(trained, 2, BAD)
    with pytest.raises(PromotionRefused, match="the candidate is worse"):
        promote(trained)
    assert step_of(trained) == 1
    assert len(trained.models.promotions("p/m").page().items) == 1
    assert promote(trained, margin=1.0).step == 2


def test_a_difference_that_is_not_shown_does_no_harm(trained: Any) -> None:
    scored(trained, 1, [*GOOD[:-1], False])
    scored(trained, 2, [*GOOD[:-2], False, False])
    assert promote(trained).step == 2


def test_the_newest_completed_runs_of_one_version_are_compared(trained: Any) -> None:
    scored(trained, 1, BAD)
    scored(trained, 1, GOOD, "exam:v2")
    scored(trained, 1, BAD, "exam:v3")
    scored(trained, 2, BAD, "exam:v2")
    scored(trained, 2, GOOD, "exam:v2", finish=False)
    scored(trained, 2, GOOD, "other")
    with pytest.raises(PromotionRefused, match="is worse"):
        promote(trained)
    with pytest.raises(PromotionRefused, match=r"no completed run of .*exam:v3' on step 2"):
        promote(trained, evaluation=f"{REF}exam:v3")
    scored(trained, 2, GOOD, "exam:v2", scheme="modelyard")
    assert promote(trained).step == 2


def test_without_a_run_on_both_there_is_nothing_to_judge_by_and_it_is_refused(trained: Any) -> None:
    with pytest.raises(PromotionRefused, match="on step 2 and step 1 of p/m"):
        promote(trained)
    scored(trained, 2, GOOD)
    with pytest.raises(PromotionRefused, match="on step 1 of p/m"):
        promote(trained)
    scored(trained, 1, GOOD, "exam:v2")
    with pytest.raises(PromotionRefused, match="the same version"):
        promote(trained)


def test_runs_without_a_scored_row_in_both_are_refused(trained: Any) -> None:
    scored(trained, 1, [None] * 3)
    scored(trained, 2, [True] * 3)
    with pytest.raises(PromotionRefused, match="no scored rows"):
        promote(trained)


def test_runs_can_be_named_and_must_be_completed_ones_of_these_checkpoints(trained: Any) -> None:
    baseline, candidate = scored(trained, 1, GOOD), scored(trained, 2, GOOD)
    running, other = scored(trained, 2, GOOD, finish=False), scored(trained, 0, GOOD)
    for runs, name in (
        ((candidate, other), "baseline"),
        ((running, baseline), "candidate"),
        ((baseline, candidate), "candidate"),
    ):
        with pytest.raises(InvalidInput) as refused:
            promote(trained, evaluation=None, runs=pair_of(*runs))
        assert refused.value.problems[0].loc == ("runs", name)
    with pytest.raises(NotFound):
        promote(trained, evaluation=None, runs=pair_of(candidate, "never"))
    assert promote(trained, evaluation=None, runs=pair_of(candidate, baseline)).verdict["baseline_run"] == baseline


def test_one_metric_can_be_what_counts(trained: Any) -> None:
    scored(trained, 1, [{"a": 1.0, "b": 1.0 + at / 100} for at in range(10)])
    scored(trained, 2, [{"a": 2.0, "b": 0.0} for _ in range(10)])
    with pytest.raises(PromotionRefused, match=r"judge\.b"):
        promote(trained)
    assert list(promote(trained, metric="judge.a").verdict["metrics"]) == ["judge.a"]


def test_of_an_alias_that_points_to_nothing_or_there_already_the_candidate_needs_a_run(trained: Any) -> None:
    run = scored(trained, 2, GOOD)
    scored(trained, 1, GOOD, "exam2")
    for alias, step in (("canary", 1), ("prod", 1)):
        with pytest.raises(PromotionRefused, match=r"on step 1 of p/m; .*on exam2.*did you mean 'exam2'"):
            trained.models.promote("p/m", step, alias, require=NotWorse("exam"))
        with pytest.raises(InvalidInput, match="completed run on step 1 of m"):
            trained.models.promote("p/m", step, alias, require=NotWorse(runs={"candidate": run, "baseline": run}))
    first = trained.models.promote("p/m", 2, "canary", require=NotWorse("exam"))
    assert first.verdict == {"outcome": "there was nothing to compare with"}
    assert trained.models.promote("p/m", 2, "canary", require=NotWorse("exam")) == first


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"metric": "judg"}, "must be a metric of both runs: judge"),
        ({"margin": -1.0}, "margin"),
        ({"confidence": 1.0}, "confidence"),
        ({"lower_is_better": ("judg",)}, "must be one of the metrics: judge; did you mean 'judge'"),
    ],
)
def test_what_no_run_meets_is_refused_though_nothing_is_compared(trained: Any, wrong: Any, said: str) -> None:
    run = scored(trained, 1, GOOD)
    both: Any = {"evaluation": None, "runs": pair_of(run, run)}
    for given in ({"evaluation": "exam", **wrong}, {**both, **wrong}):
        for alias in ("prod", "canary"):
            with pytest.raises(InvalidInput, match=said):
                trained.models.promote("p/m", 1, alias, require=NotWorse(**given))
    assert trained.models.promote("p/m", 1, require=NotWorse("exam", metric="judge")).step == 1


def test_an_alias_that_moves_while_its_promotion_is_checked_is_not_moved_again(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(trained, 1, GOOD)
    scored(trained, 2, GOOD)
    judge = service.promotion_evidence

    def slow(*arguments: Any) -> Any:
        numbers = judge(*arguments)
        trained.models.promote("p/m", 0)
        return numbers

    monkeypatch.setattr(service, "promotion_evidence", slow)
    with pytest.raises(Conflict, match="was moved while"):
        promote(trained)
    assert step_of(trained) == 0


def test_runs_outside_of_the_scope_do_not_count(trained: Any) -> None:
    scored(trained, 1, GOOD, project="q")
    scored(trained, 2, GOOD)
    held = attrs.evolve(trained, principal=trained.as_tenant("acme", "p").principal)
    with pytest.raises(PromotionRefused, match="on step 1 of p/m"):
        promote(held)
    assert promote(trained).step == 2


@pytest.mark.parametrize("given", [{}, {"evaluation": "e", "runs": {"baseline": "a", "candidate": "b"}}])
def test_either_an_evaluation_or_runs_are_given(given: Any) -> None:
    with pytest.raises(InvalidInput, match="either an evaluation or two runs"):
        NotWorse(**given)


@pytest.mark.parametrize(
    "wrong", [{"confidence": 1.0}, {"margin": -1.0}, {"metric": "none"}, {"evaluation": "weave:///x"}]
)
def test_what_cannot_be_required_is_refused(trained: Any, wrong: Any) -> None:
    scored(trained, 1, GOOD)
    scored(trained, 2, GOOD)
    with pytest.raises((InvalidInput, PromotionRefused)) as refused:
        promote(trained, **wrong)
    assert isinstance(refused.value, InvalidInput), refused.value


def test_runs_of_a_published_version_are_found_however_the_version_is_named(trained: Any) -> None:
    objects = Evaluations(trained.runtime, trained.principal).objects
    dataset = objects.publish("dataset", "d", {}, [{"n": 1}], project="p")
    for trials in (1, 2):
        exam = objects.publish("evaluation", "exam", {"dataset": str(dataset.ref), "trials": trials}, project="p")
    objects.alias("evaluation", "exam", "v1", "final", project="p")
    scored(trained, 1, GOOD, "exam:v0")
    scored(trained, 1, MIXED, f"exam:{exam.digest}")
    scored(trained, 2, GOOD, "exam:v1")
    names = ("exam", "exam:v1", "Exam:final", "exam:latest", f"exam:{exam.digest}", f"{REF}exam:v1", exam.ref, exam)
    for name in names:
        made = trained.models.promote("p/m", 2, require=NotWorse(name))
        assert made.verdict["metrics"]["judge"]["baseline"] == 0.5, name
        trained.models.promote("p/m", 1)
    with pytest.raises(PromotionRefused, match=r"run of 'exam:v0' on step 2 of p/m; evaluate it first; published"):
        promote(trained, evaluation="exam:v0")
    with pytest.raises(PromotionRefused, match=r"of it: v0, v1; step 2 was evaluated on exam:v1; "):
        promote(trained, evaluation="exam:v7")
    with pytest.raises(InvalidInput, match="must be a name such as quiz or quiz:v0"):
        promote(trained, evaluation=5)
    with pytest.raises(InvalidInput, match="require: must be NotWorse"):
        trained.models.promote("p/m", 2, require="exam")


def test_a_verdict_is_true_if_it_passed() -> None:
    with open_platform() as platform:
        rows = [{"prompt": "a", "expected": "a"}, {"prompt": "b", "expected": "c"}]
        run = platform.evaluations.run("quiz", "echo", rows)
        for least, passed in ((0.4, True), (0.9, False)):
            gate = platform.evaluations.gate(run, {"exact_match": least})
            assert [bool(gate), gate.passed, *map(bool, gate.checks)] == [passed] * 3
        for beyond, said in ((90, r"exact_match: must be at most 1, .* did you mean 0\.9\?"), (101, "at most 1")):
            with pytest.raises(InvalidInput, match=said):
                platform.evaluations.gate(run, {"exact_match": beyond})
        same = platform.evaluations.compare(run, run).comparison
        assert same.check_not_worse()
        assert not attrs.evolve(same, metrics=()).check_not_worse()
        found = platform.health.system_check()
        assert (bool(found), bool(found.api), bool(found.worker)) == (found.success, True, found.worker.success)
