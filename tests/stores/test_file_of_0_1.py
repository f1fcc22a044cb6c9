"""A file that version 0.1.0 wrote opens, shows what it held, and its queue continues."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelyard import Platform, open_platform
from modelyard.executors.inline import InlineExecutor

KEPT = Path(__file__).parent / "files" / "yard-0.1.0.zip"
SECRET = "my_HhhOBFXB_dpA5YthocT34GTXcidcNn6SIfFccn1mcAjattew3Hrs"
SFT = "01a19467-e800-7005-9158-d55d0ac43546"
RL = "01a19467-e800-7016-a90d-361af0065120"
TABULAR_RUN = "01a19467-e800-701d-945d-520349ef5d7b"
ECHO_RUN = "01a19467-e800-7031-b6aa-ef14809c94db"


@pytest.fixture
def yard_of_before(tmp_path: Path) -> Iterator[Platform]:
    with zipfile.ZipFile(KEPT) as kept:
        kept.extractall(tmp_path)
    with open_platform(tmp_path / "yard.db") as platform:
        yield platform


def test_keys_and_budgets_are_there(yard_of_before: Platform) -> None:
    assert yard_of_before.keys.authenticate(SECRET).scope.entity == "acme"
    assert yard_of_before.usage.get_budget(entity="acme").limit == 5


def test_the_ledger_adds_up(yard_of_before: Platform) -> None:
    (total,) = yard_of_before.usage.total()
    assert (total.requests, total.prompt_tokens, total.completion_tokens) == (17, 199, 72)
    assert f"{total.cost:f}" == "0.0000367"


def test_models_and_their_checkpoints_answer(yard_of_before: Platform) -> None:
    model = yard_of_before.models.find("support", project="desk")
    assert [one.step for one in yard_of_before.models.checkpoints(model)] == [0, 1, 2]
    for name in ("local/desk/support:prod", "local/desk/support:step2"):
        answer = yard_of_before.chat.complete(model=name, messages="question 1", temperature=0, max_tokens=4)
        assert answer.text == "answer"


def test_registered_models_answer(yard_of_before: Platform) -> None:
    assert yard_of_before.catalogue.get("named").name == "Named"
    assert yard_of_before.chat.complete(model="named", messages="hello").text == "hello"


def test_stored_completions_are_there(yard_of_before: Platform) -> None:
    (stored,) = yard_of_before.chat.list()
    assert stored.request["messages"][0]["content"] == "hello there"


@pytest.mark.parametrize("job", [SFT, RL])
def test_training_jobs_have_their_events_and_checkpoints(yard_of_before: Platform, job: str) -> None:
    handle = yard_of_before.training.job(job)
    assert handle.status == "succeeded"
    events = [event.type for event in handle.events()]
    assert (events[0], events[-1]) == ("training_started", "training_ended")
    assert "gradient_step" in events


def test_runs_are_read_and_compared(yard_of_before: Platform) -> None:
    comparison = yard_of_before.evaluations.compare(baseline=ECHO_RUN, candidate=TABULAR_RUN)
    assert (comparison.baseline.id, comparison.candidate.id) == (ECHO_RUN, TABULAR_RUN)


def test_a_queued_job_is_run(yard_of_before: Platform) -> None:
    waiting = [job.id for job in yard_of_before.jobs.list() if job.status == "queued"]
    assert len(waiting) == 1
    with yard_of_before.worker(executor=InlineExecutor()):
        assert yard_of_before.training.job(waiting[0]).result(timeout=60).step == 3


def test_an_upload_is_still_trained_on(yard_of_before: Platform) -> None:
    job = yard_of_before.training.sft("desk/support", "modelyard:///local/desk/train:v0")
    with yard_of_before.worker(executor=InlineExecutor()):
        assert job.result(timeout=60).files
