"""A backup is whole, or says what it lacks; and what was restored is what was backed up, wherever it goes."""

import errno
import json
import os
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from obstore.store import LocalStore

from modelyard import Platform, disk, open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.cli import command_line
from modelyard.clock import system_randomness
from modelyard.compose import open_store
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import ProcessRecord, WorkerRecord
from modelyard.errors import StoreError
from modelyard.part import Part
from modelyard.parts import STANDARD
from modelyard.parts.backups import restoring
from modelyard.parts.objects.store import ObjectArtifacts
from modelyard.parts.postgres.store import has_store
from modelyard.platform.operations import files
from modelyard.stores.sqlite import connection

EXAMPLE = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}


@pytest.fixture
def parts(tmp_path: Path) -> list[Part]:
    return [*STANDARD, _buckets(tmp_path)]


def _buckets(tmp_path: Path) -> Part:
    """Buckets in folders, so that an object store needs no server."""

    def opened(address: str, randomness: Any) -> ObjectArtifacts:
        bucket = tmp_path / "buckets" / address.rpartition("/")[2]
        bucket.mkdir(parents=True, exist_ok=True)
        return ObjectArtifacts(LocalStore(bucket), tmp_path / f"cache-{bucket.name}", randomness=randomness)

    return Part("buckets", artifacts={"bucket": ("bucket://name", opened)})


@pytest.fixture
def call(parts: list[Part]) -> Callable[..., Result]:
    main = command_line(parts)

    def call(*words: object, status: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == status, (result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return call


def fill(platform: Platform) -> None:
    """A model with two checkpoints, jobs with events, a key, and a row of the ledger."""
    model = platform.models.create("bot", project="support", base_model="tabular-mini")
    for rows in (4, 5):
        platform.training.sft(model.id, [EXAMPLE] * rows).wait()
    platform.keys.create("acme", name="desk")
    platform.chat.complete(model="echo", messages="hello")
    platform.models.promote(model, 1)


def contents(store: Any) -> dict[str, list[Any]]:
    """Every record of a store, but for those of what is open."""
    with closing(store):
        return {
            record.table: store.read(lambda snapshot, cls=record.cls: snapshot.scan(cls, None, 10_000))
            for record in RECORDS
            if record.cls not in (WorkerRecord, ProcessRecord)
        }


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a filled yard, which each test copies: to train it takes twenty times as long."""
    folder = tmp_path_factory.mktemp("filled")
    with open_platform(folder / "yard.db") as platform:
        fill(platform)
    return folder


@pytest.fixture
def yard(tmp_path: Path, filled: Path) -> Path:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return tmp_path / "yard.db"


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".part"}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_backup_is_restored_whole_and_never_over_anything(yard: Path, tmp_path: Path, call: Any) -> None:
    copy, back = tmp_path / "copy.db", tmp_path / "back.db"
    call("backup", "--store", yard, copy)
    before = tree(tmp_path)
    assert "is whole" in call("restore", copy, "--check").stdout
    assert tree(tmp_path) == before
    said = call("restore", copy, back).stdout
    assert f"{len(files_in(Path(f'{yard}-artifacts')))} files, each compared" in said
    assert {name: data for name, data in tree(tmp_path).items() if not name.startswith("back.db")} == before
    assert contents(open_store(back)) == contents(open_store(yard))
    assert files_in(Path(f"{back}-artifacts")) == files_in(Path(f"{yard}-artifacts"))
    with open_platform(back) as platform:
        assert platform.chat.complete(model="local/support/bot", messages="ping", temperature=0).text
    assert "exists; nothing is ever replaced" in call("restore", copy, back, status=1).output
    assert "exists" in call("backup", "--store", yard, copy, status=1).output


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_no_log_of_another_file_is_applied_to_what_is_written(yard: Path, tmp_path: Path, call: Any, end: str) -> None:
    """A process that was killed leaves its log, and a person moves the store away without it."""
    copy, back = tmp_path / "copy.db", tmp_path / "back.db"
    call("backup", "--store", yard, copy)
    for place, words in ((back, ("restore", copy, back)), (tmp_path / "b.db", ("backup", "--store", yard, "b.db"))):
        left = Path(f"{place}{end}")
        left.write_bytes(b"of another store")
        said = call(*(tmp_path / word if word == "b.db" else word for word in words), status=1).output
        assert f"{left.name} exists" in said
        assert not place.exists()


def test_a_restore_takes_no_folder_that_has_files(yard: Path, tmp_path: Path, call: Any) -> None:
    """Else the store that is restored would use up the artifacts of the backup."""
    copy, back = tmp_path / "copy.db", tmp_path / "back.db"
    call("backup", "--store", yard, copy)
    said = call("restore", copy, back, "--artifacts", f"{copy}-artifacts", status=1).output
    assert "name an empty one" in said
    assert not back.exists()
    (tmp_path / "empty").mkdir()
    call("restore", copy, back, "--artifacts", tmp_path / "empty")


def test_digests_that_are_missing_or_damaged_are_said(yard: Path, tmp_path: Path, call: Any) -> None:
    copy, sums = tmp_path / "copy.db", tmp_path / "copy.db.sha256"
    call("backup", "--store", yard, copy)
    sums.write_bytes(sums.read_bytes() + b"\xff\n")
    assert f"{sums} is damaged: it is not UTF-8" in call("restore", copy, "--check", status=1).output
    sums.unlink()
    assert f"there is no {sums} to compare it with" in call("restore", copy, "--check").output
    assert "printable characters only" in call("backup", "--store", yard, tmp_path / "a\nb.db", status=1).output
    assert not [path for path in tmp_path.iterdir() if "\n" in path.name]


def test_tools_of_the_system_check_a_backup(yard: Path, tmp_path: Path, call: Any) -> None:
    program = shutil.which("sha256sum")
    if program is None:
        pytest.skip("sha256sum is not installed")
    call("backup", "--store", yard, tmp_path / "copy.db")
    subprocess.run([program, "--check", "--quiet", "copy.db.sha256"], cwd=tmp_path, check=True)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("summed", [True, False], ids=["digests", "an earlier version's"])
@pytest.mark.parametrize("damage", ["record", "flip", "missing", "no folder", "digests", "foreign"])
def test_a_backup_that_is_not_whole_is_refused_before_anything_is_written(
    yard: Path, tmp_path: Path, call: Any, damage: str, summed: bool
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    copy, folder, sums = kept / "copy.db", kept / "copy.db-artifacts", kept / "copy.db.sha256"
    call("backup", "--store", yard, copy)
    if not summed:
        sums.unlink()
    first = min(folder.iterdir())
    match damage:
        case "record":
            if not summed:
                pytest.skip("a changed value in a record is seen by its digest alone")
            flip(copy)
        case "flip":
            flip(first)
        case "missing":
            first.unlink()
        case "no folder":
            shutil.rmtree(folder)
        case "digests":
            if not summed:
                pytest.skip("there are none")
            sums.write_text("nothing of the kind\n")
        case "foreign":
            copy.write_text("no database" * 1000)
    before = tree(tmp_path)
    for words in (["--check"], [tmp_path / "back.db"]):
        refused = call("restore", copy, *words, status=1)
        assert "Error: " in refused.output
        assert tree(tmp_path) == before


def test_a_backup_needs_a_folder_that_is_there_and_makes_none(yard: Path, tmp_path: Path, call: Any) -> None:
    refused = call("backup", "--store", yard, tmp_path / "no" / "such" / "copy.db", status=2)
    assert f"there is no folder {tmp_path / 'no' / 'such'}" in refused.output
    assert not (tmp_path / "no").exists()
    call("backup", "--store", yard, tmp_path / "copy.db")
    refused = call("restore", tmp_path / "copy.db", tmp_path / "no" / "back.db", status=1)
    assert "there is no folder" in refused.output
    assert not (tmp_path / "no").exists()


def test_a_lost_file_is_said_by_backup_and_doctor(yard: Path, tmp_path: Path, call: Any) -> None:
    assert "0 records lack their files" in call("doctor", "--store", yard, "--files").output
    folder = Path(f"{yard}-artifacts")
    lost, changed = sorted(folder.iterdir())[:2]
    lost.unlink()
    flip(changed)
    found = json.loads(call("doctor", "--store", yard, "--files", "--json", status=1).stdout)["files"]
    assert {one["artifact"]: one["problem"].partition(";")[0] for one in found} == {
        lost.name: f"artifact {lost.name!r} is gone",
        changed.name: f"artifact {changed.name!r} was altered: its bytes do not match its digest",
    }
    assert lost.name in call("doctor", "--store", yard, "--files", status=1).output
    said = call("backup", "--store", yard, tmp_path / "copy.db", status=1)
    assert "1 records have lost their files in the store itself" in said.output
    assert (tmp_path / "copy.db").exists()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_no_record_of_a_backup_names_a_file_that_it_lacks_whatever_goes_meanwhile(
    yard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, moment: str
) -> None:
    """A model with its file comes and one goes around the copy of the records, and again around the next one."""
    copies = []
    with open_platform(yard) as platform:
        store = platform._runtime.store
        real = store.backup

        def change() -> None:
            for model in [model for model in platform.models.list() if model.name.startswith("brief")]:
                platform.models.delete(model.id)
            if len(copies) < times:
                model = platform.models.create(f"brief-{len(copies)}", base_model="tabular-mini")
                platform.training.sft(model.id, [EXAMPLE]).wait()

        def backup(path: str) -> None:
            copies.append(path)
            if moment == "before":
                change()
            real(path)
            change()

        monkeypatch.setattr(store, "backup", backup)
        change()
        assert [*platform.backup(tmp_path / "copy.db")] == []
    assert len(copies) > 1 or (moment, times) == ("before", 1), (
        "a copy whose records lacked their files was taken again"
    )
    with open_platform(tmp_path / "copy.db") as copy:
        assert copy.health.check_files() == []


# ---- a database and a bucket -----------------------------------------------------------------------------------------


def test_a_database_and_its_bucket_are_backed_up_and_restored_by_a_command_each(
    yard: Path, postgres: Any, tmp_path: Path, call: Any, parts: list[Part]
) -> None:
    one, two = postgres.create_database(), postgres.create_database()
    try:
        _drill(one, two, tmp_path, call, parts)
    finally:
        for address in (one, two):
            postgres.drop_database(address)


def _drill(one: str, two: str, tmp_path: Path, call: Any, parts: list[Part]) -> None:
    with open_platform(one, artifacts=_bucket(parts, "one")) as platform:
        fill(platform)
    copy = tmp_path / "monday.db"
    call("backup", "--store", one, "--artifacts", "bucket://one", copy)
    assert "is whole" in call("restore", copy, "--check").stdout
    call("restore", copy, two, status=2)
    said = call("restore", copy, two, "--artifacts", "bucket://two").stdout
    assert f"{len(files_in(tmp_path / 'buckets' / 'one'))} files, each compared with the backup" in said
    assert contents(open_store(one)) == contents(open_store(two))
    assert files_in(tmp_path / "buckets" / "one") == files_in(tmp_path / "buckets" / "two")
    back = tmp_path / "back.db"
    call("restore", copy, back)
    assert contents(open_store(one)) == contents(open_store(back))
    answers = {
        str(place): _answer(place, kept)
        for place, kept in ((one, _bucket(parts, "one")), (two, _bucket(parts, "two")), (back, None))
    }
    assert len({*answers.values()}) == 1
    again = call("restore", copy, two, "--artifacts", "bucket://three", status=1)
    assert "name an empty database" in again.output
    found = json.loads(_doctor(call, two, "bucket://two").stdout)
    assert found["files"] == []
    lost, changed = sorted((tmp_path / "buckets" / "two").iterdir())[:2]
    lost.unlink()
    flip(changed)
    for cached in tmp_path.glob("cache-two/*"):
        cached.unlink()
    found = json.loads(_doctor(call, two, "bucket://two").stdout)
    assert {one["artifact"] for one in found["files"]} == {lost.name, changed.name}


def _doctor(call: Any, store: str, artifacts: str) -> Result:
    words = ["doctor", "--store", store, "--artifacts", artifacts, "--files", "--json"]
    try:
        return call(*words)
    except AssertionError:
        return call(*words, status=1)


def _bucket(parts: list[Part], name: str) -> Any:
    return parts[-1].artifacts["bucket"][1](f"bucket://{name}", system_randomness())


def _answer(place: Any, artifacts: Any) -> str:
    with open_platform(place, artifacts=artifacts) as platform:
        return platform.chat.complete(model="local/support/bot", messages="ping", temperature=0, max_tokens=8).text


def test_an_empty_database_is_no_store_and_stays_empty(yard_address: str, tmp_path: Path, call: Any) -> None:
    for words in (
        ["backup", "--store", yard_address, "--artifacts", tmp_path / "files", tmp_path / "copy.db"],
        ["usage", "--store", yard_address],
        ["keys", "list", "--store", yard_address],
        ["doctor", "--store", yard_address],
        ["copy", yard_address, tmp_path / "copy.db"],
    ):
        assert "has no store yet" in call(*words, status=1).output
    assert "has no tables yet" in call("migrate", "--store", yard_address).output
    assert not has_store(yard_address)
    assert [*tmp_path.iterdir()] == []


def test_files_of_a_restored_database_are_not_kept_in_memory(
    yard: Path, yard_address: str, tmp_path: Path, call: Any
) -> None:
    call("backup", "--store", yard, tmp_path / "copy.db")
    refused = call("restore", tmp_path / "copy.db", yard_address, "--artifacts", "memory://", status=2)
    assert "would be gone" in refused.output


# ---- what refuses, fails and runs at once ----------------------------------------------------------------------------


@pytest.fixture
def copy(yard: Path, tmp_path: Path, call: Any) -> Path:
    (tmp_path / "kept").mkdir()
    call("backup", "--store", yard, tmp_path / "kept" / "copy.db")
    return tmp_path / "kept" / "copy.db"


def everything(folder: Path) -> list[tuple[str, bytes | None]]:
    return [(str(path), path.read_bytes() if path.is_file() else None) for path in sorted(folder.rglob("*"))]


def unwanted(folder: Path, case: str) -> list[object]:
    """What a restore must refuse as it is asked: a target, and options."""
    target, full = folder / "to" / "back.db", folder / "to" / "full"
    target.parent.mkdir()
    match case:
        case "no folder":
            return [folder / "none" / "back.db"]
        case "target":
            target.touch()
        case "log":
            Path(f"{target}-wal").touch()
        case "artifacts":
            Path(f"{target}-artifacts").mkdir()
            Path(f"{target}-artifacts", "x").touch()
        case "full":
            full.mkdir()
            (full / "x").touch()
            return [target, "--artifacts", full]
        case "file":
            full.touch()
            return [target, "--artifacts", full]
        case "no parent":
            return [target, "--artifacts", folder / "none" / "files"]
        case "scheme":
            return [target, "--artifacts", "s4://bucket/x"]
        case "memory":
            return [target, "--artifacts", "memory://"]
        case "bucket":
            bucket = folder / "buckets" / "full"
            bucket.mkdir(parents=True)
            (bucket / ("0" * 32)).touch()
            return [target, "--artifacts", "bucket://full"]
        case "another restore":
            (target.parent / ".back.db.restore").mkdir()
        case "another's files":
            full.mkdir()
            (full / ".restore").touch()
            return [target, "--artifacts", full]
    return [target]


CASES = ["no folder", "target", "log", "artifacts", "full", "file", "no parent", "scheme", "memory", "bucket"]
CASES += ["another restore", "another's files"]


@pytest.mark.parametrize("case", CASES)
def test_what_a_restore_refuses_it_refuses_before_it_reads_or_writes(
    copy: Path, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the backup was read")

    words = unwanted(tmp_path, case)
    monkeypatch.setattr(restoring, "read_sums", read)
    monkeypatch.setattr(restoring, "BackupFile", read)
    (tmp_path / "cache-full").mkdir()  # that of the bucket
    before = everything(tmp_path)
    main = command_line([*STANDARD, _buckets(tmp_path)])
    refused = CliRunner().invoke(main, ["restore", str(copy), *map(str, words)])
    assert refused.exit_code in (1, 2), refused.output
    assert isinstance(refused.exception, SystemExit)
    assert "Error: " in refused.output
    assert everything(tmp_path) == before


def test_a_database_that_has_records_is_refused_before_the_backup_is_read(
    copy: Path, yard_address: str, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_platform(yard_address, artifacts=tmp_path / "theirs") as platform:
        platform.keys.create("acme")
    monkeypatch.setattr(restoring, "read_sums", lambda file: pytest.fail("the backup was read"))
    before = everything(tmp_path)
    said = call("restore", copy, yard_address, "--artifacts", tmp_path / "new", status=1).output
    assert "name an empty database" in said
    assert everything(tmp_path) == before


@pytest.mark.parametrize("end", [OSError(28, "no room"), KeyboardInterrupt(), StoreError("no")], ids=repr)
@pytest.mark.parametrize("where", ["default", "new", "empty", "bucket"])
@pytest.mark.parametrize("step", ["artifact", "copy", "name"])
def test_a_restore_that_fails_leaves_nothing(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, where: str, end: BaseException
) -> None:
    target, files = tmp_path / "to" / "back.db", tmp_path / "to" / "files"
    target.parent.mkdir()
    if where == "empty":
        files.mkdir()
    words = {"new": ["--artifacts", files], "empty": ["--artifacts", files], "bucket": ["--artifacts", "bucket://b"]}
    main = command_line([*STANDARD, _buckets(tmp_path)])
    for made in ("buckets/b", "cache-b"):
        (tmp_path / made).mkdir(parents=True)

    def fail(*_: object, **__: object) -> None:
        raise end

    match step:
        case "artifact":
            for kind in (FolderArtifacts, ObjectArtifacts):
                put, done = kind.put_as, list[str]()

                def put_as(self: Any, name: str, *rest: Any, put: Any = put, done: list[str] = done) -> str:
                    done.append(name)
                    return fail() if len(done) == 2 else put(self, name, *rest)

                monkeypatch.setattr(kind, "put_as", put_as)
        case "copy":
            monkeypatch.setattr(restoring.shutil, "copyfile", fail)
        case "name":
            monkeypatch.setattr(restoring, "move_new", fail)
    before = everything(tmp_path)
    failed = CliRunner().invoke(main, ["restore", str(copy), str(target), *map(str, words.get(where, []))])
    assert failed.exit_code == 1
    assert everything(tmp_path) == before
    monkeypatch.undo()
    done = CliRunner().invoke(main, ["restore", str(copy), str(target), *map(str, words.get(where, []))])
    assert done.exit_code == 0, done.output


def test_a_target_that_is_made_meanwhile_stays(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, real = tmp_path / "back.db", restoring.move_new

    def move(path: str, to: str) -> None:
        with open_platform(target) as theirs:
            theirs.keys.create("theirs")
        real(path, to)

    monkeypatch.setattr(restoring, "move_new", move)
    failed = CliRunner().invoke(command_line(STANDARD), ["restore", str(copy), str(target)])
    assert "was made meanwhile" in failed.output
    with open_platform(target) as theirs:
        assert [key.entity for key in theirs.keys.list()] == ["theirs"]


@pytest.mark.parametrize("backs_up", ["file", "platform"])
def test_a_backup_never_replaces_a_file_that_is_made_meanwhile(
    yard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backs_up: str
) -> None:
    target, module = tmp_path / "copy.db", connection if backs_up == "file" else files
    real = module.move_new

    def move(path: str, to: str) -> None:
        target.write_bytes(b"theirs")
        real(path, to)

    monkeypatch.setattr(module, "move_new", move)
    with open_platform(yard) as platform, pytest.raises(FileExistsError):
        (platform._runtime.store if backs_up == "file" else platform).backup(str(target))
    assert target.read_bytes() == b"theirs"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".copy")]


def test_a_disk_without_links_gets_a_new_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / "a").write_bytes(b"a")
    disk.move_new(str(tmp_path / "a"), str(tmp_path / "b"))
    assert everything(tmp_path) == [(str(tmp_path / "b"), b"a")]
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        disk.move_new(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"a"


@pytest.mark.slow
@pytest.mark.parametrize("into", ["file", "database", "other files"])
def test_of_restores_side_by_side_one_wins(
    copy: Path, tmp_path: Path, into: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked at the place before either writes to it, wherever they can."""
    address = request.getfixturevalue("yard_address") if into != "file" else ""
    target = str(tmp_path / "back.db") if into == "file" else address
    kept = [str(tmp_path / ("files-1" if into != "other files" or n == 0 else "files-2")) for n in (0, 1)]
    both, real = threading.Barrier(2), restoring.examined
    refused = threading.Event()

    @contextmanager
    def examined(*given: Any) -> Any:
        with real(*given) as found:
            if into == "other files":
                both.wait(60)
            else:
                assert refused.wait(60)
            yield found

    monkeypatch.setattr(restoring, "examined", examined)
    main, results = command_line(STANDARD), list[Any]()

    def restore(place: str) -> None:
        try:
            main.main(["restore", str(copy), target, "--artifacts", place], standalone_mode=False)
            results.append("done")
        except Exception as error:
            results.append(str(getattr(error, "message", error)))
        finally:
            refused.set()

    threads = [threading.Thread(target=restore, args=(place,)) for place in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("done") == 1, results
    (said,) = [one for one in results if one != "done"]
    assert "another" in said or "records already" in said
    winner = next(place for place in kept if Path(place).is_dir() and files_in(Path(place)))
    assert files_in(Path(winner)) == files_in(Path(f"{copy}-artifacts"))
    assert {place for place in kept if Path(place).exists()} == {winner}
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    with open_platform(target, artifacts=winner) as platform:
        assert platform.health.check_files() == []
        assert [key.entity for key in platform.keys.list()] == ["acme"]


def test_a_backup_of_an_earlier_version_is_read_and_restored_and_stays_one(tmp_path: Path, call: Any) -> None:
    old = tmp_path / "kept" / "yard.db"
    with zipfile.ZipFile(Path(__file__).parents[2] / "stores" / "files" / "yard-0.1.0.zip") as kept:
        kept.extractall(old.parent)
    before = everything(old.parent)
    assert "is whole" in call("restore", old, "--check").output
    call("restore", old, tmp_path / "back.db")
    assert everything(old.parent) == before
    with open_platform(tmp_path / "back.db") as platform:
        assert platform.health.check_files() == []
        answer = platform.chat.complete(model="local/desk/support:prod", messages="question 1", temperature=0)
        assert answer.text.startswith("answer")
    full = shutil.disk_usage(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: full._replace(free=10))
        assert "make room" in call("restore", old, "--check", status=1).output


def test_a_check_and_a_restore_take_no_room_of_the_temporary_folder(
    copy: Path, yard_address: str, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_room)
    call("restore", copy, "--check")
    call("restore", copy, tmp_path / "back.db")
    call("restore", copy, yard_address, "--artifacts", tmp_path / "files")


def test_a_check_reads_a_backup_that_nobody_may_write(copy: Path, call: Any) -> None:
    before = [(path, path.stat().st_mtime_ns) for path in sorted(copy.parent.rglob("*"))]
    assert "is whole" in call("restore", copy, "--check").output
    assert [(path, path.stat().st_mtime_ns) for path in sorted(copy.parent.rglob("*"))] == before
