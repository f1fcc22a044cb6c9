"""A spare process has imported what takes long by the time that the next job comes."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard import Example, Message, Platform, Role, open_platform
from modelyard.executors.process import ProcessName
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.testing.executor import PATIENCE, until

ROWS = [Example((Message(Role.USER, "ask"), Message(Role.ASSISTANT, "answer")))]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(tmp_path / "yard.db") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        yield platform


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SubprocessExecutor]:
    """Its spares import a module that says so."""
    said = f"import os; open({str(tmp_path / 'imported')!r}, 'w').write(str(os.getpid()))"
    (tmp_path / "slow_to_import.py").write_text(said)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    factory, arguments = "modelyard.compose:open_platform", [str(tmp_path / "yard.db")]
    with closing(SubprocessExecutor(factory, arguments, preload=["slow_to_import"])) as made:
        yield made


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
    executor.submit = lambda claim, run: handles.append(submit(claim, run)) or handles[-1]  # type: ignore[method-assign,func-returns-value]
    with platform.worker(executor=executor):
        platform.training.sft("p/m", ROWS).wait()
        waiting = spare(executor)
        job = platform.training.sft("p/m", ROWS).wait()
        assert job.status == "succeeded"
        assert [pid_of(handle) == waiting for handle in handles] == [False, True]
        assert spare(executor) != waiting
    assert executor._spare is None


def test_a_spare_has_imported_what_it_was_told_and_leaves_when_its_parent_does(
    platform: Platform, executor: SubprocessExecutor, tmp_path: Path
) -> None:
    with platform.worker(executor=executor):
        platform.training.sft("p/m", ROWS).wait()
        process = executor._spare.process  # type: ignore[union-attr]
        until(lambda: (tmp_path / "imported").exists())
        assert (tmp_path / "imported").read_text() == str(process.pid)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_a_spare_that_died_is_replaced_by_a_new_process(platform: Platform, executor: SubprocessExecutor) -> None:
    with platform.worker(executor=executor):
        platform.training.sft("p/m", ROWS).wait()
        os.kill(spare(executor), signal.SIGKILL)
        assert platform.training.sft("p/m", ROWS).wait().status == "succeeded"
