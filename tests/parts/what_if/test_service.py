"""Stored requests are asked again once, on a budget, compared row by row, and priced anew."""

import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import BackendError, Conflict, InvalidInput, JobFailed, NotFound
from modelyard.parts.what_if import job as asking_job
from modelyard.parts.what_if.records import AskedTraffic
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.paging import iter_index
from modelyard.testing import ManualClock
from rolled_out import NAME, trained

JUDGE = {"type": "llm_judge", "model": "judge", "prompt": "Is {output} right for {prompt}?"}
PRICE = Pricing("0.001", "0.002")
MODELS = ["old", "new", "judge"]


class Script:
    """Answers what is asked, and counts it. The new model is right where the old one is wrong once in three."""

    def __init__(self) -> None:
        self.asked = Counter[tuple[str, str]]()
        self.fails: dict[str, Exception] = {}

    def __call__(self, request: Any) -> str:
        text = request.messages[-1].text
        self.asked[request.model, text] += 1
        if request.model in self.fails:
            raise self.fails[request.model]
        if request.model == "judge":
            return "yes" if "good" in text else "no"
        return "good" if request.model == "new" or int(text.split()[-1]) % 3 else "bad"


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def desk(script: Script) -> Iterator[Platform]:
    backend = ScriptedBackend(script, models=MODELS, pricing=PRICE)
    with open_platform(backend=backend, clock=ManualClock()) as platform:
        yield platform


def serve(desk: Platform, count: int = 12, model: str = "old", **options: Any) -> list[str]:
    made = [desk.chat.complete(model=model, messages=f"question {at}", store=True, **options).id for at in range(count)]
    desk.clock.advance(1)  # type: ignore[attr-defined]
    return made


def booked(desk: Platform) -> list[LedgerEntry]:
    return desk._runtime.store.read(lambda snapshot: [*iter_index(snapshot, LedgerEntry, "by_entity", "local")])


def test_answers_are_compared_row_by_row(desk: Platform, script: Script) -> None:
    ids = serve(desk)
    found = desk.traffic.what_if(since="7d", model="new", judge=JUDGE, budget="5")
    assert found.answers is not None
    score = found.answers.score
    assert score is not None
    assert (score.count, score.wins, score.ties, score.losses) == (12, 4, 8, 0)
    assert score.difference == pytest.approx(4 / 12)
    assert score.interval is not None
    assert score.interval.low < 4 / 12 < score.interval.high
    assert {row.source for row in found.rows()} == {*ids}
    assert {row.answer for row in found.rows()} == {"good"}
    assert [row.change for row in found.differing(5)] == [1, 1, 1, 1, 0]
    assert "4 better, 8 same, 0 worse of 12" in str(found)
    assert {count for (model, _), count in script.asked.items() if model == "new"} == {1}


def test_everything_that_is_asked_is_booked_and_counts_for_the_budget(desk: Platform) -> None:
    serve(desk)
    before = {one.id for one in booked(desk)}
    found = desk.traffic.what_if(model="new", judge=JUDGE, budget="5")
    paid = sum((one.cost for one in booked(desk) if one.id not in before), Decimal(0))
    assert found.answers is not None
    assert found.id is not None
    assert found.answers.spent == paid == desk.traffic.what_if.record(found.id).spent > 0
    assert Counter(one.model for one in booked(desk) if one.id not in before) == {"new": 12, "judge": 24}


def test_the_estimate_is_what_equal_answers_cost(desk: Platform) -> None:
    serve(desk)
    given = booked(desk)
    estimate = desk.traffic.what_if.estimate(model="new")
    assert (estimate.rows, estimate.judge_cost) == (12, 0)
    assert estimate.cost == sum(one.cost for one in given)
    judged = desk.traffic.what_if.estimate(model="new", judge=JUDGE, limit=3)
    assert judged.rows == 3
    assert judged.total == judged.cost + judged.judge_cost > judged.cost
    assert len(booked(desk)) == len(given)


def test_no_more_than_the_budget_is_spent_and_the_result_says_so(desk: Platform) -> None:
    serve(desk)
    short: Any = {"model": "new", "options": {"max_tokens": 3}}
    budget = desk.traffic.what_if.estimate(model="new", limit=6).total
    found = desk.traffic.what_if(**short, budget=budget)
    assert found.answers is not None
    assert found.id is not None
    assert 0 < found.answers.done < 12
    assert found.answers.spent == desk.traffic.what_if.record(found.id).spent <= budget
    assert f"the budget of {budget:f} USD has less left" in found.reason
    assert "ended early" in str(found)


def test_a_budget_of_its_own_is_half_more_than_the_estimate(desk: Platform) -> None:
    serve(desk)
    asked = desk.traffic.what_if.submit(model="new")
    estimate = desk.traffic.what_if.estimate(model="new")
    assert asked.budget == estimate.total * Decimal("1.5") + estimate.longest
    found = desk.traffic.what_if.wait(asked.id)
    assert found.answers is not None
    assert (found.answers.done, found.reason) == (12, "")


def test_a_job_that_is_stopped_asks_nothing_twice(
    desk: Platform, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(desk, 40)
    monkeypatch.setattr(asking_job, "SHOWN_AFTER", 3)
    asked, runner, stopped = desk.traffic.what_if.submit(model="new", judge=JUDGE, budget="9"), Runner(desk._runtime), 0
    while desk.traffic.what_if.get(asked.id).status in ("queued", "running"):
        claimed = runner.claim()
        assert claimed is not None
        steps = runner.steps(claimed)
        for _ in range(3):
            if next(steps, 0) == 0:
                break
        steps.close()
        stopped += 1
    assert stopped > 1
    found = desk.traffic.what_if.get(asked.id)
    assert found.answers is not None
    assert (found.answers.done, found.answers.failed) == (40, 0)
    assert {count for (model, _), count in script.asked.items() if model == "new"} == {1}
    assert sum(count for (model, _), count in script.asked.items() if model == "judge") == 80


KILLED = """
import os, signal, sys
from modelyard import ScriptedBackend, open_platform
from modelyard.domain.catalogue import Pricing

path, asked, at = sys.argv[1], sys.argv[2], int(sys.argv[3])

def answer(request):
    with open(asked, "a") as file:
        file.write(f"{request.model} {request.messages[-1].text}\\n")
    if at and sum(line.startswith("new") for line in open(asked)) >= at:
        os.kill(os.getpid(), signal.SIGKILL)
    return "good"

backend = ScriptedBackend(answer, models=["old", "new"], pricing=Pricing("0.001", "0.002"))
with open_platform(path, backend=backend) as platform:
    if not [*platform.traffic.what_if.list()]:
        for number in range(12):
            platform.chat.complete(model="old", messages=f"question {number}", store=True)
        platform.traffic.what_if.submit(model="new", budget="5")
    (one,) = platform.traffic.what_if.list()
    found = platform.traffic.what_if.wait(one.id)
    print(found.answers.done, found.answers.failed, len([*platform.usage.list()]))
"""


@pytest.mark.slow
def test_what_was_booked_before_a_kill_is_not_asked_again(tmp_path: Path) -> None:
    script, asked = tmp_path / "script.py", tmp_path / "asked.txt"
    script.write_text(textwrap.dedent(KILLED))

    def run(at: int) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(script), str(tmp_path / "yard.db"), str(asked), str(at)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(7).returncode < 0
    assert run(10).returncode < 0
    done = run(0)
    assert done.stdout.split() == ["12", "0", "24"], done.stderr
    lines = Counter(asked.read_text().splitlines())
    twice = [line for line, count in lines.items() if count > 1 and line.startswith("new")]
    assert len(twice) <= 2 * asking_job.CONCURRENCY - 2  # what was under way when it was killed
    assert sum(line.startswith("new") for line in lines) == 12


def test_what_fails_is_kept_with_its_row(desk: Platform, script: Script) -> None:
    serve(desk, 3)
    script.fails["new"] = InvalidInput.at("messages", msg="cannot be read")
    found = desk.traffic.what_if(model="new", budget="5")
    assert found.answers is not None
    assert (found.answers.done, found.answers.failed) == (3, 3)
    assert {row.error for row in found.rows()} == {"messages: cannot be read"}
    assert "3 rows, 3 failed (messages: cannot be read); it cost 0 USD" in str(found)


def test_no_answer_is_paid_for_that_the_judge_cannot_read(desk: Platform, script: Script) -> None:
    serve(desk, 3)
    found = desk.traffic.what_if(model="new", judge={**JUDGE, "prompt": "{output} for {team}"}, budget="5")
    assert found.answers is not None
    assert (found.answers.failed, found.answers.spent) == (3, 0)
    assert {row.error for row in found.rows()} == {"judge: asks for team, which the request does not have as metadata"}
    assert not any(model == "new" for model, _ in script.asked)


def test_a_backend_that_fails_for_now_is_asked_again(desk: Platform, script: Script) -> None:
    serve(desk, 2)
    script.fails["judge"] = BackendError("busy")
    found = desk.traffic.what_if(model="new", judge=JUDGE, budget="5")
    assert found.answers is not None
    assert found.answers.failed == 2
    assert {count for (model, _), count in script.asked.items() if model == "new"} == {1}
    assert {count for (model, _), count in script.asked.items() if model == "judge"} == {1 + asking_job.RETRIES}


def test_answers_of_later_are_not_asked_about(desk: Platform) -> None:
    serve(desk, 2)
    asked = desk.traffic.what_if.submit(model="new", budget="5")
    serve(desk, 3)
    found = desk.traffic.what_if.wait(asked.id)
    assert found.answers is not None
    assert found.answers.done == 2
    assert found.repriced is not None
    assert found.repriced.calls == 2


def test_requests_are_chosen(desk: Platform) -> None:
    serve(desk, 2, metadata={"team": "desk"})
    serve(desk, 3, model="new")
    middle = desk.clock.now()
    desk.clock.advance(60)  # type: ignore[attr-defined]
    serve(desk, 4)

    def rows(**chosen: Any) -> int:
        return desk.traffic.what_if.estimate(model="new", **chosen).rows

    assert rows() == 9
    assert rows(metadata={"team": "desk"}) == 2
    assert rows(answered_by="new") == 3
    assert rows(since=middle) == rows(since="1m") == 4
    assert rows(until=middle) == 5
    assert rows(limit=1) == 1
    assert rows(sources=["traces"]) == 0
    assert rows(project="nowhere") == 0


def test_stored_sampling_is_kept_unless_other_options_are_given(desk: Platform) -> None:
    seen: list[Any] = []
    backend = ScriptedBackend(lambda request: seen.append(request) or "x", models=MODELS, pricing=PRICE)
    with open_platform(backend=backend, clock=ManualClock()) as other:
        serve(other, 1, temperature=0.25, max_tokens=77)
        other.traffic.what_if(model="new", budget="5")
        other.traffic.what_if(model="new", budget="5", options={"temperature": 1.5})
    assert [(one.sampling.temperature, one.max_tokens) for one in seen] == [(0.25, 77), (0.25, 77), (1.5, 77)]


def test_the_same_request_is_one_job(desk: Platform) -> None:
    serve(desk, 2)
    first = desk.traffic.what_if.submit(model="new", idempotency_key="one")
    assert desk.traffic.what_if.submit(model="new", idempotency_key="one").id == first.id
    with pytest.raises(Conflict):
        desk.traffic.what_if.submit(model="old", idempotency_key="one")
    assert [one.id for one in desk.traffic.what_if.list()] == [first.id]
    desk.clock.advance(60)  # type: ignore[attr-defined]
    assert desk.traffic.what_if.submit(model="new", idempotency_key="one").id == first.id
    week = desk.traffic.what_if.submit(model="new", since="7d", idempotency_key="week")
    desk.clock.advance(60)  # type: ignore[attr-defined]
    assert desk.traffic.what_if.submit(model="new", since="7d", idempotency_key="week").id == week.id
    with pytest.raises(Conflict):
        desk.traffic.what_if.submit(model="new", since="8d", idempotency_key="week")


def test_it_is_cancelled_and_deleted(desk: Platform) -> None:
    serve(desk, 2)
    asked = desk.traffic.what_if.submit(model="new", budget="5")
    with pytest.raises(Conflict, match="still being asked"):
        desk.traffic.what_if.delete(asked.id)
    assert desk.traffic.what_if.cancel(asked.id).status == "cancelled"
    with pytest.raises(JobFailed):
        desk.traffic.what_if.wait(asked.id)
    done = desk.traffic.what_if(model="new", budget="5")
    assert done.id is not None
    assert [row.id for row in desk.traffic.what_if.rows(done.id)] == [row.source for row in done.rows()]
    desk.traffic.what_if.delete(done.id)
    with pytest.raises(NotFound):
        desk.traffic.what_if.get(done.id)
    assert not [*done.rows()]


def test_others_see_nothing_of_it(desk: Platform) -> None:
    serve(desk, 2)
    done = desk.traffic.what_if(model="new", budget="5")
    theirs = desk.acting_as(Principal("eve", "acme", Scope("acme"))).traffic.what_if
    assert not [*theirs.list()]
    for call in (theirs.get, theirs.cancel, theirs.delete, theirs.rows, theirs.record):
        with pytest.raises(NotFound):
            call(done.id)  # type: ignore[arg-type]
    assert theirs.estimate(model="new").rows == 0


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "model: or prices are required"),
        ({"model": ""}, "model: must be the name"),
        ({"model": "new", "asks": "answer"}, "asks: must be one of answers, logprobs, nothing; did you mean 'answers'"),
        ({"model": "new", "since": "yesterday"}, "since: must be a date"),
        ({"model": "new", "judge": {"type": "exact_match"}}, "judge.type: must be llm_judge"),
        ({"model": "new", "judge": "new"}, "judge: must be data"),
        ({"model": "new", "limit": 0}, "limit: must be at least 1"),
        ({"model": "new", "budget": "x"}, "budget: must be an exact amount"),
        ({"model": "new", "budget": 0.1}, "budget: must be an exact amount"),
        ({"model": "new", "sources": ["chats"]}, "sources.0: must be one of"),
        ({"model": "new", "sources": None}, "sources: must be a list of chat, responses, traces"),
        ({"model": "new", "sources": "chat"}, "sources: must be a list of chat, responses, traces"),
        ({"model": "new", "answered_by": 3}, "answered_by: must be the name of a model"),
        ({"model": "new", "metadata": 3}, "metadata: must be a mapping of names to texts"),
        ({"model": "new", "metadata": {1: "a"}}, "metadata: must be a mapping of names to texts"),
        ({"model": "new", "limit": "3"}, "limit: must be a whole number"),
        ({"model": "new", "limit": 2.5}, "limit: must be a whole number"),
        ({"model": "new", "limit": 10**30}, "limit: must be a whole number"),
        ({"model": "new", "metric": None}, "metric: must be the name of a score"),
        ({"model": "new", "metric": "x" * 65}, "metric: must be the name of a score"),
        ({"model": "new", "options": 3}, "options: must be a mapping"),
        ({"model": "new", "options": {"nope": 1}}, "options.nope: is not a parameter"),
        ({"model": "new", "options": {"max_tokens": "x"}}, "options.max_tokens: must be a whole number"),
        ({"model": "new", "options": {"model": "old"}}, "options.model: is not an option here"),
        ({"model": "new", "options": {"n": 3}}, "options.n: is not an option here"),
        ({"model": "new", "judge": {**JUDGE, "options": {"max_tokens": "x"}}}, "judge.options.max_tokens: must be"),
        ({"model": "new", "asks": "logprobs"}, "model: is 'new', whose backend gives no log-probabilities"),
    ],
)
def test_a_question_is_checked(desk: Platform, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        desk.traffic.what_if(**asked)
    assert says in str(wrong.value).replace("[", ".").replace("]", "")


def test_an_unknown_argument_is_a_type_error(desk: Platform) -> None:
    with pytest.raises(TypeError, match="did you mean 'since'"):
        desk.traffic.what_if(sinc="7d", model="new")  # type: ignore[call-arg]


def test_calls_are_priced_anew_without_asking(desk: Platform) -> None:
    serve(desk, 4)
    given = booked(desk)
    found = desk.traffic.what_if(since="7d", prices={"*": {"prompt": "0.01"}})
    assert found.repriced is not None
    assert (found.id, found.repriced.calls) == (None, 4)
    assert found.repriced.cost == sum(one.cost for one in given)
    assert found.repriced.other_cost == sum(one.prompt_tokens for one in given) * Decimal("0.01")
    assert "instead of" in str(found)
    assert len(booked(desk)) == 4


def test_log_probabilities_compare_two_checkpoints(platform: Platform) -> None:
    trained(platform)
    for at in range(6):
        asked = {"messages": f"hello {at}", "max_tokens": 400, "seed": at}
        platform.chat.complete(model=f"{NAME}:step0", store=True, **asked)  # type: ignore[arg-type]
    platform.clock.sleep(0.01)
    found = platform.traffic.what_if(model=f"{NAME}:step1", asks="logprobs", budget="5")
    assert found.answers is not None
    odds = found.answers.logprob
    assert odds is not None
    assert (found.answers.failed, odds.count) == (0, found.answers.done)
    assert found.answers.done > 0
    for row in found.rows():
        sampled = platform.chat.get(row.source)
        assert row.tokens > 0
        assert row.served_logprob is not None
        assert sampled.checkpoint_id is not None
    same = platform.traffic.what_if(model=f"{NAME}:step0", asks="logprobs", budget="5", answered_by=f"{NAME}:step0")
    assert [row.change for row in same.rows()] == [0.0] * found.answers.done


def test_what_is_removed_while_it_is_asked_ends_the_job(desk: Platform) -> None:
    serve(desk, 2)
    asked = desk.traffic.what_if.submit(model="new", budget="5")
    desk._runtime.store.transact(lambda tx: tx.remove(AskedTraffic, asked.id))
    desk.worker().run_until_idle()
    assert "not found" in str(desk.jobs.get(asked.id).error_message)


def test_rows_are_a_data_frame_and_a_drawing(desk: Platform) -> None:
    pytest.importorskip("pandas")
    serve(desk, 4)
    found = desk.traffic.what_if(model="new", judge=JUDGE, budget="5")
    assert list(found.to_pandas()["score"]) == [1.0] * 4
    assert "new instead of what was served" in found.plot().svg


def test_what_users_said_estimates_what_they_would_have_said(platform: Platform) -> None:
    trained(platform)
    rollout = platform.rollouts.start(NAME, 1, canary=[0.5, 1.0], least=10_000)
    for at in range(300):
        answer = platform.chat.complete(model=f"{NAME}:prod", messages="hello", max_tokens=1, user=f"user {at}")
        kept = next(iter(platform.rollouts.answers(rollout.id, order="desc")))
        platform.rollouts.score(answer.id, kept.step == 1 or at % 2 == 0)
    platform.clock.sleep(0.01)
    asked: Any = {"since": timedelta and platform.clock.now() - timedelta(days=7), "asks": "nothing"}
    found = platform.traffic.what_if(model=f"{NAME}:step1", **asked).feedback
    assert found is not None
    assert (found.answers, found.coverage, found.mean) == (300, 1.0, pytest.approx(1.0))
    assert found.difference is not None
    assert found.difference > 0.1
    other = platform.traffic.what_if(model=f"{NAME}:step0", **asked).feedback
    assert other is not None
    assert other.interval is not None
    assert 0.5 in other.interval
    nobody = platform.traffic.what_if(model=f"{NAME}:step1", metric="stars", **asked).feedback
    assert nobody is not None
    assert (nobody.mean, "0 users scored" in nobody.reason) == (None, True)
