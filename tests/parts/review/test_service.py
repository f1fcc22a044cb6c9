"""Rows are drawn and labelled blind; judges are checked, and their numbers corrected, by what people say."""

import csv
import io
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from each import each_case
from modelyard import Platform, open_platform
from modelyard.errors import Conflict, InvalidInput, NotFound, PromotionRefused
from modelyard.parts.review.judges import GONE

Row = dict[str, Any]


def rows(count: int, seed: int = 1, better: float = 0.0) -> list[Row]:
    """Rows that a judge finds right too often; `truth` is what people say."""
    chance = random.Random(seed)
    found = []
    for at in range(count):
        truth = chance.random() < 0.5
        verdict = truth if chance.random() < 0.8 else True
        found.append(
            {"prompt": f"question {at}", "truth": truth, "verdict": verdict, "lucky": chance.random() < better}
        )
    return found


def judge(output: Any, row: Mapping[str, Any]) -> bool:
    return bool(output["verdict"])


def stars(output: Any, row: Mapping[str, Any]) -> int:
    return 2 + 2 * bool(output["verdict"])


def answers(row: Mapping[str, Any]) -> Row:
    return {"text": row["prompt"], "verdict": row["verdict"], "truth": row["truth"]}


def improved(row: Mapping[str, Any]) -> Row:
    """A model that is right on more rows, as the judge sees, too."""
    return {"text": row["prompt"], "verdict": row["verdict"] or row["lucky"], "truth": row["truth"] or row["lucky"]}


def label_all(platform: Platform, review: str, person: str = "ann", first: int | None = None) -> None:
    for row in platform.review.rows(review, person)[:first]:
        platform.review.label(review, person, row.place, row.output["truth"])


def test_a_sample_is_random_and_the_same_for_every_run_over_the_same_rows(platform: Platform) -> None:
    runs = [platform.evaluations.run("quiz", model, rows(60), judge) for model in (answers, improved)]
    first, second = (platform.review.start(run, rows=12, seed=7) for run in runs)
    assert (first.population, first.size, first.propensity, first.yes_no) == (60, 12, 0.2, True)
    asked = [[row.inputs["prompt"] for row in platform.review.rows(one.id, "ann")] for one in (first, second)]
    assert asked[0] == asked[1]
    assert len({*asked[0]}) == 12
    assert asked[0] != sorted(asked[0])
    other = platform.review.start(runs[0], rows=12, seed=8)
    assert [row.inputs["prompt"] for row in platform.review.rows(other.id, "ann")] != asked[0]
    whole = platform.review.start(runs[0], rows=2000)
    assert (whole.size, whole.propensity) == (60, 1.0)
    assert [one.id for one in platform.review.list(run=runs[0], order="desc")] == [whole.id, other.id, first.id]
    assert [one.id for one in platform.review.list()] == [first.id, second.id, other.id, whole.id]


def test_equal_rows_all_count(platform: Platform) -> None:
    data = [{"prompt": "same", "truth": True, "verdict": True, "lucky": False}] * 12 + rows(4)
    runs = [platform.evaluations.run("quiz", model, data, judge) for model in (answers, answers)]
    reviews = [platform.review.start(run, rows=14, seed=3) for run in runs]
    for review in reviews:
        assert (review.population, review.size) == (16, 14)
        label_all(platform, review.id)
    first, second = ([row.inputs["prompt"] for row in platform.review.rows(one.id, "ann")] for one in reviews)
    assert first == second
    assert first.count("same") >= 10
    found = platform.review.estimate(runs[0]).corrected
    assert (found.rows, found.labelled) == (16, 14)
    between = platform.review.compare(*runs).corrected
    assert (between.rows, between.labelled) == (16, 14)


def test_rows_are_drawn_with_equal_chances() -> None:
    """Each row of 20 is among the 5 drawn in a quarter of 400 seeds."""
    from modelyard.parts.review.judges import JudgedRow, JudgedRows

    judged = JudgedRows("s", {(str(at), 0): JudgedRow(str(at), str(at), 1.0) for at in range(20)}, True, 0)
    drawn = [row.digest for seed in range(400) for row in judged.drawn(seed, 5)]
    assert all(70 <= drawn.count(str(at)) <= 130 for at in range(20))


def test_people_label_blind_until_they_are_done(platform: Platform) -> None:
    run = platform.evaluations.run("quiz", answers, rows(10), judge)
    review = platform.review.start(run, rows=4)
    for place in range(4):
        platform.review.label(review.id, "ann", place, place % 2 == 0, "a note")
    row = platform.review.rows(review.id, "bob")[0]
    assert (row.labelled, row.value, row.note) == (False, None, "")
    assert not {"verdict", "labels"} & {field.name for field in type(row).__attrs_attrs__}
    platform.review.label(review.id, "bob", 0, False)
    platform.review.label(review.id, "bob", 0, True)
    assert platform.review.rows(review.id, "bob")[0].value == 1.0
    upcoming = platform.review.next(review.id, "bob")
    assert upcoming is not None
    assert upcoming.place == 1
    with pytest.raises(Conflict, match="bob has not labelled every row"):
        platform.review.disagreements(review.id, "bob")
    with pytest.raises(Conflict, match="everybody who has begun"):
        platform.review.disagreements(review.id)
    with pytest.raises(Conflict, match="bob has not labelled every row"):
        platform.review.results(review.id, "bob")
    assert platform.review.results(review.id, "ann").corrected.labelled == 4
    with pytest.raises(Conflict, match="everybody who has begun"):
        platform.review.disagreements(platform.review.start(run, rows=2).id)
    for place in range(1, 4):
        platform.review.label(review.id, "bob", place, None)
    assert platform.review.next(review.id, "bob") is None
    seen = platform.review.disagreements(review.id, "bob")
    assert all({one.verdict, *one.labels.values()} - {None} == {0.0, 1.0} for one in seen)
    with pytest.raises(Conflict, match="their labels stay"):
        platform.review.label(review.id, "bob", 0, False)
    platform.review.label(review.id, "bob", 0, True)
    assert dict(platform.review.progress(review.id).people) == {"ann": 4, "bob": 4}


def test_rows_count_up_to_the_first_that_nobody_labelled(platform: Platform) -> None:
    """Else one could choose which rows count."""
    run = platform.evaluations.run("quiz", answers, rows(30), judge)
    review = platform.review.start(run, rows=20)
    for place in (0, 1, 2, 5, 6):
        platform.review.label(review.id, "ann", place, True)
    assert platform.review.progress(review.id).counted == 3
    assert platform.review.estimate(run).corrected.labelled == 3
    platform.review.label(review.id, "bob", 3, None)
    platform.review.label(review.id, "bob", 4, False)
    found = platform.review.estimate(run)
    assert (found.corrected.labelled, found.unsure) == (6, 1)


def test_a_biased_judge_is_corrected_with_its_error_in_the_interval(platform: Platform) -> None:
    data = rows(300)
    run = platform.evaluations.run("quiz", answers, data, judge)
    before = platform.review.estimate(run)
    assert before.corrected.interval is None
    assert "not checked: nobody has labelled rows" in str(before)
    review = platform.review.start(run, rows=100)
    label_all(platform, review.id)
    found = platform.review.estimate(run)
    truth = sum(row["truth"] for row in data) / 300
    assert found.corrected.interval is not None
    assert found.corrected.mean is not None
    assert truth in found.corrected.interval
    assert found.corrected.judged not in found.corrected.interval
    assert abs(found.corrected.mean - truth) < abs(found.corrected.judged - truth)
    assert "from 100 labels here" in str(found)
    agreement = found.check.agreement
    assert agreement is not None
    assert agreement.confusion is not None
    assert (agreement.labelled, agreement.people, agreement.confusion.sensitivity) == (100, 1, 1.0)
    assert agreement.specificity is not None
    assert 0.8 in agreement.specificity
    assert "specificity 0." in str(found.check)


def test_labels_of_another_run_correct_by_sensitivity_and_specificity(platform: Platform) -> None:
    checked = platform.evaluations.run("quiz", answers, rows(200), judge)
    label_all(platform, platform.review.start(checked, rows=150).id)
    data = rows(300, seed=2)
    found = platform.review.estimate(platform.evaluations.run("other", answers, data, judge))
    assert found.corrected.method == "rogan_gladen"
    assert found.corrected.interval is not None
    assert sum(row["truth"] for row in data) / 300 in found.corrected.interval
    assert "150 labels on other rows" in str(found)


def test_a_better_candidate_passes_and_too_few_labels_cannot_tell(platform: Platform) -> None:
    data = rows(400, better=0.4)
    before, after = (platform.evaluations.run("quiz", model, data, judge) for model in (answers, improved))
    asked: Any = {"baseline": before, "candidate": after, "margin": 0.05}
    with pytest.raises(AssertionError, match="the judge is not checked"):
        platform.review.assert_not_worse(**asked)
    reviews = [platform.review.start(run, rows=120) for run in (before, after)]
    for review in reviews:
        label_all(platform, review.id, first=8)
    same: Any = {"baseline": before, "candidate": before, "margin": 0.05}
    with pytest.raises(AssertionError, match="the judge cannot tell a difference of this size") as told:
        platform.review.assert_not_worse(**same)
    assert "labelled rows would tell" in str(told.value)
    for review in reviews:
        for row in platform.review.rows(review.id, "ann")[8:]:
            platform.review.label(review.id, "ann", row.place, row.output["truth"])
    found = platform.review.assert_not_worse(**asked)
    assert found.corrected.interval is not None
    assert found.corrected.interval.low > 0
    with pytest.raises(AssertionError, match=r"^worse \(margin 0.05\): -0\."):
        platform.review.assert_not_worse(baseline=after, candidate=before, margin=0.05)
    fewer: Any = {"baseline": after, "candidate": before, "margin": 0.05, "lower_is_better": True}
    assert platform.review.assert_not_worse(**fewer).labels_needed(0.05) is None


def test_numbers_are_labelled_and_corrected(platform: Platform) -> None:
    data = rows(200)
    run = platform.evaluations.run("quiz", answers, data, stars)
    review = platform.review.start(run, rows=60)
    assert review.choices == (2.0, 3.0, 4.0)
    for row in platform.review.rows(review.id, "ann"):
        platform.review.label(review.id, "ann", row.place, 2 + row.output["truth"])
    found = platform.review.estimate(run)
    assert found.corrected.interval is not None
    assert 2 + sum(row["truth"] for row in data) / 200 in found.corrected.interval
    assert found.check.agreement is not None
    assert found.check.agreement.confusion is None
    with pytest.raises(InvalidInput, match="must be one of 2, 3, 4, or nothing"):
        platform.review.label(review.id, "bob", 0, 5)
    same = platform.evaluations.run("quiz", answers, [row for row in data if row["verdict"]], stars)
    assert platform.review.start(same, rows=1).choices == ()
    free = platform.review.start(run, rows=10, choices=())
    platform.review.label(free.id, "bob", 0, 3.75)


def test_four_labels_that_agree_open_no_gate(platform: Platform) -> None:
    """Labels without any spread say little of the rows that nobody labelled."""
    runs = [platform.evaluations.run("quiz", model, rows(50), stars) for model in (answers, improved)]
    free, few = [], []
    for run in runs:
        free.append(platform.review.start(run, rows=4, choices=()))
        for place in range(4):
            platform.review.label(free[-1].id, "ann", place, 3)
    found = platform.review.estimate(runs[0])
    assert found.corrected.mean == 3
    assert found.corrected.interval is not None
    assert found.corrected.interval.high - found.corrected.interval.low > 0.5
    with pytest.raises(AssertionError, match="cannot tell"):
        platform.review.assert_not_worse(baseline=runs[0], candidate=runs[1], margin=0.05)
    for run in runs:
        few.append(platform.review.start(run, rows=40))
        for place in range(40):
            platform.review.label(few[-1].id, "ann", place, 3)
    between = platform.review.compare(*runs).corrected.interval
    assert between is not None
    assert -0.3 < between.low < -0.1
    assert 0.1 < between.high < 0.3


def test_labels_go_out_and_come_in_as_a_file(platform: Platform) -> None:
    run = platform.evaluations.run(
        "quiz", answers, [*rows(5), {"prompt": "=1+1", "truth": True, "verdict": True}], judge
    )
    review = platform.review.start(run, rows=6)
    platform.review.label(review.id, "ann", 2, None, "-what?")
    lines = list(csv.DictReader(io.StringIO(platform.review.write_csv(review.id, "ann"))))
    assert [line["label"] for line in lines] == ["", "", "?", "", "", ""]
    assert (lines[2]["note"], lines[0]["review"]) == ("'-what?", review.id)
    assert not any(cell.startswith("=") for line in lines for cell in line.values())
    text = "row,label,note\n0,Yes,\n1,no,because\n3,,\n2,?,'-what?\n"
    assert platform.review.read_csv(review.id, "ann", "\ufeff" + text) == 3
    assert [(row.value, row.note) for row in platform.review.rows(review.id, "ann")[:3]] == [
        (1.0, ""),
        (0.0, "because"),
        (None, "-what?"),
    ]
    written = platform.review.write_csv(review.id, "ann")
    assert platform.review.read_csv(review.id, "bob", written) == 3
    assert platform.review.write_csv(review.id, "bob") == written
    with pytest.raises(InvalidInput) as wrong:
        platform.review.read_csv(review.id, "ann", "row,label\n0,yes\n9,yes\n1,perhaps\n")
    assert [one.loc for one in wrong.value.problems] == [("file", "line 3", "row"), ("file", "line 4", "label")]
    with pytest.raises(InvalidInput, match="lacks the column label"):
        platform.review.read_csv(review.id, "ann", "row\n1\n")
    with pytest.raises(InvalidInput, match="labels of"):
        platform.review.read_csv(review.id, "ann", "review,row,label\nother,1,yes\n")


# ---- a judge that changes

LLM = {"type": "llm_judge", "model": "echo", "prompt": "yes {output}"}


def test_a_judge_that_changed_is_not_checked_until_it_is_labelled_again(platform: Platform) -> None:
    data = [{"prompt": f"say {at}"} for at in range(6)]
    run = platform.evaluations.run("quiz", "echo", data, {"good": LLM})
    review = platform.review.start(run, rows=6)
    for place in range(6):
        platform.review.label(review.id, "ann", place, place > 1)
    assert platform.review.check(run).checked
    again = platform.evaluations.run("quiz", "echo", data, {"good": {**LLM, "prompt": "yes! {output}"}})
    found = platform.review.check(again)
    assert not found.checked
    assert found.reason.startswith("its prompt, model or settings have changed since")
    assert platform.review.estimate(again).corrected.interval is None
    assert "not checked" in str(found)
    with pytest.raises(InvalidInput, match="two versions"):
        platform.review.compare(run, again)
    platform.review.label(platform.review.start(again, rows=6).id, "ann", 0, True)
    assert platform.review.check(again).checked
    assert platform.review.check(run).checked


def test_a_judge_whose_model_learned_is_not_checked(platform: Platform) -> None:
    model = platform.models.create("judge", project="default", base_model="tabular-mini")
    words = dict.fromkeys(("the", "a", "of", "to", "and", "in", "is", "i", "you", "it"), True)
    name = f"{model.project}/{model.name}"
    scorer = {**LLM, "model": name, "prompt": "{output}", "scale": "labels", "labels": words}
    run = platform.evaluations.run("quiz", "echo", [{"prompt": f"{at}"} for at in range(4)], {"good": scorer})
    review = platform.review.start(run, rows=1)
    platform.review.label(review.id, "ann", 0, True)
    assert platform.review.check(run).checked
    (was,) = platform.review.get(review.id).models.values()
    example = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "7"}]}
    platform.training.sft(model, [example]).wait()
    found = platform.review.check(run)
    assert not found.checked
    assert f"default/judge was {was} and is " in found.reason
    assert GONE not in found.reason


def moving(platform: Platform, kind: str) -> tuple[str, Callable[[], object]]:
    """Return the name of a judge, and what makes it mean another model."""
    if kind == "variant":
        for words in ("no {x}", "yes {x}"):
            platform.variants.publish("default/judge", model="echo", template=words)
        platform.variants.promote("default/judge", 1)
        return "variants/default/judge@prod", lambda: platform.variants.promote("default/judge", 2)
    model = platform.models.create("judge", project="default", base_model="tabular-mini")
    example = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "7"}]}
    if kind == "alias":
        platform.training.sft(model, [example]).wait()
        platform.models.promote(model, 0)
        return "default/judge:prod", lambda: platform.models.promote(model, 1)
    return "default/judge", lambda: platform.training.sft(model, [example]).wait()


@each_case("kind", ["variant", "alias", "latest"], ids=str)
def test_labels_of_one_model_do_not_vouch_for_the_next(kind: str) -> None:
    with open_platform() as platform:
        model, move = moving(platform, kind)
        words = dict.fromkeys(("the", "a", "of", "to", "and", "in", "is", "i", "you", "it", "no", "yes"), True)
        scorer = {**LLM, "model": model, "prompt": "{output}", "scale": "labels", "labels": words}
        data = [{"prompt": f"{at} yes"} for at in range(4)]
        old, older = (platform.evaluations.run("quiz", "echo", data, {"good": scorer}) for _ in range(2))
        review = platform.review.start(old, rows=2)
        platform.review.label(review.id, "ann", 0, True)
        assert platform.review.check(older).checked
        move()
        with pytest.raises(Conflict, match="rescore the run"):
            platform.review.start(older)
        new = platform.evaluations.run("quiz", "echo", data, {"good": scorer})
        platform.review.label(platform.review.start(new, rows=2).id, "ann", 0, True)
        assert platform.review.check(new).checked
        found = platform.review.check(older)
        assert not found.checked
        assert "rescore the run" in found.reason
        assert platform.review.estimate(old).corrected.interval is None


def test_a_promotion_may_require_what_labels_show(platform: Platform) -> None:
    data = rows(200, better=0.4)
    for number, model in enumerate((answers, improved), 1):
        platform.variants.publish("default/support", model="echo", system=f"version {number}")
        ref = platform.variants.get("default/support").ref_of(number)
        run = platform.evaluations.runs.create("weave:///local/default/object/quiz:v0", ref, project="default")
        for row in data:
            output = model(row)
            done = platform.evaluations.predictions.create(ref, row, output, run_id=run.id, project="default")
            scorer = "weave:///local/default/object/judge:v0"
            platform.evaluations.scores.create(done.id, scorer, judge(output, row), run_id=run.id, project="default")
        platform.evaluations.runs.finish(run.id)
    require = platform.review.not_worse("quiz:v0", 0.05)
    platform.variants.promote("default/support", 1, require=require)
    with pytest.raises(PromotionRefused, match="the judge is not checked"):
        platform.variants.promote("default/support", 2, require=require)
    reviews = [platform.review.start(run.id, rows=100) for run in platform.evaluations.runs.list_all()]
    for review in reviews:
        label_all(platform, review.id, first=5)
    with pytest.raises(PromotionRefused, match="the judge cannot tell a difference of this size"):
        platform.variants.promote("default/support", 2, require=require)
    for review in reviews:
        label_all(platform, review.id)
    move = platform.variants.promote("default/support", 2, require=require)
    assert move.verdict["outcome"] == "not worse"
    assert move.verdict["metrics"]["judge"]["low"] > 0
    with pytest.raises(PromotionRefused, match=r"^worse"):
        platform.variants.promote("default/support", 1, require=require)
    with pytest.raises(InvalidInput, match="more than 0"):
        platform.review.not_worse("quiz", 0)


@each_case(
    "wrong",
    [{"rows": 0}, {"rows": 2001}, {"rows": True}, {"seed": -1}, {"choices": (1.0, 2.0)}, {"scorer": "judges"}],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(wrong: Row) -> None:
    with open_platform() as platform:
        run = platform.evaluations.run("quiz", answers, rows(3), judge)
        with pytest.raises(InvalidInput):
            platform.review.start(run, **wrong)


@each_case(
    "choices",
    [(0, 1), (float("nan"),), (10**400,), (2, 1), (1, 1), ("a",), 5, "12", (1, float("inf")), (1.0, None)],
    ids=lambda one: f"{one!r:.20}",
)
def test_choices_that_no_label_can_be_are_refused(choices: Any) -> None:
    with open_platform() as platform:
        run = platform.evaluations.run("quiz", answers, rows(6), stars)
        with pytest.raises(InvalidInput, match="choices"):
            platform.review.start(run, choices=choices)
        zeros = platform.evaluations.run("bits", answers, rows(6), lambda output, _: int(output["verdict"]))
        made = platform.review.start(zeros, choices=(0, 1))
        label_all(platform, made.id)
        assert platform.review.estimate(zeros).corrected.labelled == 6


@each_case("value", [10**400, float("inf"), float("nan"), "1", [1]], ids=lambda one: f"{one!r:.20}")
def test_what_is_no_label_is_refused(value: Any) -> None:
    with open_platform() as platform:
        review = platform.review.start(platform.evaluations.run("quiz", answers, rows(3), stars), choices=())
        with pytest.raises(InvalidInput, match="value"):
            platform.review.label(review.id, "ann", 0, value)


def test_only_what_is_shown_is_true(platform: Platform) -> None:
    run = platform.evaluations.run("quiz", answers, rows(30), judge)
    assert not platform.review.check(run)
    review = platform.review.start(run, rows=30)
    label_all(platform, review.id)
    assert platform.review.check(run)
    found = platform.review.compare(run, run)
    with pytest.raises(TypeError, match=r"verdict\(margin\)"):
        bool(found)
    assert found.verdict(0.9)
    assert not found.verdict(0.0)
    wrong: Any
    for wrong in (-1, float("nan"), float("inf"), 10**400, "1", None, True):
        with pytest.raises(InvalidInput, match="margin"):
            found.verdict(wrong)
        with pytest.raises(InvalidInput, match="margin"):
            platform.review.not_worse("quiz", wrong if wrong is not True else 0)


def test_one_row_is_read_alone(platform: Platform) -> None:
    review = platform.review.start(platform.evaluations.run("quiz", answers, rows(9), judge))
    platform.review.label(review.id, "ann", 3, True, "why")
    every = platform.review.rows(review.id, "ann")
    assert [platform.review.row(review.id, "ann", at) for at in range(9)] == every
    for wrong in (9, -1, True):
        with pytest.raises(InvalidInput, match="row"):
            platform.review.row(review.id, "ann", wrong)


def test_unfinished_runs_are_refused(platform: Platform) -> None:
    queued = platform.evaluations.submit("quiz", "echo", [{"prompt": "x", "expected": "x"}])
    with pytest.raises(Conflict, match="label completed runs"):
        platform.review.start(queued)


@pytest.mark.parametrize("confidence", [2.0, 1.0, 0.0, float("nan"), "0.95"])
def test_a_confidence_that_no_interval_has_is_refused(platform: Platform, confidence: Any) -> None:
    run = platform.evaluations.run("lengths", lambda row: row["prompt"], rows(20), lambda output, _: len(output) / 7)
    review = platform.review.start(run, rows=10)
    for at in range(10):
        platform.review.label(review.id, "ann", at, 0.3 + at)
    asked = platform.review
    for ask in (
        lambda: asked.check(run, confidence=confidence),
        lambda: asked.estimate(run, confidence=confidence),
        lambda: asked.compare(run, run, confidence=confidence),
        lambda: asked.assert_not_worse(baseline=run, candidate=run, margin=0.1, confidence=confidence),
        lambda: asked.not_worse("lengths", 0.1, confidence=confidence),
    ):
        with pytest.raises(InvalidInput, match="confidence: must be"):
            ask()


def test_a_review_goes_with_its_run(platform: Platform) -> None:
    run = platform.evaluations.run("quiz", answers, rows(3), judge)
    one, other = (platform.review.start(run, rows=2) for _ in range(2))
    platform.review.label(one.id, "ann", 0, True)
    platform.review.delete(other.id)
    assert [found.id for found in platform.review.list()] == [one.id]
    platform.evaluations.runs.delete([run.run.id])
    assert list(platform.review.list()) == []
    with pytest.raises(NotFound):
        platform.review.rows(one.id, "ann")


@each_case("person", ["", " ann", "a/b", "x" * 65, None, "\ud800", "a\udfff"], ids=repr)
def test_people_have_names(person: Any) -> None:
    with open_platform() as platform:
        review = platform.review.start(platform.evaluations.run("quiz", answers, rows(3), judge), rows=1)
        with pytest.raises(InvalidInput, match="must be a name"):
            platform.review.label(review.id, person, 0, True)
