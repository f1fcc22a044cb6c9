"""A command that made a store on a full disk, and failed, leaves none that can be taken for a store."""

import resource
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from click.testing import CliRunner, Result

from disk_room import files_of
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.compose import open_store
from modelyard.errors import StorageFull
from modelyard.parts import copying
from modelyard.protocols import Store
from modelyard.quickstart import run
from modelyard.stores.sqlite import nothing_half_made

pytestmark = [pytest.mark.parts, pytest.mark.slow]

MAKERS = (
    ("keys", "create", "--entity", "acme", "--store", "new.db"),
    ("webhooks", "add", "https://example.com/x", "--entity", "acme", "--store", "new.db"),
    ("serve", "--port", "0", "--store", "new.db"),
    ("copy", "old.db", "new.db"),
    ("train", "sft", "d/new", "data.jsonl", "--base-model", "tabular-mini", "--store", "new.db"),
    ("quickstart", "."),
    ("restore", "backup.db", "new.db"),
)
ROW = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text(ROW * 3)
    with open_platform("old.db") as platform:
        platform.keys.create("acme")
        platform.backup("backup.db")
    return tmp_path


@pytest.fixture
def bare(tmp_path: Path) -> int:
    """The size of the log of a store that has no record."""
    with closing(open_store(tmp_path / "bare.db")):
        return (tmp_path / "bare.db-wal").stat().st_size


def refused(words: tuple[str, ...], size: int) -> Result:
    with files_of(size):
        ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 1, ended.output
    assert ended.output.strip().splitlines()[-1].startswith("Error: "), ended.output
    return ended


def is_taken_for_a_store(file: str) -> bool:
    return CliRunner().invoke(main, ["models", "--store", file]).exit_code == 0


@pytest.mark.parametrize("words", MAKERS, ids=lambda words: words[0])
def test_a_store_that_has_no_room_for_its_tables_is_not_left_behind(place: Path, words: tuple[str, ...]) -> None:
    refused(words, 40_000)
    assert sorted(path.name for path in place.glob("[ny]*.db*")) == []


def test_a_store_that_has_no_room_for_its_first_record_is_none(place: Path, bare: int) -> None:
    refused(MAKERS[0], bare)
    assert not is_taken_for_a_store("new.db")
    assert CliRunner().invoke(main, MAKERS[0]).exit_code == 0, "it can be done again"


def test_a_copy_that_has_no_room_for_its_first_record_is_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store is made with a log of its own, so there is room for that."""
    with monkeypatch.context() as patch:
        patch.setattr(copying, "_mark", run_out("modelyard.parts.copying:_mark"))
        assert "no room" in refused(MAKERS[3], resource.RLIM_INFINITY).output
    assert not (place / "new.db").exists()
    assert CliRunner().invoke(main, MAKERS[3]).exit_code == 0, "it can be done again"


def test_a_program_leaves_none_either(place: Path) -> None:
    with files_of(40_000), pytest.raises(StorageFull):
        run(place / "first", lambda _: None)
    assert list((place / "first").iterdir()) == []


def run_out(path: str) -> Callable[..., None]:
    """Replace a function by one that finds no room at its end."""
    undisturbed = resolve_name(path)

    def without_room(*given: Any) -> None:
        undisturbed(*given)
        raise StorageFull("no room")

    return without_room


LAST_OF_A_BACKUP = (
    "modelyard.artifacts.folder:FolderArtifacts.backup",
    "modelyard.stores.sqlite.store:SqliteStore.backup",
    "modelyard.parts.backups.commands:write_sums",
)


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("last", LAST_OF_A_BACKUP)
def test_a_backup_without_room_leaves_nothing(
    place: Path, last: str, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_platform("old.db") as platform:
        platform.compat.files.create("a.txt", b"a", purpose="user_data")
    if earlier:
        (place / "copy.db-artifacts").mkdir()
    there = {*place.rglob("*")}
    words = ("backup", "--store", "old.db", "copy.db")
    with monkeypatch.context() as patch:
        patch.setattr(last.replace(":", "."), run_out(last))
        assert "no room" in refused(words, resource.RLIM_INFINITY).output
    left = {path.relative_to(place) for path in {*place.rglob("*")} - there}
    assert {path.parts[0] for path in left} <= ({"copy.db-artifacts"} if earlier else set())
    assert CliRunner().invoke(main, words).exit_code == 0


# ---- what is not removed ---------------------------------------------------------------------------------------------


def test_a_store_that_was_there_stays(place: Path) -> None:
    with closing(open_store("new.db")):
        pass
    with pytest.raises(StorageFull), nothing_half_made("new.db"):
        raise StorageFull("no room")
    assert is_taken_for_a_store("new.db")


def fail(kept: Platform | Store) -> None:
    if isinstance(kept, Platform):
        kept.keys.create("acme")
        kept.close()
    raise StorageFull("no room")


def test_a_store_with_a_record_stays(place: Path) -> None:
    with pytest.raises(StorageFull), nothing_half_made("new.db"):
        fail(open_platform("new.db"))
    assert is_taken_for_a_store("new.db")


def test_a_store_that_somebody_has_open_stays(place: Path) -> None:
    with ExitStack() as held:
        with pytest.raises(StorageFull), nothing_half_made("new.db"):
            fail(held.enter_context(closing(open_store("new.db"))))
        assert Path("new.db").exists()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("keys", "create", "--entity", "a/b", "--store", "new.db"),
        ("webhooks", "add", "ftp://example.com", "--entity", "acme", "--store", "new.db"),
        ("train", "sft", "d/new", "data.jsonl", "--base-model", "none", "--store", "new.db"),
        ("serve", "--host", "192.0.2.1", "--store", "new.db"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_is_refused_leaves_nothing(place: Path, words: tuple[str, ...]) -> None:
    refused(words, resource.RLIM_INFINITY)
    assert sorted(path.name for path in place.glob("new.db*")) == []


def test_a_folder_that_was_there_before_a_refusal_stays(place: Path) -> None:
    (place / "new.db-artifacts").mkdir()
    refused(("keys", "create", "--entity", "a/b", "--store", "new.db"), resource.RLIM_INFINITY)
    assert [path.name for path in place.glob("new.db*")] == ["new.db-artifacts"]
