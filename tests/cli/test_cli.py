"""The command line, as a person and as a program use it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modelyard import Example, Message, Role, open_platform
from modelyard.cli import main
from modelyard.domain.evaluation.run import RunState
from modelyard.errors import JobFailed, StoreError
from modelyard.stores.sqlite.store import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "yard.db"
    with open_platform(path) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        rows = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
        platform.training.sft(model.id, rows).wait()
        platform.training.sft(model.id, rows, learning_rate=1e-4)
        platform.chat.complete(model="echo", messages="hi", project="p")
    return path


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def rows(*words: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(call(*words, "--json").stdout)
    return found


@pytest.mark.parts
def test_a_key_is_made_shown_once_listed_without_its_secret_and_revoked(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    made = json.loads(call("keys", "create", "--store", path, "--entity", "acme", "--project", "p", "--json").stdout)
    (listed,) = rows("keys", "list", "--store", path)
    assert made["id"] == listed["id"]
    assert made["key"] not in json.dumps(listed)
    call("keys", "revoke", "--store", path, made["id"])
    assert rows("keys", "list", "--store", path)[0]["revoked"] is not None


@pytest.mark.parts
def test_models_and_jobs_are_listed_for_people_and_for_machines(store: Path) -> None:
    assert [model["name"] for model in rows("models", "--store", store)] == ["m"]
    assert [job["status"] for job in rows("jobs", "list", "--store", store)] == ["queued", "succeeded"]
    assert "succeeded" in call("jobs", "list", "--store", store).stdout
    waiting = [job["waiting_for"] for job in rows("jobs", "list", "--store", store)]
    assert waiting == ["a worker: none is alive", None]
    assert "a worker: none is alive" in call("jobs", "list", "--store", store).stdout


@pytest.mark.parts
def test_one_job_is_shown_cancelled_and_watched_to_its_end(store: Path) -> None:
    queued, done = (job["id"] for job in rows("jobs", "list", "--store", store))
    assert json.loads(call("jobs", "show", "--store", store, done, "--json").stdout)["step"] == 1
    assert "succeeded" in call("jobs", "watch", "--store", store, done).stdout
    assert call("jobs", "cancel", "--store", store, queued).stdout == f"{queued} is cancelled\n"
    assert call("jobs", "cancel", "--store", store, done).stdout == f"{done} is succeeded\n"
    assert "cancelled" in call("jobs", "watch", "--store", store, queued).stdout


@pytest.mark.parts
def test_the_names_in_a_list_of_jobs_work_in_the_next_command(store: Path) -> None:
    """Of several entities, too, of which two have a model of the same name."""
    with open_platform(store) as platform:
        rows_of = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))]
        for entity in ("acme", "beta"):
            model = platform.models.create("m", project="desk", entity=entity, base_model="tabular-mini")
            platform.training.sft(model.id, rows_of)
        run = platform.evaluations.submit("greetings", "echo", [{"prompt": "hi", "expected": "hi"}], project="p")
    listed = rows("jobs", "list", "--store", store)
    assert [job["entity"] for job in listed] == ["local", "beta", "acme", "local", "local"]
    header, *lines = call("jobs", "list", "--store", store).stdout.splitlines()
    assert header.split()[:3] == ["id", "entity", "kind"]
    for name, job in zip(("greetings@echo", "beta/desk/m", "acme/desk/m"), listed, strict=False):
        assert sum(f" {name} " in line for line in lines) == 1
        assert json.loads(call("jobs", "show", "--store", store, name, "--json").stdout)["id"] == job["id"]
        assert call("jobs", "logs", "--store", store, name).exit_code == 0
    assert run.id == listed[0]["subject"]
    for words in (("jobs", "logs"), ("jobs", "show"), ("jobs", "retry"), ("models", "show"), ("checkpoints",)):
        said = call(*words, "--store", store, "desk/m", status=1).output
        assert "did you mean" in said
        assert all(f"'{entity}/desk/m'" in said for entity in ("acme", "beta"))
    assert "entity" not in call("jobs", "list", "--store", store, "--entity", "acme").stdout.splitlines()[0]


@pytest.mark.parts
def test_a_job_is_named_by_the_model_that_it_trains_last(store: Path) -> None:
    queued, done = (job["id"] for job in rows("jobs", "list", "--store", store))
    assert json.loads(call("jobs", "show", "--store", store, "local/p/m", "--json").stdout)["id"] == queued
    assert call("jobs", "cancel", "--store", store, "p/m").stdout == "p/m is cancelled\n"
    assert "cancelled" in call("jobs", "watch", "--store", store, "p/m").stdout
    with open_platform(store) as platform:
        platform.models.create("untrained", project="p", base_model="tabular-mini")
    assert "no training job yet" in call("jobs", "show", "--store", store, "p/untrained", status=1).output
    assert "not found" in call("jobs", "show", "--store", store, "p/none", status=1).output


def test_the_error_of_a_failed_job_is_short_in_a_listing_and_whole_on_its_own(store: Path) -> None:
    with open_platform(store) as platform:
        example = Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))
        job = platform.training.sft("p/m", [example] * 4, learning_rate=1e6)
        with pytest.raises(JobFailed):
            platform.training.job(job.id).wait()
        message = platform.training.get(job.id).error_message or ""
    assert len(message) > 60
    listed, shown = (call("jobs", *words, "--store", store).stdout for words in (("list",), ("show", job.id)))
    assert message not in listed
    assert message[:59] + "…" in listed
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split()) > 1)
    assert (fields["error_message"], fields["config.learning_rate"]) == (message, "1000000.0")
    assert rows("jobs", "list", "--store", store)[0]["error_message"] == message


@pytest.mark.parts
def test_evaluations_are_jobs_that_are_listed_shown_cancelled_and_watched(store: Path) -> None:
    questions = [{"prompt": "hi", "expected": "hi"}] * 3
    with open_platform(store) as platform:
        scored = platform.evaluations.submit("e", "echo", questions, project="p")
        rescored = platform.evaluations.run("e", "echo", questions, project="p").run
        rescored = platform.evaluations.submit_rescore(rescored.id, "contains")
        unwanted = platform.evaluations.submit("e", "echo", questions, project="p")
    jobs = rows("jobs", "list", "--store", store)[::-1]
    assert [job["kind"] for job in jobs] == ["sft", "sft", "evaluate", "evaluate", "rescore", "evaluate"]
    assert [job["subject"] for job in jobs[4:]] == [rescored.id, unwanted.id]
    assert call("jobs", "cancel", "--store", store, jobs[5]["id"]).stdout == f"{jobs[5]['id']} is cancelled\n"
    watched = call("jobs", "watch", "--store", store, scored.id).stdout
    assert "\nsucceeded\n" in watched
    assert "trials             3\n" in watched
    shown = json.loads(call("jobs", "show", "--store", store, jobs[4]["id"], "--json").stdout)
    assert (shown["kind"], shown["status"], shown["subject"]) == ("rescore", "queued", rescored.id)
    assert rows("jobs", "show", "--store", store, scored.id)["progress"] == 3  # type: ignore[call-overload]
    with open_platform(store) as platform:
        assert platform.evaluations.runs.get(unwanted.id).state is RunState.CANCELLED


@pytest.mark.parts
def test_a_checkpoint_is_promoted_and_rolled_back(store: Path) -> None:
    words = ("--store", store, "local/p/m")
    assert call("promote", *words, 0).stdout == "prod points to step 0\n"
    assert call("promote", *words, 1).stdout == "prod points to step 1, before to step 0\n"
    assert call("promote", *words, 1, "--alias", "canary").stdout == "canary points to step 1\n"
    assert call("rollback", *words).stdout == "prod points to step 0, before to step 1\n"
    assert "nothing before" in call("rollback", *words, "--alias", "canary", status=1).output
    assert "not found" in call("promote", *words, 9, status=1).output
    with open_platform(store) as platform:
        aliases = {alias.name: alias.step for alias in platform.models.aliases("p/m")}
    assert aliases == {"prod": 0, "canary": 1}


@pytest.mark.parts
def test_a_wrong_store_or_id_is_one_clear_line(store: Path, tmp_path: Path) -> None:
    missing = call("models", "--store", tmp_path / "none.db", status=1)
    assert "there is no store at" in missing.output
    making = missing.output.split("`")[1].split()[1:]
    call(*making, status=0)
    assert call("models", "--store", tmp_path / "none.db").output == call("models", "--store", making[-1]).output
    unknown = call("jobs", "show", "--store", store, "018f0000-0000-7000-8000-000000000000", status=1)
    assert "not found" in unknown.output
    assert "Traceback" not in unknown.output
    foreign = tmp_path / "foreign.db"
    foreign.write_text("this is no database, and it is long enough to be read as one" * 50)
    assert "Traceback" not in call("models", "--store", foreign, status=1).output


@pytest.mark.parametrize("command", [("work",), ("jobs", "list")])
def test_a_command_gets_either_a_store_or_a_factory(command: tuple[str, ...]) -> None:
    assert "give either --store or --factory" in call(*command, "--store", "a", "--factory", "a:b", status=2).output


@pytest.mark.parts
def test_the_store_is_the_yard_db_of_this_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    assert [model["name"] for model in rows("models")] == ["m"]
    (store.parent / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert "there is no ./yard.db here" in call("models", status=1).output
    assert list(Path().iterdir()) == []


def test_a_factory_that_cannot_be_loaded_is_one_clear_line() -> None:
    reported = call("work", "--factory", "no_such_module:platform", status=1).output
    assert "no_such_module:platform cannot be loaded" in reported


@pytest.mark.servers
def test_a_worker_runs_each_job_in_its_own_process_until_it_is_terminated(store: Path) -> None:
    words = [sys.executable, "-m", "modelyard.cli", "work", "--isolate", "--store", str(store)]
    worker = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert "waits for jobs" in worker.stderr.readline()
    with open_platform(store) as platform:
        _, queued = platform.training.list().page().items
        ended = platform.training.job(queued.id).wait(60).refresh()
    assert (ended.status, ended.attempts) == ("succeeded", 1)
    worker.send_signal(signal.SIGTERM)
    _, reply = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "is stopping" in reply  # that the job has succeeded may be said after it


@pytest.mark.parts
def test_artifacts_may_lie_elsewhere_than_next_to_the_file(tmp_path: Path) -> None:
    store, kept = tmp_path / "yard.db", tmp_path / "elsewhere"
    call("keys", "create", "--store", store, "--artifacts", kept, "--entity", "acme")
    assert kept.is_dir()
    assert [one.name for one in tmp_path.glob("*-artifacts")] == []


@pytest.mark.parts
@pytest.mark.parametrize(
    ("address", "reply"),
    [
        ("s3://key:hidden@bucket", "must be an address without credentials"),
        ("ftp://bucket", "must be a folder"),
        ("s3://", "must be a folder"),
    ],
)
def test_an_address_of_artifacts_that_cannot_be_opened_is_one_clear_line(
    tmp_path: Path, address: str, reply: str
) -> None:
    words = ("--store", tmp_path / "yard.db", "--artifacts", address, "--entity", "acme")
    shown = call("keys", "create", *words, status=1).output
    assert reply in shown
    assert "hidden" not in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parts
@pytest.mark.parametrize("command", ["serve", "work"])
def test_an_object_store_that_does_not_answer_is_said_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    objects = pytest.importorskip("modelyard.parts.objects.store")

    def check(self: object) -> None:
        raise StoreError("there is no bucket 'modles'; create it, or correct the address of the artifacts")

    monkeypatch.setattr(objects.ObjectArtifacts, "check", check)
    call("keys", "create", "--store", tmp_path / "yard.db", "--entity", "acme")
    shown = call(command, "--store", tmp_path / "yard.db", "--artifacts", "s3://modles", status=1).output
    assert shown == "Error: there is no bucket 'modles'; create it, or correct the address of the artifacts\n"


def test_a_factory_opens_its_own_artifacts() -> None:
    assert "--artifacts goes with --store" in call("work", "--factory", "a:b", "--artifacts", "c", status=2).output


def test_a_list_of_jobs_reads_a_page_and_no_job_by_itself(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, of however few models."""
    with open_platform(str(store)) as platform:
        model = platform.models.create("busy", project="p", base_model="tabular-mini")
        ids = [
            platform.training.sft(model.id, [Example((Message(Role.USER, f"{n}"), Message(Role.ASSISTANT, "a")))]).id
            for n in range(60)
        ]
    reads: list[int] = []
    real = SqliteStore.read
    monkeypatch.setattr(SqliteStore, "read", lambda self, query: (reads.append(1), real(self, query))[1])
    table = call("jobs", "list", "--store", store).stdout
    few = len(reads)
    assert [job["id"] for job in rows("jobs", "list", "--store", store)] == ids[:9:-1]
    assert (table.count("p/busy"), few < 10) == (50, True)
    reads.clear()
    call("jobs", "list", "--store", store, "--last", 5)
    assert len(reads) == few
