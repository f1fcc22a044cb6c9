"""A file that version 0.1.0 wrote opens, shows what it held, and its queue continues."""

import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from http_client import client_of
from kept_files import schema
from modelyard import Platform, open_platform
from modelyard.domain.evaluation.run import Score
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.domain.job import Job
from modelyard.errors import RateLimited
from modelyard.executors.inline import InlineExecutor
from modelyard.platform.evaluations.stored_run import StoredRun

pytestmark = pytest.mark.parts

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


def test_what_was_reserved_is_released_and_rates_begin_with_a_full_bucket(tmp_path: Path) -> None:
    with zipfile.ZipFile(KEPT) as kept:
        kept.extractall(tmp_path)
    with closing(sqlite3.connect(tmp_path / "yard.db")) as file, file:
        file.execute("UPDATE budgets SET reserved = '4.5' WHERE id = 'acme'")
        file.execute(
            "INSERT INTO admissions VALUES ('a', 'k', 'acme', '[\"acme\"]', '4.5', '2026-01-01T00:00:00+00:00')"
        )
        file.execute("INSERT OR REPLACE INTO rate_windows VALUES ('k', 0.0, 2592000.0)")
    with open_platform(tmp_path / "yard.db") as platform:
        budget = platform.usage.get_budget(entity="acme")
        assert budget is not None
        assert (budget.reserved, budget.limit) == (0, 5)
        limits = Limits(requests_per_minute=1, concurrent_requests=1)
        caller = platform.acting_as(Principal("caller", "acme", Scope("acme"), "k", limits))
        assert caller.chat.complete(model="echo", messages="hello").text == "hello"
        with pytest.raises(RateLimited, match="1 requests a minute"):
            caller.chat.complete(model="echo", messages="hello")


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


def test_it_gets_the_tables_of_a_new_file(yard_of_before: Platform, tmp_path: Path) -> None:
    open_platform(tmp_path / "new.db").close()
    assert schema(tmp_path / "yard.db") == schema(tmp_path / "new.db")


@pytest.mark.parametrize("run", [TABULAR_RUN, ECHO_RUN])
def test_scores_get_the_rows_of_their_predictions(yard_of_before: Platform, run: str) -> None:
    rows = list(StoredRun(yard_of_before._runtime, run).full())
    scores = yard_of_before._runtime.store.read(lambda snapshot: snapshot.page(Score, "by_run", run, limit=1000))
    assert sum(len(several) for _, several in rows) == len(scores) > 0
    for prediction, several in rows:
        assert {(one.row_digest, one.trial) for one in several} <= {(prediction.row_digest, prediction.trial)}


def test_jobs_get_the_base_models_that_they_need(yard_of_before: Platform) -> None:
    jobs = [yard_of_before._runtime.store.read(lambda s, id=id: s.get(Job, id)) for id in (SFT, RL)]
    assert [job.base_model for job in jobs] == ["tabular-mini"] * 2


def test_requests_are_answered_once_by_their_idempotency_key(yard_of_before: Platform) -> None:
    client = client_of(yard_of_before)
    body = {"evaluation": "weave:///acme/bots/object/quiz", "model": "weave:///acme/bots/object/bot"}
    sent = {"headers": [("idempotency-key", "k")], "auth": "Basic"}
    first, again = (client.ok("POST", "/v2/acme/bots/evaluation_runs", body, **sent) for _ in range(2))
    assert first == again
