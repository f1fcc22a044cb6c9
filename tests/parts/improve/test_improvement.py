"""Roads to better answers, at equal budget, compared on rows that none of them has seen."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from modelyard import Platform, Pricing, ScriptedBackend, open_platform
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import Conflict, InvalidInput, JobFailed, ModelNotFound, NotFound
from modelyard.parts.improve.improvement import ImprovementHandle
from modelyard.parts.improve.roads import Roads
from prompt_tasks import BEGIN, MANY, MODELS, contains, script

PRICES = Pricing(prompt=Decimal("0.0001"), completion=Decimal("0.001"))


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(script, MODELS, pricing=PRICES)


@pytest.fixture
def platform(backend: ScriptedBackend) -> Iterator[Platform]:
    with open_platform(backend=backend, randomness=Random(1).randbytes) as opened:
        opened.variants.publish("desk/support", model="scripted", system=BEGIN)
        yield opened


def start(platform: Platform, *reflections: str, **more: Any) -> ImprovementHandle:
    roads = [platform.improve.prompt(reflection=one, calls=300, minibatch=4) for one in reflections]
    return platform.improve("desk/support", MANY, contains, **{"roads": roads, "seed": 3, "name": "better", **more})


def test_the_road_that_is_shown_to_be_better_is_recommended_with_its_interval(platform: Platform) -> None:
    found = start(platform, "fool", "thinker").result()
    fool, thinker = found.roads
    assert (fool.road, fool.version, fool.verdict, fool.score) == ("prompt", None, None, None)
    assert thinker.version == 2
    assert thinker.verdict == "better"
    assert found.baseline == 0.0
    assert thinker.score == thinker.difference > 0.9
    assert thinker.p is not None
    assert thinker.p < 0.01
    assert found.best == thinker
    assert "Take local/desk/support@2, by the road prompt" in found.recommendation
    assert thinker.interval is not None
    assert thinker.between in found.recommendation
    assert thinker.per_usd == pytest.approx(thinker.difference / float(thinker.spent))


def test_it_says_where_no_road_is_better(platform: Platform) -> None:
    found = start(platform, "fool").result()
    assert found.best is None
    assert found.recommendation == "No road is shown to be better than local/desk/support@1: keep it."


def test_p_is_corrected_and_intervals_are_widened_for_the_number_of_roads(platform: Platform) -> None:
    found = start(platform, "thinker", "thinker").result()
    assert found.comparison is not None
    assert found.comparison.tests == 1  # both came to the same text, which is one version
    assert [one.version for one in found.roads] == [2, 2]
    two = platform.improve(
        "desk/support@1",
        MANY,
        contains,
        roads=[platform.improve.prompt(reflection="thinker", calls=calls, minibatch=4) for calls in (110, 300)],
        seed=3,
    ).result()
    assert two.comparison is not None
    assert two.comparison.tests == 2
    raw = [pair.comparison.metrics[0].paired for pair in two.comparison.pairs]
    smallest = min(one.p for one in raw if one.p is not None)
    assert min(one.p for one in two.roads if one.p is not None) == pytest.approx(2 * smallest)
    alone = [one.interval for one in raw if one.interval is not None]
    assert "p corrected for 2 tests (Holm)" in str(two)
    for narrow, road in zip(alone, two.roads, strict=True):
        assert road.interval is not None
        assert road.interval.low < narrow.low < narrow.high < road.interval.high


def test_no_road_sees_the_rows_that_decide(platform: Platform, backend: ScriptedBackend) -> None:
    start(platform, "thinker").result()
    (run, *_) = platform.evaluations.runs.list(project="desk")
    answered = platform.evaluations.predictions.list(run_id=run.id, project="desk")
    unseen = {one.inputs["prompt"] for one in answered}
    assert len(unseen) == round(len(MANY) * 0.3)
    told = [one.messages[-1].text for one in backend.requests if one.model == "thinker"]
    assert told
    assert not [text for text in told for prompt in unseen if prompt in text]
    (job,) = [one for one in platform.training.list() if one.kind == "prompt"]
    stored = platform.training.prompt.get(job.id).stored()
    assert stored.spec["tasks"] == len(MANY) - len(unseen)


def test_the_result_is_a_table_a_page_a_plot_and_a_data_frame(platform: Platform, tmp_path: Path) -> None:
    found = start(platform, "fool", "thinker").result()
    for text in (str(found), found.markdown, found.html):
        assert "No road" not in text
        assert "better" in text
        assert "where all began" in text
    found.save(tmp_path / "roads.md")
    assert found.plot().svg.count("<path") > 1
    frame = found.to_pandas()
    assert list(frame["road"]) == ["prompt", "prompt"]
    assert frame["per_usd"][1] > 0
    assert "Take" in repr(found)


def test_each_road_has_an_equal_part_of_the_budget_and_what_ran_out_is_said(platform: Platform) -> None:
    limits = {"max_tokens": 20, "reflection_max_tokens": 200, "concurrency": 1}
    roads = [platform.improve.prompt(reflection="thinker", calls=calls, **limits) for calls in (2000, 2000)]
    found = start(platform, roads=roads, budget="3").result()
    for one in found.roads:
        assert Decimal("0.5") < one.spent <= Decimal("1.5")
        assert "of 1.5 USD are left of the budget" in one.why


def test_a_road_that_fails_ends_and_says_why(platform: Platform) -> None:
    roads = [platform.improve.prompt(reflection="thinker", max_tokens=20, calls=calls) for calls in (300,)]
    found = start(platform, roads=roads, budget="0.01").result()
    assert "it is failed: the budget is too small" in found.roads[0].why


def test_it_is_found_again_by_name_or_id_and_cancelled(platform: Platform) -> None:
    made = start(platform, "thinker")
    assert platform.improve.get(made.id).name == "better"
    assert platform.improve.get("desk/better").id == made.id
    assert [one.id for one in platform.improve.list()] == [made.id]
    made.cancel()
    assert made.status == "cancelled"
    with pytest.raises(JobFailed, match="cancelled"):
        made.result()
    with pytest.raises(NotFound):
        platform.improve.get("desk/nothing")
    with pytest.raises(Conflict, match="another name"):
        start(platform, "thinker")


def test_the_same_request_under_a_key_is_one_improvement(platform: Platform) -> None:
    first, again = (start(platform, "thinker", idempotency_key="once") for _ in range(2))
    assert first.id == again.id
    first.wait()  # the newest version is another one now
    assert start(platform, "thinker", idempotency_key="once").id == first.id


def test_what_is_drawn_anew_is_no_other_request(platform: Platform) -> None:
    first, again = (start(platform, "thinker", idempotency_key="drawn", seed=None) for _ in range(2))
    assert first.id == again.id
    job, same = (
        platform.training.prompt("desk/support", MANY, contains, reflection="thinker", idempotency_key="job")
        for _ in range(2)
    )
    assert job.id == same.id
    job.wait()
    later = platform.training.prompt("desk/support", MANY, contains, reflection="thinker", idempotency_key="job")
    assert later.id == job.id


@pytest.mark.parametrize(
    ("changed", "error", "place"),
    [
        ({"roads": []}, InvalidInput, "roads"),
        ({"roads": "sft"}, InvalidInput, "roads: must be 1 to 8 roads"),
        ({"roads": [5]}, InvalidInput, r"roads\.0: must be a road"),
        ({"roads": ["sft", "stf"]}, InvalidInput, r"roads\.1\.road: must be one of .*did you mean 'sft'"),
        ({"roads": [{"reflection": "thinker"}]}, InvalidInput, r"roads\.0\.road: must be one of"),
        ({"roads": ["prompt"]}, InvalidInput, r"roads\.0\.reflection: is required"),
        ({"roads": [{"road": "distil", "teacher": None}]}, InvalidInput, r"roads\.0\.teacher: is required"),
        ({"roads": [{"road": "sft", "data": "rows.jsonl"}]}, InvalidInput, r"roads\.0\.data: must be rows"),
        ({"budget": "much"}, InvalidInput, "budget"),
        ({"budget": "0.0000001"}, InvalidInput, "budget: must be at least 0.000001 USD for each road"),
        ({"max_tokens": 0}, InvalidInput, "max_tokens: must be a whole number"),
        ({"max_tokens": "x"}, InvalidInput, "max_tokens: must be a whole number"),
        ({"seed": -1}, InvalidInput, "seed: must be a whole number"),
        ({"seed": "x"}, InvalidInput, "seed: must be a whole number"),
        ({"tasks": []}, InvalidInput, "tasks: has no rows"),
        ({"tasks": [1, 2]}, InvalidInput, "tasks.0: must be a mapping"),
        ({"roads": [Roads.sft([])]}, InvalidInput, "roads.0.data: has no rows"),
        ({"roads": [Roads.sft([1])]}, InvalidInput, "roads.0.data.0: must be a mapping"),  # type: ignore[list-item]
        ({"unseen": 1.0}, InvalidInput, "unseen"),
        ({"unseen": 0.01}, InvalidInput, "unseen"),
        ({"target": "desk/nothing"}, NotFound, "nothing"),
        ({"target": "desk"}, InvalidInput, "target: must be such as"),
        ({"tasks": [*MANY, {"expected": "no question"}]}, InvalidInput, rf"tasks\.{len(MANY)}\.messages"),
    ],
)
def test_what_cannot_be_gone_is_refused(
    platform: Platform, changed: Mapping[str, Any], error: type[Exception], place: str
) -> None:
    target = changed.get("target", "desk/support")
    given = {"roads": [platform.improve.prompt(reflection="thinker")], **changed}
    given.pop("target", None)
    tasks: Any = given.pop("tasks", MANY)
    with pytest.raises(error, match=place):
        platform.improve(target, tasks, contains, **given)
    assert not platform.improve.list()


def test_a_road_that_cannot_be_gone_is_refused_by_its_place(platform: Platform) -> None:
    improve = platform.improve
    for road, error, place in (
        (improve.prompt(reflection="nobody"), ModelNotFound, "nobody"),
        (improve.prompt(reflection="thinker", call=3), InvalidInput, r"roads\.1\.call"),
        (improve.sft(), InvalidInput, "cannot be trained here"),
    ):
        with pytest.raises(error, match=place):
            start(platform, roads=[improve.prompt(reflection="thinker"), road])
    assert not improve.list()


# ---- roads that train

WORDS = ("sea", "grass", "fire", "sun", "ice", "sand", "moss", "dawn", "rain", "wood")
SAID = [{"prompt": f"Say {word}.", "expected": f"The {word}."} for word in WORDS]


@pytest.fixture
def trains() -> Iterator[Platform]:
    pricing = Pricing(completion=Decimal("0.001"), training=Decimal("0.0001"))
    backend = TabularBackend(pricing=pricing)
    with open_platform(backend=backend, trainers=[TabularTrainer()], randomness=Random(1).randbytes) as opened:
        opened.variants.publish("desk/support", model="tabular-mini", system="Say.")
        yield opened


def test_roads_that_train_make_models_of_their_own_and_versions_that_serve_them(trains: Platform) -> None:
    roads = [
        trains.improve.sft(learning_rate=1e-4, epochs=30),
        trains.improve.rl(rounds=1, samples=2, max_tokens=6, learning_rate=1e-4),
        trains.improve.distil(teacher="tabular-mini", rounds=1, samples=2, max_tokens=6),
    ]
    found = trains.improve(
        "desk/support", SAID, "token_f1", roads=roads, seed=1, max_tokens=12, name="roads", budget="30"
    ).result()
    assert [(one.road, one.version) for one in found.roads] == [("sft", 2), ("rl", 3), ("distil", 4)]
    made = [trains.variants.version(f"desk/support@{number}") for number in (2, 3, 4)]
    assert [one.parent for one in made] == [1, 1, 1]
    assert [one.content.model.partition(":")[0] for one in made] == [
        "desk/roads-1-sft",
        "desk/roads-2-rl",
        "desk/roads-3-distil",
    ]
    assert {one.content.system for one in made} == {"Say."}
    assert all(one.spent > 0 for one in found.roads)
    total = {one.model: one.cost for one in trains.usage.total(by=("model",))}
    assert found.roads[0].spent == total["local/desk/roads-1-sft"] - _compared(trains, "desk/roads-1-sft")


def _compared(platform: Platform, name: str) -> Decimal:
    """What the answers to unseen rows of a model have cost."""
    return sum((one.cost for one in platform.usage.list() if name in one.model and not one.trained_tokens), Decimal(0))


def test_a_training_that_runs_out_of_its_part_is_said(trains: Platform) -> None:
    roads = [trains.improve.sft(learning_rate=1e-4, epochs=50)]
    found = trains.improve("desk/support", SAID, "token_f1", roads=roads, seed=1, budget="0.05").result()
    assert "its budget has ended it" in found.roads[0].why
    assert found.roads[0].spent <= Decimal("0.05")


def test_a_road_from_a_checkpoint_begins_there(trains: Platform) -> None:
    trains.models.create("agent", project="desk", base_model="tabular-mini")
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    checkpoint = trains.training.sft("desk/agent", rows).result()
    trains.variants.publish("desk/second", model="desk/agent", system="Say.")
    improve = trains.improve
    improve("desk/second", SAID, "token_f1", roads=[improve.sft(learning_rate=1e-4)], seed=1, name="on").result()
    (made,) = [one for one in trains.models.checkpoints("desk/on-1-sft") if one.step]
    assert made.parent_id == checkpoint.id
    with pytest.raises(InvalidInput, match="the variant has a checkpoint"):
        improve("desk/second", SAID, "token_f1", roads=[improve.rl()], seed=1)
    with pytest.raises(InvalidInput, match="expected answer"):
        improve("desk/second", [{"prompt": f"{at}"} for at in range(9)], "token_f1", roads=[improve.sft()])


def test_what_the_job_of_a_road_would_refuse_is_refused_at_once(trains: Platform) -> None:
    for road, place in (
        ({"road": "rl", "teacher": "tabular-mini"}, r"roads\.0\.teacher: is for the road distil"),
        ({"road": "sft", "data": [{"messages": [{"role": "user"}]}]}, r"roads\.0\.data\.0\.messages"),
        ({"road": "rl", "stop_when": {"score": 1.0}}, r"roads\.0\.stop_when: needs held-out tasks"),
        ({"road": "distil", "teacher": 5}, r"roads\.0\.teacher"),
    ):
        with pytest.raises(InvalidInput, match=place):
            trains.improve("desk/support", SAID, "token_f1", roads=[road], seed=1)
    assert not trains.improve.list()


def test_a_name_is_taken_once_even_under_a_key(platform: Platform) -> None:
    start(platform, "thinker")
    with pytest.raises(Conflict, match="desk/better already"):
        start(platform, "thinker", idempotency_key="other")
    assert len([*platform.improve.list()]) == 1


def test_roads_are_shown_as_far_as_they_have_come() -> None:
    during = list[tuple[str | None, ...]]()

    def watched(request: Any) -> str:
        during.append(tuple(one.job for one in made.roads()))
        return script(request)

    with open_platform(backend=ScriptedBackend(watched, MODELS), randomness=Random(1).randbytes) as platform:
        platform.variants.publish("desk/support", model="scripted", system=BEGIN)
        made = start(platform, "fool", "thinker")
        assert [(one.road, one.job, one.version) for one in made.roads()] == [("prompt", None, None)] * 2
        first, second = made.result().roads
        assert (during[0], (first.job, second.job) in during) == ((first.job, None), True)
        assert [(one.job, one.version, one.score) for one in made.roads()] == [
            (first.job, None, None),
            (second.job, 2, None),
        ]


def test_rows_that_nobody_could_score_are_said_and_no_road_is_recommended(platform: Platform) -> None:
    made = start(platform, "thinker")
    platform.usage.set_budget("0.000001", entity="local", project="desk")
    platform.worker().run_until_idle()
    found = made.result()
    assert (found.baseline, found.best) == (None, None)
    assert found.recommendation == "No road is shown to be better than local/desk/support@1: keep it."
    assert "the first line has no score" in str(found)


def test_versions_that_gave_no_answer_to_compare_have_no_score(trains: Platform) -> None:
    trains.usage.set_budget(5, entity="local", project="desk")
    roads = ["sft", {"road": "sft", "epochs": 2}]
    found = trains.improve("desk/support", SAID, "token_f1", roads=roads, seed=1, max_tokens=10_000).result()
    assert [(one.version, one.score, one.verdict) for one in found.roads] == [(2, None, None), (3, None, None)]
    assert found.best is None
