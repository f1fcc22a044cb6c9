"""The numbers of a job in the trackers of others, by their own packages: written there, and read back from there."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.platform.training.metrics import MetricRows

pytest.importorskip("tensorboard", reason="it has a lane of its own: tests/clients/lanes.py trackers")

ROWS = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}] * 3


@pytest.fixture(scope="module")
def rows() -> Iterator[MetricRows]:
    """What an SFT job of three steps recorded."""
    with open_platform() as platform:
        platform.models.create("polite", project="demo", base_model="tabular-mini")
        job = platform.training.sft("demo/polite", ROWS, batch_size=1)
        job.wait()
        yield job.metrics()


def test_tensorboard_reads_every_number_at_its_step_and_time(rows: MetricRows, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows.to_tensorboard(tmp_path / "run")
    found = EventAccumulator(str(tmp_path / "run"))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == sorted(rows[0].values)
    for name in rows[0].values:
        read = [(one.step, one.value, one.wall_time) for one in found.Scalars(name)]
        assert [step for step, _, _ in read] == [1, 2, 3]
        for (_, value, at), row in zip(read, rows, strict=True):
            assert math.isclose(value, row.values[name], rel_tol=1e-6, abs_tol=1e-12)
            assert at == row.created_at.timestamp()


def test_a_run_of_wandb_takes_them(rows: MetricRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import wandb

    run = wandb.init(project="demo", mode="offline", dir=str(tmp_path))
    rows.log_to(run)
    run.finish()
    wandb.teardown()  # the service has written its file when it has ended
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert [step for step, _ in logged(file)] == [1, 2, 3]
    assert [values["loss"] for _, values in logged(file)] == pytest.approx([row.values["loss"] for row in rows])


def logged(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Read what a run has in its file."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            values = {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found.append((record.history.step.num, values))
    return found


def records(content: bytes) -> Iterator[bytes]:
    """Read the records of a file: after its head, blocks of 32 KiB with pieces of records, as LevelDB logs have them.

    wandb has had a reader of its own in one version and none in another.
    """
    head, block, last = struct.Struct("<IHB"), 32_768, (1, 4)  # checksum, length, kind
    at, pieces = head.size, b""
    while at + head.size <= len(content):
        if block - at % block < head.size:
            at += block - at % block
            continue
        _, length, kind = head.unpack_from(content, at)
        pieces += content[at + head.size : at + head.size + length]
        at += head.size + length
        if kind in last:
            yield pieces
            pieces = b""
