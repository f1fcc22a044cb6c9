"""Jobs are read, paused, continued and tried again from the command line, and it is recorded who did it."""

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.domain.catalogue import Pricing
from modelyard.domain.job import Job
from modelyard.engines import TabularTrainer
from modelyard.errors import Conflict, NotFound
from modelyard.protocols import Started

ROWS = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good morning"}]}] * 4


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.chdir(tmp_path)
    with open_platform("yard.db", project="desk") as platform:
        platform.models.create("bot", base_model="tabular-mini")
        yield platform


def test_the_log_of_a_job_is_a_line_for_each_event(platform: Platform) -> None:
    platform.training.sft("desk/bot", ROWS, batch_size=1).wait()
    lines = call("jobs", "logs", "desk/bot").stdout.splitlines()
    kinds = [line.split("  ")[1] for line in lines]
    assert kinds.count("gradient_step") == 4
    assert "loss=" in next(line for line in lines if "gradient_step" in line)
    assert call("jobs", "logs", "desk/bot", "--last", 2).stdout.splitlines() == lines[-2:]
    found = [json.loads(line) for line in call("jobs", "logs", "desk/bot", "--json").stdout.splitlines()]
    assert [one["type"] for one in found] == kinds
    run = platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}]).run
    assert call("jobs", "logs", run.id).stdout.splitlines()[-1].split("  ")[1] == "evaluation_ended"
    call("jobs", "logs", "desk/none", status=1)


class Telling(TabularTrainer):
    """Says something within something of its jobs."""

    def train(self, *args: Any) -> Iterator[Any]:
        for item in super().train(*args):
            yield attrs.evolve(item, about={"memory": {"limit": 2000}}) if isinstance(item, Started) else item


def test_what_an_event_has_within_is_json(tmp_path: Path) -> None:
    store = tmp_path / "telling.db"
    with open_platform(store, trainers=[Telling()], project="desk") as platform:
        platform.models.create("bot", base_model="tabular-mini")
        platform.training.sft("desk/bot", ROWS).wait()
    assert 'about={"memory": {"limit": 2000}}' in call("jobs", "logs", "desk/bot", "--store", store).stdout


def test_an_event_cannot_control_the_terminal(platform: Platform) -> None:
    job = platform.training.sft("desk/bot", ROWS, learning_rate=1e30)
    platform.acting_as(attrs.evolve(platform.principal, name="\x1b[2Jgone")).jobs.cancel(job.id)
    told = call("jobs", "logs", "desk/bot").stdout
    assert "gone" in told
    assert "\x1b" not in told


def test_a_job_is_paused_and_continued(platform: Platform) -> None:
    job = platform.training.sft("desk/bot", ROWS)
    assert "is paused" in call("jobs", "pause", "desk/bot").stdout
    platform.worker().run_until_idle()
    assert job.refresh().status == "queued"
    assert "queued" in call("jobs", "resume", job.id).stdout
    platform.worker().run_until_idle()
    assert job.refresh().status == "succeeded"
    assert "succeeded" in call("jobs", "pause", job.id, status=1).stderr


def test_a_job_that_runs_pauses_at_its_next_step(platform: Platform) -> None:
    job = platform.training.sft("desk/bot", ROWS, batch_size=1)
    for event in job.events():
        if event.type == "gradient_step":
            assert "pauses at its next step" in call("jobs", "pause", job.id).stdout
            break
    assert "is paused" in call("jobs", "pause", job.id).stdout


def test_it_is_recorded_who_did_it(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    job = platform.training.sft("desk/bot", ROWS)
    call("jobs", "cancel", job.id)
    assert job.refresh().error_message == "cancelled by anna"
    platform.training.sft("desk/bot", ROWS).wait()
    call("promote", "desk/bot", 1)
    call("promote", "desk/bot", 0)
    call("rollback", "desk/bot")
    assert {made.by for made in platform.models.promotions("desk/bot")} == {"anna"}


def test_who_has_no_name_is_the_host(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    job = platform.training.sft("desk/bot", ROWS)
    call("jobs", "cancel", job.id)
    assert job.refresh().error_message == "cancelled by host"


def test_a_training_on_a_dataset_is_tried_again_with_the_same_request(platform: Platform) -> None:
    data = platform.training.upload("orders", ROWS).url
    failed = platform.training.sft("desk/bot", data, learning_rate=1e30, needs={"priority": 4})
    platform.worker().run_until_idle()
    assert failed.refresh().status == "failed"
    told = call("jobs", "retry", failed.id).stdout
    again = platform.training.job(told.split()[0])
    first, second = (_stored(platform, id) for id in (failed.id, again.id))
    kept: Any = ("kind", "lane", "entity", "project", "spec", "base_model", "rank", "fingerprint")
    assert [getattr(first, name) for name in kept] == [getattr(second, name) for name in kept]
    assert (second.status, second.resume_step) == ("queued", 0)
    assert call("jobs", "retry", failed.id).stdout == told, "an equal job waits already"
    call("jobs", "cancel", again.id)
    assert platform.jobs.retry(again.id).status == "queued"


def _stored(platform: Platform, id: str) -> Any:
    return platform._runtime.store.read(lambda snapshot: snapshot.get(Job, id))


def test_what_cannot_be_tried_again_says_why(platform: Platform) -> None:
    done = platform.training.sft("desk/bot", ROWS)
    done.wait()
    assert "is succeeded" in call("jobs", "retry", done.id, status=1).stderr
    own = platform.training.sft("desk/bot", ROWS)
    own.cancel()
    assert "rows were removed" in call("jobs", "retry", own.id, status=1).stderr
    with pytest.raises(Conflict):
        platform.jobs.retry(own.id)
    other = platform.acting_as(platform.keys.create("other").key.principal())
    with pytest.raises(NotFound):
        other.jobs.retry(own.id)


def test_an_evaluation_that_failed_goes_on_and_one_that_was_cancelled_does_not(platform: Platform) -> None:
    rows = [{"prompt": str(number), "expected": str(number)} for number in range(3)]
    key = platform.keys.create("local", ["desk"]).key
    run = platform.acting_as(key.principal()).evaluations.submit("quiz", "echo", rows)
    platform.keys.revoke(key.id)
    platform.worker().run_until_idle()
    assert platform.jobs.get(run.id).status == "failed"
    assert "queued" in call("jobs", "retry", run.id).stdout
    platform.worker().run_until_idle()
    assert platform.evaluations.runs.get(run.id).state == "completed"
    other = platform.evaluations.submit("quiz", "echo", rows)
    call("jobs", "cancel", other.id)
    assert "rescore it" in call("jobs", "retry", other.id, status=1).stderr


def test_a_budget_that_was_raised_lets_a_job_go_on(platform: Platform) -> None:
    mini = platform.catalogue.get("tabular-mini")
    platform.catalogue.register(attrs.evolve(mini, pricing=Pricing(training="0.0001")))
    platform.usage.set_budget("0.003")
    platform.training.sft("desk/bot", ROWS, batch_size=1)
    platform.worker().run_until_idle()
    assert "budget" in call("jobs", "logs", "desk/bot", "--last", 1).stdout
    call("budget", "set", "local", 1)
    call("jobs", "resume", "desk/bot")
    platform.worker().run_until_idle()
    assert call("jobs", "show", "desk/bot").stdout.count("succeeded")
