"""Workers that are killed as soon as they hold a job, before its process has taken it up: the job is not to blame."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main
from modelyard.domain.job import JobProgress
from polling import until
from warm_python import WarmPython

pytestmark = pytest.mark.crash

KILLS = 6
"""More than a suspect may be charged for."""

FACTORY = '''
import os, signal
from modelyard import Settings, open_platform
from modelyard.domain.events import JobChanged


def die_with_the_job(event):
    """The worker has committed its claim, and given the job to nobody."""
    if isinstance(event, JobChanged) and event.status == "running":
        os.kill(os.getpid(), signal.SIGKILL)


def deadly():
    return open_platform("yard.db", observer=die_with_the_job, settings=Settings(poll=0.05))


def healthy():
    return open_platform("yard.db", settings=Settings(poll=0.05))
'''
ROWS = [{"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]}] * 4


@pytest.mark.parametrize("options", [(), ("--isolate",)])
def test_a_job_survives_any_number_of_workers_that_are_killed_while_they_hold_it(
    warm_python: WarmPython, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "taken_up.py").write_text(FACTORY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    def work(factory: str) -> "subprocess.Popen[bytes]":
        words = ("-m", "modelyard.cli", "work", "--factory", f"taken_up:{factory}", *options)
        return subprocess.Popen(
            [warm_python.executable, *words], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL
        )

    with open_platform(tmp_path / "yard.db") as platform:
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), ROWS)
        for kill in range(KILLS):
            assert work("deadly").wait(60) == -signal.SIGKILL
            assert (job.refresh().status, job.refresh().attempts) == ("running", kill + 1)
        progress = platform._runtime.store.read(lambda snapshot: snapshot.get(JobProgress, job.id))
        assert (progress.crashes, progress.losses) == (0, KILLS - 2), "the last loss was not seen yet"
        assert "the one that ran it has died" in str(job.refresh().waiting_for)
        assert "the one that ran it has died" in str(platform.jobs.get(job.id).waiting_for)
        check = platform.health.system_check()
        assert (check.worker.success, check.idle) == (False, False)
        told = CliRunner().invoke(main, ["doctor", "--store", str(tmp_path / "yard.db")])
        assert (told.exit_code, "the one that ran it has died" in told.output) == (1, True)
        worker = work("healthy")
        try:
            until(lambda: job.refresh().status == "succeeded")
            assert job.refresh().attempts == KILLS + 1
        finally:
            worker.terminate()
            assert worker.wait(60) == 0
