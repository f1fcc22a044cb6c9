"""A training process that is killed and started again ends as if nothing had happened, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training_child import begun
from training_kit import micro

import modelyard
from modelyard.testing.trainer import followed

CHILD = Path(__file__).with_name("training_child.py")


@contextmanager
def child(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    paths = os.pathsep.join([str(Path(modelyard.__file__).parents[1]), str(CHILD.parent)])
    with subprocess.Popen(
        [sys.executable, CHILD, micro(), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def steps_of(process: "subprocess.Popen[str]", until: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Let it go on, step by step."""
    assert process.stdin is not None
    assert process.stdout is not None
    for line in process.stdout:
        number, metrics = json.loads(line)
        yield number, metrics
        if number == until:
            return
        process.stdin.write("\n")
        process.stdin.flush()


def test_a_process_killed_at_a_step_and_started_again_ends_bit_for_bit_like_an_undisturbed_one(tmp_path: Path) -> None:
    whole = followed(begun(micro(), None))
    with child(tmp_path) as process:
        before = dict(steps_of(process, until=5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["state-003"]
    with child(tmp_path) as process:
        after = dict(steps_of(process, until=0))
    assert list(before) == [1, 2, 3, 4, 5]
    assert list(after) == [4, 5, 6, 7, 8]
    assert {**before, **after} == {step.number: dict(step.metrics) for step in whole.steps}
    assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == whole.files
