"""The Python that tests fork programs from is like one that is started: what it must not change is looked at here."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polling import until
from warm_python import WarmPython

pytestmark = pytest.mark.slow

SAYS = """
import os, sys, modelyard
sys.stderr.reconfigure(errors="strict")
print(__name__, sys.argv, os.getcwd(), os.environ["WORD"], sys.stdin.read())
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPython]:
    with WarmPython("modelyard") as made:
        yield made


def said(python: str, folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *words],
        input="given",
        cwd=folder,
        env={**os.environ, "WORD": "a word"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


def test_a_program_is_started_as_any_interpreter_starts_it(warm: WarmPython, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import beside\n{SAYS}")
    (tmp_path / "beside.py").write_text("")
    for words in (("program.py", "a", "-b"), ("-m", "program", "a"), ("-c", SAYS, "a b"), ("-c", "import beside")):
        assert said(warm.executable, tmp_path, *words) == said(sys.executable, tmp_path, *words)


@pytest.mark.parametrize(
    "code", ["raise SystemExit(7)", "raise SystemExit('why')", "1 / 0", "import os; os.kill(os.getpid(), 9)"]
)
def test_it_ends_as_the_program_does(warm: WarmPython, tmp_path: Path, code: str) -> None:
    assert said(warm.executable, tmp_path, "-c", code) == said(sys.executable, tmp_path, "-c", code)


def test_what_ran_leaves_nothing_to_what_runs_next(warm: WarmPython, tmp_path: Path) -> None:
    says = "import sys, modelyard; print(hasattr(modelyard, 'left')); modelyard.left = 1"
    assert [said(warm.executable, tmp_path, "-c", says)[1] for _ in range(2)] == ["False\n"] * 2


WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 3), (signal.SIGKILL, -9)])
def test_signals_reach_it_and_none_outlives_the_process_that_stands_for_it(
    warm: WarmPython, number: signal.Signals, status: int
) -> None:
    with subprocess.Popen([warm.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait() == status
        until(lambda: not Path(f"/proc/{pid}").exists())
