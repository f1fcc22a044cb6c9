"""Copies, restores and backups whose process is killed leave nothing that opens as if it were whole, or stays."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from modelyard import disk, open_platform
from modelyard.cli import main
from modelyard.errors import ModelyardError, StoreCorrupt
from modelyard.parts import copying
from modelyard.parts.backups import sums
from modelyard.parts.postgres.store import has_store
from modelyard.stores.history import UNFINISHED

CALLS = 3
KILLED = """
import os, signal, sys
from importlib import import_module
from modelyard.cli import main
module, name, how, *words = sys.argv[1:]
module = import_module(module)
real = getattr(module, name)

def killed(*given, **named):
    if how == "after":
        real(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, name, killed)
main(words)
"""
COPYING, BACKUP = "modelyard.parts.copying", "modelyard.platform.operations.files"
SUMS = "modelyard.parts.backups.sums"


def kill(module: str, name: str, how: str, *words: object) -> None:
    """Run a command in a process that is killed before or after it calls a function."""
    argv = [sys.executable, "-c", KILLED, module, name, how, *map(str, words)]
    ended = subprocess.run(argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def call(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of three rows of the ledger and a file, and its backup."""
    folder = tmp_path_factory.mktemp("made")
    with open_platform(folder / "yard.db") as platform:
        for _ in range(CALLS):
            platform.chat.complete(model="echo", messages="hi")
        platform.compat.files.create("a.jsonl", [b"{}\n"], purpose="batch")
    call("backup", "--store", folder / "yard.db", folder / "kept.db")
    return folder


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "from")
    return tmp_path / "from" / "yard.db"


def requests(store: object) -> int:
    with open_platform(str(store), artifacts="memory://") as platform:
        return sum(one.requests for one in platform.usage.total())


def refuse_to_open(store: object) -> None:
    with pytest.raises(StoreCorrupt, match="a copy that was not completed"):
        open_platform(str(store), artifacts="memory://")


# ---- copies and restores ---------------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.parametrize("into", ["file", "database"])
@pytest.mark.parametrize(("name", "how"), [("_mark", "before"), ("_mark", "after"), ("_write", "before")])
def test_a_copy_that_is_killed_does_not_open_and_continues(
    source: Path, tmp_path: Path, request: pytest.FixtureRequest, name: str, how: str, into: str
) -> None:
    target = tmp_path / "new.db" if into == "file" else request.getfixturevalue("yard_address")
    kill(COPYING, name, how, "copy", source, target)
    refuse_to_open(target)
    call("copy", source, target)
    assert requests(target) == CALLS


@pytest.mark.crash
def test_a_copy_that_is_killed_before_it_has_a_store_leaves_none(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    kill(COPYING, "move_new", "before", "copy", source, target)
    assert not target.exists()
    call("copy", source, target)
    assert requests(target) == CALLS
    assert not list(tmp_path.glob(".*"))


@pytest.mark.crash
@pytest.mark.parametrize(("name", "how"), [("_mark", "before"), ("_mark", "after")])
def test_a_restore_to_a_database_that_is_killed_does_not_open(
    source: Path, yard_address: str, tmp_path: Path, name: str, how: str
) -> None:
    words = ("restore", source.with_name("kept.db"), yard_address, "--artifacts", tmp_path / "files")
    kill(COPYING, name, how, *words)
    refuse_to_open(yard_address)
    again = CliRunner().invoke(main, [*map(str, words[:-1]), str(tmp_path / "other")])
    assert again.exit_code == 1
    assert "a copy that was not completed" in again.output
    assert "after `modelyard restore`, drop it, make it again and restore again" in again.output


@pytest.mark.crash
def test_after_a_restore_to_a_file_that_is_killed_what_is_to_be_removed_is_named(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to.db"
    words = ("restore", source.with_name("kept.db"), target)
    kill("modelyard.parts.backups.restoring", "to_file", "before", *words)
    for _ in range(2):
        again = CliRunner().invoke(main, [*map(str, words)])
        assert again.exit_code == 1
        left = re.search(r"if none runs, remove (\S+) with all that it has, and restore again", again.output)
        assert left, again.output
        shutil.rmtree(left[1])
    call(*words)
    assert requests(target) == CALLS


def opens_whole_or_not(store: object) -> bool:
    try:
        return requests(store) == CALLS
    except ModelyardError as fault:
        return "a copy that was not completed" in str(fault)


@pytest.mark.slow
def test_at_no_moment_of_a_copy_is_there_a_file_that_opens_with_less(source: Path, tmp_path: Path) -> None:
    """What a kill leaves is what is on the disk at that moment: all that differ are kept, and opened afterwards."""
    target, seen = tmp_path / "to" / "new.db", list[Path]()
    target.parent.mkdir()
    last: list[Any] = []

    def look(*_: object) -> None:
        there = [path for path in (target, Path(f"{target}-wal")) if path.exists()]
        now = [(path.name, stat.st_size, stat.st_mtime_ns) for path in there for stat in [path.stat()]]
        if there and now != last:
            last[:] = now
            seen.append(tmp_path / f"{len(seen)}.db")
            for path in there:
                shutil.copyfile(path, f"{seen[-1]}{path.name.removeprefix(target.name)}")

    sys.setprofile(look)
    try:
        call("copy", source, target)
    finally:
        sys.setprofile(None)
    assert len(seen) > 5
    assert [store.name for store in seen if not opens_whole_or_not(store)] == []


def test_at_no_moment_of_a_copy_is_there_a_database_that_opens_with_less(
    source: Path, yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill leaves of a database is what others see of it at that moment."""
    moments = list[bool]()
    real = psycopg.Connection.execute

    def execute(self: Any, *given: Any, **named: Any) -> Any:
        look()
        return real(self, *given, **named)

    def look() -> None:
        there = real(watcher, "SELECT to_regclass('modelyard.modelyard_migrations') IS NOT NULL").fetchone()[0]
        if there:
            asked = "SELECT 1 FROM modelyard.modelyard_migrations WHERE name = %s"
            moments.append(bool(real(watcher, asked, (UNFINISHED,)).fetchone()))

    def marked(records: Any, again: bool, tx: Any) -> None:
        look()
        _mark(records, again, tx)
        look()

    _mark = copying._mark
    with psycopg.connect(yard_address, autocommit=True) as watcher:
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        monkeypatch.setattr(copying, "_mark", marked)
        assert not has_store(yard_address)
        call("copy", source, yard_address)
        monkeypatch.undo()
    ended = moments.index(False) if False in moments else len(moments)
    assert ended > 3
    assert not any(moments[ended:])
    assert requests(yard_address) == CALLS


# ---- backups ---------------------------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.parametrize("from_server", [False, True], ids=["file", "database"])
def test_what_killed_backups_leave_is_removed_by_the_next(
    source: Path, tmp_path: Path, request: pytest.FixtureRequest, from_server: bool
) -> None:
    store: object = source
    if from_server:
        call("copy", source, store := request.getfixturevalue("yard_address"))
    files, backups = ("--artifacts", f"{source}-artifacts"), tmp_path / "backups"
    backups.mkdir()
    own = "modelyard.parts.postgres.backup" if from_server else "modelyard.stores.sqlite.connection"
    killed = [
        (own, "move_new"),
        (BACKUP, "file_faults"),
        (BACKUP, "move_new"),
        ("modelyard.parts.backups.sums", "sync"),
    ]
    for day, (module, name) in enumerate(killed[:1] if from_server else killed):
        kill(module, name, "before", "backup", "--store", store, *files, backups / f"day-{day}.db")
        left = [path.name for path in backups.iterdir() if path.name.startswith(".")]
        assert [name.startswith(f".day-{day}.") for name in left] == [True], left
    call("backup", "--store", store, *files, backups / "last.db")
    assert {path.name for path in backups.iterdir() if path.name.startswith(".")} == set()
    assert requests(backups / "last.db") == CALLS
    call("restore", backups / "last.db", "--check")


@pytest.mark.slow
def test_what_a_living_backup_has_is_left_alone(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backup to the same folder begins and ends at each step of one."""
    backups, others = tmp_path / "backups", 0
    backups.mkdir()

    def beside(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            nonlocal others
            with monkeypatch.context() as alone:
                for (module, name), function in reals.items():
                    alone.setattr(module, name, function)
                others += 1
                call("backup", "--store", source, backups / f"other-{others}.db")
            return real(*given, **named)

        return called

    reals = {(disk.tempfile, "mkdtemp"): disk.tempfile.mkdtemp, (disk, "lock"): disk.lock, (sums, "sync"): sums.sync}
    for (module, name), function in reals.items():
        monkeypatch.setattr(module, name, beside(function))
    call("backup", "--store", source, backups / "one.db")
    assert others > 5
    assert not [path.name for path in backups.iterdir() if path.name.startswith(".")]
    for number in ("one", "other-1", f"other-{others}"):
        call("restore", backups / f"{number}.db", "--check")


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
def test_a_backup_that_fails_leaves_no_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    backups = tmp_path / "backups"
    backups.mkdir()
    if there:
        (backups / "one.db-artifacts").mkdir()
    before = [*backups.iterdir()]
    for name in ("file_faults", "move_new"):
        with open_platform(source) as platform, monkeypatch.context() as failing:
            failing.setattr(f"{BACKUP}.{name}", fail)
            with pytest.raises(KeyboardInterrupt):
                platform.backup(backups / "one.db")
        assert [*backups.iterdir()] == before
    with open_platform(source) as platform:
        platform.backup(backups / "one.db")
        assert sorted(path.name for path in backups.iterdir()) == ["one.db", "one.db-artifacts"]
