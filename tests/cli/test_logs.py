"""What workers and commands write to the log, and how they end when they are told to."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.job import ENDED
from polling import until

pytestmark = pytest.mark.servers

ROWS = [{"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]}] * 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "yard.db"


def stopped(worker: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """End a worker; returns the lines of its log."""
    worker.send_signal(signal.SIGTERM)
    _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0
    return [json.loads(line) for line in told.splitlines()]


@pytest.mark.parametrize("options", [(), ("--isolate",)])
def test_a_worker_writes_a_line_of_json_for_all_that_happens_to_a_job(store: Path, options: tuple[str, ...]) -> None:
    words = [sys.executable, "-m", "modelyard.cli", "work", "--store", str(store), "--log", "json", *options]
    with open_platform(store) as platform:
        good, bad, unwanted = (platform.models.create(name, base_model="tabular-mini") for name in "abc")
        succeeds = platform.training.sft(good, ROWS)
        fails = platform.training.sft(bad, ROWS, learning_rate=1e30)
        cancelled = platform.training.sft(unwanted, ROWS)
        worker = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        platform.jobs.cancel(cancelled.id)
        until(lambda: all(job.refresh().status in ENDED for job in (succeeds, fails, cancelled)))
    lines = stopped(worker)
    assert "waits for jobs;" in lines[0]["message"]
    assert any(line["message"].endswith("is stopping") for line in lines)

    def said(job: str) -> list[tuple[str, str]]:
        found = [line for line in lines if job in line["message"]]
        return [(line["level"], line["message"].partition(") ")[2].partition(":")[0]) for line in found]

    assert said(succeeds.id) == [("INFO", "begins"), ("INFO", "succeeded")]
    assert said(fails.id) == [("INFO", "begins"), ("WARNING", "failed")]
    assert said(cancelled.id) in ([], [("INFO", "begins"), ("INFO", "was cancelled")])


@pytest.mark.parametrize("isolated", ["", "--isolate"])
def test_a_job_that_is_taken_over_from_a_dead_worker_is_in_the_log(store: Path, isolated: str) -> None:
    script = "import os, sys; from modelyard import open_platform; from modelyard.platform.jobs.runner import Runner\n"
    script += f"p = open_platform({str(store)!r}); Runner(p._runtime).claim(); os._exit(0)"
    with open_platform(store) as platform:
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), ROWS)
        subprocess.run([sys.executable, "-c", script], check=True)
        words = [sys.executable, "-m", "modelyard.cli", "work", "--store", str(store), "--log", "json"]
        worker = subprocess.Popen(
            [*words, *filter(None, [isolated])], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        until(lambda: job.refresh().status in ENDED)
    told = [line["message"] for line in stopped(worker) if job.id in line["message"]]
    assert "was taken over" in told[0]
    changes = [message.partition(") ")[2] for message in told[1:] if ", attempt " in message]
    assert changes == ["is in the queue again", "begins", "succeeded"]


@pytest.mark.parametrize("module", ["click", "modelyard.cli.lazy_group", "modelyard.part", "modelyard.cli.jobs"])
def test_an_interrupt_during_the_imports_prints_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    words = [sys.executable, "-m", "modelyard", "jobs", "list"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
