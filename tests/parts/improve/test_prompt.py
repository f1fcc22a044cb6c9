"""The prompt of a variant, optimised as a job."""

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from modelyard import Platform, Pricing, ScriptedBackend, open_platform
from modelyard.clock import SystemClock
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.job import JobStatus
from modelyard.errors import InvalidInput, JobFailed, ModelNotFound, NotFound
from modelyard.parts.improve.records import KeptCall, PromptProposal
from modelyard.parts.improve.service import PromptHandle
from prompt_tasks import BEGIN, MODELS, TASKS, contains, script

PRICES = Pricing(prompt=Decimal("0.0001"), completion=Decimal("0.001"))


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(script, MODELS, pricing=PRICES)


@pytest.fixture
def platform(backend: ScriptedBackend) -> Iterator[Platform]:
    with open_platform(backend=backend, randomness=Random(1).randbytes) as opened:
        opened.variants.publish("desk/support", model="scripted", system=BEGIN, parameters={"temperature": 0})
        yield opened


def start(platform: Platform, tasks: Any = TASKS, **options: Any) -> PromptHandle:
    return platform.training.prompt(
        "desk/support", tasks, contains, **{"reflection": "thinker", "calls": 200, "seed": 3, **options}
    )


def test_the_best_prompt_becomes_a_version_of_the_variant(platform: Platform) -> None:
    job = start(platform)
    made = job.version()
    assert (made.number, made.parent) == (2, 1)
    assert job.refresh().metrics["start_held_out"] == 0.0
    assert job.refresh().metrics["best_held_out"] >= 0.8
    assert made.content.system.startswith(BEGIN)
    assert made.content.parameters == {"temperature": 0}
    assert "prompt job" in made.note
    assert platform.chat.complete(model="variants/desk/support", messages="What about gifts?").text.startswith("It is")


def test_every_call_is_booked_and_none_is_made_twice(platform: Platform, backend: ScriptedBackend) -> None:
    job = start(platform)
    job.wait()
    asked = [(one.model, tuple(message.text for message in one.messages)) for one in backend.requests]
    answers = [one for one in asked if one[0] == "scripted"]
    assert len(answers) == len(set(answers))
    total = {one.model: one.requests for one in platform.usage.total(by=("model",))}
    assert total == {name: sum(model == name for model, _ in asked) for name in ("scripted", "thinker")}
    spent = sum((one.cost for one in platform.usage.total(by=("model",))), Decimal(0))
    assert Decimal(job.stored().result["spent"]) == spent > 0


def test_proposals_say_what_they_were_made_from_and_what_they_are_worth(platform: Platform) -> None:
    job = start(platform)
    job.wait()
    first, *others = job.proposals()
    assert (first.number, first.text, first.parent, first.score) == (0, BEGIN, None, 0.0)
    assert [one.number for one in others] == list(range(1, len(others) + 1))
    for one in others:
        assert one.parent is not None
        assert one.parent < one.number
        assert (one.score is not None) == (one.after > one.before)  # type: ignore[operator]
    best = max(one.score for one in others if one.score is not None)
    assert best == job.refresh().metrics["best_held_out"]
    assert [Decimal(one.spent) for one in others] == sorted(Decimal(one.spent) for one in others)


def test_its_events_are_steps_of_a_training_job(platform: Platform) -> None:
    job = start(platform)
    events = list(job.events())
    assert [events[0].type, events[-1].type] == ["training_started", "training_ended"]
    assert events[0].data["held_out"] == 0.0
    rounds = job.metrics()[1:]
    assert len(rounds) == len([*job.proposals()]) - 1
    assert [one.values["held_out"] for one in rounds] == sorted(one.values["held_out"] for one in rounds)
    shown = job.refresh()
    assert (shown.kind, shown.total, shown.status) == ("prompt", 200, JobStatus.SUCCEEDED)
    assert shown.stop_reason == "calls: 201 answers were scored"
    assert "prompt" in repr(platform.training.get(job.id))
    assert "held_out" in job.plot().svg


def test_one_seed_makes_one_history(platform: Platform) -> None:
    def history() -> list[Any]:
        job = start(platform)
        job.wait()
        return [(one.text, one.parent, one.before, one.after, one.score, one.calls) for one in job.proposals()]

    first = history()
    platform.variants.publish("desk/support", model="scripted", system=BEGIN, parameters={"temperature": 0})
    assert history() == first


def test_it_stops_before_its_budget_is_overrun(platform: Platform) -> None:
    job = start(platform, budget="0.6", max_tokens=20, reflection_max_tokens=150, concurrency=1)
    made = job.version()
    assert "of 0.6 USD are left of the budget" in str(job.stop_reason)
    spent = sum(one.cost for one in platform.usage.total(by=("model",)))
    assert Decimal("0.35") < spent <= Decimal("0.6")
    assert Decimal(job.stored().result["spent"]) == spent
    assert made.number == 2  # the best until then


def test_a_budget_that_does_not_pay_for_the_first_prompt_fails_the_job(platform: Platform) -> None:
    with pytest.raises(JobFailed, match="too small to try the prompt that it begins with"):
        start(platform, budget="0.05", max_tokens=20).wait()
    assert platform.variants.get("desk/support").last_number == 1


def test_a_budget_of_the_entity_ends_it_and_it_is_resumed_without_a_call_asked_twice(
    platform: Platform, backend: ScriptedBackend
) -> None:
    platform.usage.set_budget("0.6", entity="local")
    job = start(platform, max_tokens=20, reflection_max_tokens=150)
    with pytest.raises(JobFailed, match="budget"):
        job.wait()
    platform.usage.set_budget("1000", entity="local")
    resumed = platform.training.prompt.get(platform.training.resume(job.id).id)
    assert resumed.version().number == 2
    answers = [tuple(m.text for m in one.messages) for one in backend.requests if one.model == "scripted"]
    assert len(answers) == len(set(answers))
    assert [one.number for one in resumed.proposals()] == list(range(len([*resumed.proposals()])))


def test_a_prompt_that_nothing_beats_makes_no_version(platform: Platform) -> None:
    job = platform.training.prompt("desk/support", TASKS, contains, reflection="fool", calls=30, seed=1)
    assert job.version().number == 1
    assert platform.variants.get("desk/support").last_number == 1


def test_it_is_cancelled_and_shown_with_a_bar(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    job = start(platform)
    events = job.events()
    while next(events).type != "training_round":
        pass
    job.cancel()
    assert list(events)[-1].data["error_message"] == "cancelled by host"
    assert job.status == JobStatus.CANCELLED
    start(platform).wait(progress=True)


def test_a_judge_is_asked_once_for_each_answer(platform: Platform, backend: ScriptedBackend) -> None:
    judge = {"type": "llm_judge", "model": "judge", "prompt": "{expected} in {output}"}
    job = platform.training.prompt("desk/support", TASKS, judge, reflection="thinker", calls=200, seed=3)
    assert job.version().number == 2
    asked = [one.messages[-1].text for one in backend.requests if one.model == "judge"]
    assert len(asked) == len(set(asked))
    assert job.refresh().metrics["best_held_out"] > 0.5
    total = {one.model: one.requests for one in platform.usage.total(by=("model",))}
    assert total["judge"] == len(asked)


@pytest.mark.parametrize(
    ("changed", "error", "place"),
    [
        ({"reflection": "nobody"}, ModelNotFound, "nobody"),
        ({"calls": 0}, InvalidInput, "calls"),
        ({"budget": "much"}, InvalidInput, "budget"),
        ({"budget": 5.0}, InvalidInput, "budget: must be an amount in USD"),
        ({"budget": 0}, InvalidInput, "budget: must be an amount in USD"),
        ({"budget": Decimal("NaN")}, InvalidInput, "budget: must be an amount in USD"),
        ({"tasks": [1]}, InvalidInput, "tasks.0: must be a mapping"),
        ({"tasks": {"prompt": "?"}}, InvalidInput, "tasks.0: must be a mapping"),
        ({"tasks": None}, InvalidInput, "tasks: must be"),
        ({"held_out": "nothing.jsonl"}, InvalidInput, "held_out: 'nothing.jsonl' is not a file"),
        ({"minibatch": 0}, InvalidInput, "minibatch"),
        ({"seed": -1}, InvalidInput, "seed"),
        ({"held_out": []}, InvalidInput, "held_out"),
        ({"call": 3}, TypeError, "did you mean 'calls'"),
    ],
)
def test_what_it_cannot_do_is_refused_before_it_is_queued(
    platform: Platform, changed: dict[str, Any], error: type[Exception], place: str
) -> None:
    with pytest.raises(error, match=place):
        start(platform, **changed)
    assert not list(platform.training.list())


def test_what_is_not_there_is_refused(platform: Platform) -> None:
    for name in ("desk/nothing", "desk/support@7"):
        with pytest.raises(NotFound):
            platform.training.prompt(name, TASKS, contains, reflection="thinker")
    with pytest.raises(NotFound):
        platform.training.prompt.get("nothing")
    with pytest.raises(InvalidInput, match="messages, or a prompt"):
        platform.training.prompt("desk/support", [{"question": "?"}], contains, reflection="thinker")
    with pytest.raises(InvalidInput, match="imported"):
        platform.training.prompt("desk/support", TASKS, lambda output, row: 1, reflection="thinker")


def test_rows_that_all_fail_end_the_job_with_the_reason(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds, woken=None: None)  # between the tries
    tasks = [{"prompt": "fail"}]
    with pytest.raises(JobFailed, match=r"no held-out task was answered and scored: .* it is down"):
        platform.training.prompt("desk/support", tasks, contains, reflection="thinker").wait()


def test_nothing_is_kept_of_an_entity_that_is_deleted_while_its_job_runs() -> None:
    asked: list[str] = []

    def deleting(request: Any) -> str:
        asked.append(request.model)
        if len(asked) == 5:
            assert platform.delete_entity("acme") > 0
        return script(request)

    with open_platform(backend=ScriptedBackend(deleting, MODELS)) as platform:
        acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
        acme.variants.publish("desk/support", model="scripted", system=BEGIN)
        acme.training.prompt("desk/support", TASKS, contains, reflection="thinker", concurrency=1)
        platform.worker().run_until_idle()
        assert len(asked) >= 5

        def kept(snapshot: Any) -> list[int]:
            return [snapshot.count(cls, "by_entity", "acme") for cls in (KeptCall, PromptProposal)]

        assert platform._runtime.store.read(kept) == [0, 0]
