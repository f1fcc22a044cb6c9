"""Copies and backups of a store that others work on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from modelyard import open_platform
from modelyard.cli import main
from modelyard.errors import StoreError
from modelyard.parts import copying

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def doctor(store: Path, status: int) -> Any:
    return json.loads(call("doctor", "--store", store, "--json", status=status).stdout)


def test_the_workers_of_the_original_do_not_work_on_a_copy_or_on_what_was_restored(
    yard_file: Path, tmp_path: Path
) -> None:
    backup, restored, copied = (tmp_path / name for name in ("backup.db", "restored.db", "copied.db"))
    with open_platform(yard_file) as platform:
        model = platform.models.create("m", project="desk", base_model="tabular-mini")
        paused = platform.training.sft(model.id, [EXAMPLE])
        paused.pause()
        with platform.worker():
            assert doctor(yard_file, 0)["workers"] == 1
            platform.backup(backup)
            call("restore", backup, restored)
            call("copy", yard_file, copied)
            for other in (restored, copied):
                assert doctor(other, 0)["workers"] == 0
                call("jobs", "resume", "desk/m", "--store", other)
                assert doctor(other, 1)["oldest_queued_s"] >= 0
            assert doctor(yard_file, 0)["workers"] == 1
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(("backup.db-w", "backup.db-s"))]


def test_a_copy_names_the_processes_that_have_its_source_open(yard_file: Path, tmp_path: Path) -> None:
    with open_platform(yard_file) as platform:
        platform.keys.create("acme")
        with platform.worker():
            said = call("copy", yard_file, tmp_path / "one.db").output
            assert f"seems to be open in {os.getpid()}: what" in said
    assert "note:" not in call("copy", yard_file, tmp_path / "two.db").output


def test_a_copy_of_what_was_written_to_meanwhile_fails(
    yard_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copying.copy_records

    def write_first(*given: Any) -> None:
        real(*given)
        with open_platform(yard_file) as platform:
            platform.keys.create("acme")

    with open_platform(yard_file) as platform:
        platform.keys.create("acme")
    with monkeypatch.context() as patch:
        patch.setattr(copying, "copy_records", write_first)
        said = call("copy", yard_file, tmp_path / "copy.db", status=1).output
    assert "was written to meanwhile" in said
    assert "copy again" in said
    with pytest.raises(StoreError, match="copy that was not completed"):
        open_platform(tmp_path / "copy.db")
    call("copy", yard_file, tmp_path / "again.db")
