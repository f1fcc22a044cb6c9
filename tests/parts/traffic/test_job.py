"""A collection as a job: the same as in this process, continued where it was, cancelled, and trained on."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.errors import BackendError, InvalidInput, JobFailed, NotFound, StoreError
from modelyard.formats.training_data import read_dataset
from modelyard.parts import own_lane
from modelyard.parts.traffic import job as collection_job
from modelyard.platform.jobs.runner import Runner
from modelyard.testing import ManualClock

JUDGE = {"type": "llm_judge", "model": "m", "prompt": "{output}"}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(clock=ManualClock()) as platform:
        yield platform


def ask(platform: Platform, *words: str, model: str = "echo") -> list[str]:
    return [platform.chat.complete(model=model, messages=one, store=True, temperature=0).id for one in words]


def answers(platform: Platform, url: str) -> list[str]:
    *_, entity, project, name = url.split("/")
    dataset = platform.compat.uploads.find(name, project=project, entity=entity)
    assert dataset is not None
    with platform._runtime.artifacts.open(dataset.artifact) as file:
        return [row.messages[-1].text for row in read_dataset(file)]


def test_a_job_collects_what_collecting_here_does(platform: Platform) -> None:
    ids = ask(platform, "one", "two", "two 1234", "four")
    platform.compat.responses.create(model="echo", input="response")
    for id, up in zip(ids, (True, True, True, False), strict=True):
        platform.compat.traces.feedback.add(id, "thumbs", {"up": up})
    chosen: dict[str, Any] = {
        "score": "up",
        "at_least": 1,
        "redact": [re.compile(r"\b\d+", re.I)],
        "since": platform.chat.get(ids[0]).created_at,
        "metadata": {},
        "holdout": 0.5,
    }
    here = platform.traffic.collect("answers", **chosen)
    handle = platform.traffic.submit("answers", **chosen)
    assert handle.result() == here
    job = handle.refresh()
    assert (job.status, job.read, job.total, job.left_out) == ("succeeded", 5, 5, here.left_out)
    assert [one.id for one in platform.traffic.list()] == [handle.id]
    assert set(platform._runtime.artifacts.names()) == {
        side.artifact for side in (here.train, here.held_out) if side is not None
    }


def test_answers_of_later_are_not_collected(platform: Platform) -> None:
    ask(platform, "before")
    handle = platform.traffic.submit("answers")
    platform.clock.advance(1)
    ask(platform, "after")
    assert answers(platform, handle.result().url) == ["before"]


def test_an_alias_is_the_checkpoint_of_when_it_was_requested(platform: Platform) -> None:
    platform.models.create("bot", project="p", base_model="tabular-mini")
    platform.training.sft("p/bot", platform_rows(platform)).wait()
    platform.training.sft("p/bot", platform_rows(platform)).wait()
    platform.models.promote("p/bot", 1)
    ask(platform, "by one", model="p/bot:prod")
    handle = platform.traffic.submit("answers", model="p/bot:prod")
    platform.models.promote("p/bot", 2)
    ask(platform, "by two", model="p/bot:prod")
    result = handle.result()
    assert result.train is not None
    assert (result.train.rows, result.left_out) == (1, {"another model": 1})


def platform_rows(platform: Platform) -> list[Any]:
    return [{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}] * 4


def test_it_continues_after_the_last_part(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(platform, *(f"{number % 30} {number % 7}" for number in range(60)))
    whole = platform.traffic.collect("whole", limit=35)
    monkeypatch.setattr(collection_job, "ANSWERS_AT_ONCE", 4)
    handle, runner, stopped = platform.traffic.submit("whole", limit=35), Runner(platform._runtime), 0
    while handle.status in ("queued", "running"):
        claimed = runner.claim()
        assert claimed is not None
        steps = runner.steps(claimed)
        for _ in range(3):  # the start, and two parts
            if next(steps, 0) == 0:
                break
        steps.close()
        stopped += 1
    assert stopped > 3
    assert handle.result() == whole


def test_a_judge_is_asked_once_for_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def judge(request: Any) -> str:
        asked.append(request.messages[-1].text)
        return "yes" if "good" in asked[-1] else "no"

    monkeypatch.setattr(collection_job, "JUDGED_AT_ONCE", 5)
    with open_platform(backend=ScriptedBackend(judge, models=["m", "n"])) as platform:
        words = [f"good {number}" if number % 3 else f"bad {number}" for number in range(40)]
        for one in words:
            platform.compat.traces.calls.start("x")
            call = platform.compat.traces.calls.start("ask", {"messages": [{"role": "user", "content": "q"}]})
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": one}}
            platform.compat.traces.calls.end(call.id, {"id": one, "object": "chat.completion", "choices": [choice]})
        found = platform.traffic.submit("judged", score=JUDGE, at_least=1).result()
        assert answers(platform, found.url) == [one for one in reversed(words) if "good" in one]
        assert sorted(asked) == sorted(words)
        assert found.left_out == {"score": 14}


def test_a_judge_that_fails_for_now_is_asked_again(platform: Platform) -> None:
    fails = iter([BackendError("busy"), BackendError("busy")])

    def judge(request: Any) -> str:
        for failure in fails:
            raise failure
        return "yes"

    with open_platform(backend=ScriptedBackend(judge, models=["m"]), clock=ManualClock()) as scripted:
        scripted.compat.responses.list()
        call = scripted.compat.traces.calls.start("ask", {"messages": [{"role": "user", "content": "q"}]})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
        scripted.compat.traces.calls.end(call.id, {"id": "x", "object": "chat.completion", "choices": [choice]})
        assert scripted.traffic.submit("judged", score=JUDGE, at_least=1).result().train is not None


def test_it_is_cancelled_and_leaves_nothing(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_job, "ANSWERS_AT_ONCE", 2)
    ask(platform, *map(str, range(8)))
    handle, runner = platform.traffic.submit("answers"), Runner(platform._runtime)
    claimed = runner.claim()
    assert claimed is not None
    steps = runner.steps(claimed)
    next(steps)
    next(steps)
    handle.cancel()
    for _ in steps:
        pass
    assert handle.status == "cancelled"
    assert [*platform._runtime.artifacts.names()] == []
    with pytest.raises(JobFailed, match="cancelled"):
        handle.result()


def test_it_trains_once_and_leads_back_to_each_row(platform: Platform) -> None:
    platform.models.create("bot", project="p", base_model="tabular-mini")
    ids = ask(platform, "one", "two")
    found = platform.traffic.submit("answers", train="p/bot").result()
    assert found.training_job_id is not None
    platform.training.job(found.training_job_id).wait()
    assert [row.sources for row in platform.traffic.lineage("p/bot", 1)] == [(ids[1],), (ids[0],)]
    (job,) = platform.training.list()
    assert job.id == found.training_job_id


def test_pairs_are_trained_on_by_dpo(platform: Platform) -> None:
    platform.models.create("bot", project="p", base_model="tabular-mini")
    refs = []
    for answer in ("good", "bad"):
        call = platform.compat.traces.calls.start("ask", {"messages": [{"role": "user", "content": "q"}]})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        platform.compat.traces.calls.end(call.id, {"id": answer, "object": "chat.completion", "choices": [choice]})
        platform.compat.traces.feedback.add(call.ref, "thumbs", {"up": answer == "good"})
        refs.append(call.ref)
    found = platform.traffic.submit("pairs", score="up", pairs=True, train="p/bot").result()
    assert found.training_job_id is not None
    trained = platform.training.job(found.training_job_id).wait().refresh()
    assert trained.kind == "dpo"
    assert [row.sources for row in platform.traffic.lineage("p/bot", 1)] == [tuple(refs)]


def test_training_that_has_ended_before_a_lost_collection_is_not_repeated(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.models.create("bot", project="p", base_model="tabular-mini")
    ask(platform, "one", "two")
    handle, runner = platform.traffic.submit("answers", train="p/bot"), Runner(platform._runtime)
    with monkeypatch.context() as patch:
        patch.setattr(own_lane, "succeed", lost)
        claimed = runner.claim()
        assert claimed is not None
        runner.run(claimed)
    (training,) = platform.training.list()
    platform.training.job(training.id).wait()
    platform.clock.advance(60)
    assert handle.result().training_job_id == training.id
    assert [one.id for one in platform.training.list()] == [training.id]


def lost(*_: object) -> None:
    raise StoreError("the store is gone for a moment")


def test_what_no_job_can_keep_is_refused(platform: Platform) -> None:
    typed = ({"sources": None}, {"sources": "chat"}, {"metadata": 3}, {"limit": "3"}, {"limit": 2.5}, {"model": 3})
    kept = ({"score": len}, {"redact": [str.lower]}, {"sources": ["chats"]}, {"score": {"type": "llm_judge"}})
    for wrong in (*kept, *typed, {"holdout": "x"}):
        with pytest.raises(InvalidInput):
            platform.traffic.submit("x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        platform.traffic.submit("x", train="p/none")
    with pytest.raises(NotFound):
        platform.traffic.job("none")
