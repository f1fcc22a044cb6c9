"""`modelyard doctor` and `modelyard sweep` while the artifacts cannot be read, or files have no record."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from modelyard import Example, Message, Role, open_platform
from modelyard.artifacts import FolderArtifacts
from modelyard.cli import main
from modelyard.clock import SystemClock
from modelyard.errors import ArtifactsUnavailable, StorageFull, StoreError

ROWS = [Example((Message(Role.USER, "q"), Message(Role.ASSISTANT, "a")))] * 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with open_platform(tmp_path / "yard.db") as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model.id, ROWS).wait()
    return tmp_path / "yard.db"


def asked(store: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--store", str(store)])


@pytest.mark.parametrize("fault", [ArtifactsUnavailable, StorageFull, StoreError])
def test_the_doctor_says_what_it_found_though_the_files_cannot_be_read(
    store: Path, fault: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise fault("the bucket cannot be reached")

    monkeypatch.setattr(FolderArtifacts, "open", away)
    shown = asked(store, "doctor", "--files")
    assert isinstance(shown.exception, SystemExit), shown.exception
    assert shown.exit_code == 1
    assert "the files could not be read: the bucket cannot be reached" in shown.output
    assert "0 records lack" not in shown.output
    assert {"api", "store", "artifacts", "worker", "queue"} <= {
        line.split(" ")[0] for line in shown.output.splitlines()
    }
    told = json.loads(asked(store, "doctor", "--files", "--json").output)
    assert (told["files"], told["files_unread"]) == ([], "the bucket cannot be reached")
    assert "files" not in json.loads(asked(store, "doctor", "--json").output)


def test_a_doctor_that_has_read_all_files_says_so(store: Path) -> None:
    assert "0 records lack their files" in asked(store, "doctor", "--files").output
    assert json.loads(asked(store, "doctor", "--files", "--json").output)["files_unread"] is None


def test_a_sweep_says_first_how_long_it_may_take(store: Path) -> None:
    swept = asked(store, "sweep", "--grace", "7", "--json")
    assert "again after 30 seconds" in swept.stderr, "it waits for a lease at least"
    assert json.loads(swept.stdout)["missing"] == []


def test_a_sweep_shows_records_that_lack_their_files_as_a_table_and_fails(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds, woken=None: slept.append(seconds))
    artifacts = FolderArtifacts(Path(f"{store}-artifacts"))
    before = {*artifacts.names()}
    with open_platform(store) as platform:
        lost = platform.compat.files.create("a.jsonl", [b"{}\n"], purpose="batch")
    [artifact] = {*artifacts.names()} - before
    artifacts.remove(artifact)
    swept = asked(store, "sweep", "--grace", "0")
    assert swept.exit_code == 1
    assert "Missing(" not in swept.stdout
    lines = swept.stdout.splitlines()
    assert ["missing", "1"] in [line.split() for line in lines]
    assert ["kind", "id", "entity", "artifact"] in [line.split() for line in lines]
    assert ["StoredFile", lost.id, "local", artifact] in [line.split() for line in lines]
    told = asked(store, "sweep", "--grace", "0", "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["missing"] == [
        {"kind": "StoredFile", "id": lost.id, "entity": "local", "artifact": artifact}
    ]
    assert slept == [30, 30]
