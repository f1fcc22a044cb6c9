"""What takes long to import has been imported by the time that the next job comes: by a spare, or by one for all."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard import Example, Message, Platform, Role, open_platform
from modelyard.domain.job import Claim
from modelyard.errors import InvalidInput
from modelyard.executors import subprocess as executing
from modelyard.executors.fork_server import ForkServer, can_fork
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.parts.contracts.executor import NEEDS, outcome
from modelyard.parts.contracts.executor_trials import PATIENCE, until
from modelyard.process_identity import ProcessName
from modelyard.protocols import Ended

pytestmark = pytest.mark.crash

ROWS = [Example((Message(Role.USER, "ask"), Message(Role.ASSISTANT, "answer")))]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(tmp_path / "yard.db") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        yield platform


@pytest.fixture
def _slow_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that says who imports it, and what the environment says there."""
    reply = "os.getpid(), os.environ.get('OMP_WAIT_POLICY'), os.environ.get('HF_HUB_OFFLINE')"
    code = f"import os; print({reply}, file=open({str(tmp_path / 'imported')!r}, 'a'))"
    (tmp_path / "slow_to_import.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for name in ("OMP_WAIT_POLICY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def executor(_slow_to_import: None, tmp_path: Path) -> Iterator[SubprocessExecutor]:
    factory, arguments = "modelyard.compose:open_platform", [str(tmp_path / "yard.db")]
    with closing(SubprocessExecutor(factory, arguments, preload=["slow_to_import"])) as made:
        yield made


@pytest.fixture
def forking(_slow_to_import: None, tmp_path: Path) -> Iterator[SubprocessExecutor]:
    factory, arguments = "modelyard.compose:open_platform", [str(tmp_path / "yard.db")]
    with closing(SubprocessExecutor(factory, arguments, preload=["slow_to_import"], fork=True)) as made:
        yield made


def imported(tmp_path: Path) -> list[str]:
    """Who has imported the module, with the two variables."""
    return (tmp_path / "imported").read_text().splitlines()


def spare(executor: SubprocessExecutor) -> int:
    assert executor._spare is not None
    return executor._spare.process.pid


def pid_of(handle: str) -> int:
    found = ProcessName.parse(handle.rpartition("/")[2])
    assert found is not None
    return found.pid


def test_each_job_after_the_first_is_taken_by_the_spare_that_was_started_before_it(
    platform: Platform, executor: SubprocessExecutor
) -> None:
    handles: list[str] = []
    submit = executor.submit
    executor.submit = lambda claim, run, needs: handles.append(submit(claim, run, needs)) or handles[-1]  # type: ignore[method-assign,func-returns-value]
    with platform.worker(executor=executor):
        platform.training.sft("p/m", ROWS).wait()
        waiting = spare(executor)
        job = platform.training.sft("p/m", ROWS).wait()
        assert job.status == "succeeded"
        assert [pid_of(handle) == waiting for handle in handles] == [False, True]
        assert spare(executor) != waiting
    assert executor._spare is None


def test_a_spare_process_has_imported_its_modules_and_ends_with_its_parent(
    platform: Platform, executor: SubprocessExecutor, tmp_path: Path
) -> None:
    with platform.worker(executor=executor):
        platform.training.sft("p/m", ROWS).wait()
        process = executor._spare.process  # type: ignore[union-attr]
        until(lambda: (tmp_path / "imported").exists() and imported(tmp_path))
        assert imported(tmp_path) == [f"{process.pid} PASSIVE 1"]
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_a_spare_that_died_is_replaced_by_a_new_process(platform: Platform, executor: SubprocessExecutor) -> None:
    with platform.worker(executor=executor):
        platform.training.sft("p/m", ROWS).wait()
        os.kill(spare(executor), signal.SIGKILL)
        assert platform.training.sft("p/m", ROWS).wait().status == "succeeded"


# ---- one process that forks for each job -------------------------------------------------------------------------


def forks(executor: SubprocessExecutor) -> ForkServer:
    """What forks, once it has imported everything."""
    until(lambda: executor._forks is not None and executor._forks.ready)
    assert executor._forks is not None
    return executor._forks


def test_each_job_after_the_first_is_forked_from_one_process_that_has_imported_everything(
    platform: Platform, forking: SubprocessExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with platform.worker(executor=forking):
        platform.training.sft("p/m", ROWS).wait()
        server = forks(forking)
        monkeypatch.setattr(executing._Child, "start", None)  # no other process can be started from here on
        for _ in range(3):
            assert platform.training.sft("p/m", ROWS).wait().refresh().attempts == 1
        assert imported(tmp_path) == [f"{server._process.pid} PASSIVE 1"]
        assert server.lives
    assert not server.lives


def submitted(executor: SubprocessExecutor, job_id: str) -> str:
    return executor.submit(Claim(job_id, 1, "worker"), lambda _: None, NEEDS)


def test_forked_jobs_whose_server_dies_end_one_by_one_and_the_next_one_runs(
    tmp_path: Path,
) -> None:
    factory = "modelyard.parts.contracts.executor_trials:trial_elsewhere"
    with closing(SubprocessExecutor(factory, [str(tmp_path)], fork=True)) as executor:
        executor._prepare()
        server = forks(executor)
        handles = [submitted(executor, f"waiting-{number}") for number in range(2)]
        until(lambda: (tmp_path / "begun").exists() and len((tmp_path / "begun").read_text().split()) == 2)
        os.kill(server._process.pid, signal.SIGKILL)
        for handle in handles:
            assert "was ended by signal 9" in outcome(executor, handle).fault
            job = ProcessName.parse(handle.rpartition("/")[2])
            assert job is not None
            until(lambda job=job: not job.lives)
        assert outcome(executor, submitted(executor, "brief-2")) == Ended()
        assert forks(executor) is not server


def test_the_end_of_a_forked_process_is_reported_with_its_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with closing(SubprocessExecutor("gated_yard:talkative", fork=True)) as executor:
        executor._prepare()
        forks(executor)
        reported = outcome(executor, submitted(executor, "job")).fault
        assert reported.startswith("its process ended with exit status 3; its last words: xxx")
        assert reported.endswith("the end")


def test_without_its_imports_the_fork_server_leaves_every_job_to_a_new_process(
    platform: Platform, tmp_path: Path
) -> None:
    arguments = [str(tmp_path / "yard.db")]
    executor = SubprocessExecutor("modelyard.compose:open_platform", arguments, preload=["no_such_module"], fork=True)
    with platform.worker(executor=executor):
        for _ in range(2):
            assert platform.training.sft("p/m", ROWS).wait().refresh().attempts == 1
            assert executor._forks is not None
            executor._forks._process.wait(PATIENCE)


def test_a_host_that_cannot_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fork()
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(InvalidInput, match="needs Linux"):
        SubprocessExecutor("modelyard.compose:open_platform", fork=True)


def test_what_the_environment_says_of_threads_and_hubs_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    reply = executing._environment()
    assert (reply["OMP_WAIT_POLICY"], reply["HF_HUB_OFFLINE"]) == ("ACTIVE", "0")
