"""An object store that takes requests and never answers is found in seconds, whichever command asks it first."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gates import Gate
from modelyard import open_platform
from object_server import ObjectServer, object_server

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "local/desk/pupil"
BOUND = 45.0
"""Seconds of which thirty are for a slow machine; without a bound these commands take more than a minute."""


@pytest.fixture
def served() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def store(served: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Gate]]:
    gate = Gate(served.port)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{gate.port}",
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "examplesecret",
        "AWS_REGION": "us-east-1",
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    place = str(tmp_path / "yard.db")
    with open_platform(place, artifacts="s3://yard") as platform:
        row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "green"}]}
        model = platform.models.create("pupil", project="desk", base_model="tabular-mini")
        platform.training.sft(model, [row] * 2).wait()
    yield place, gate
    gate.close()


@pytest.mark.parametrize(
    "words",
    [["ask", MODEL, "hello"], ["backup", "copy.db"], ["sweep", "--grace", "1"], ["doctor", "--files"]],
    ids=lambda words: words[0],
)
def test_a_command_that_meets_it_ends_with_a_line(words: list[str], store: tuple[str, Gate], tmp_path: Path) -> None:
    place, gate = store
    command = [sys.executable, "-m", "modelyard.cli", *words, "--store", place, "--artifacts", "s3://yard"]
    (tmp_path / "tmp").mkdir()
    with gate.holding():
        begun = time.monotonic()  # another folder of temporary files has no copies of what was written
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path / "tmp")}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        took = time.monotonic() - begun
    told = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "the object store of bucket 'yard' cannot be reached" in told
    assert "Traceback" not in told
    assert took < BOUND
