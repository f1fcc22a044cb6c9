"""Every command that takes a place understands it or refuses it by name, and makes no store or folder by mistake."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from each import each_case
from modelyard import open_platform
from modelyard.artifacts.address import open_artifacts
from modelyard.cli import main
from modelyard.cli.terminal import PlaceType, StoreType
from modelyard.clock import system_randomness
from modelyard.errors import InvalidInput

ADDRESSES = [
    "s3://bucket/monday",
    "S3://bucket/monday",
    "s3:/bucket/monday",
    "gs://bucket/monday",
    "memory://",
    "memory://yard",
    ":memory:",
    "file:///nowhere/yard.db",
    "sqlite:///yard.db",
    "mysql://host/yard",
    "POSTGRESQL://host/yard",
    "postgresql:/host/yard",
    "https://host/yard.db",
]
"""What is an address of something else, or was meant as one."""
NOWHERE = ["localhost:5432/yard", "127.0.0.1/yard", "bucket/monday", "no/such/folder/yard.db"]
"""Addresses without their scheme, which are paths of files in folders that are not there."""


def commands(group: click.Command, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(group, click.Group):
        yield name, group
        return
    context = click.Context(group)
    for child in group.list_commands(context):
        command = group.get_command(context, child)
        assert command is not None
        yield from commands(command, (*name, child))


WITH_STORE = {
    name: command
    for name, command in commands(main)
    if any(isinstance(option.type, StoreType) and isinstance(option, click.Option) for option in command.params)
}
MAKES_ONE = {("serve",), ("keys", "create"), ("train", "import"), ("webhooks", "add"), ("base-models", "add")}
"""Commands that make the store that they are given, if it is not there."""
READS_FIRST = {("train", "import"), ("base-models", "add")}
"""Commands that read their data before they open a store."""
VALUES = {
    "backup": ["copy.db"],
    "work": ["--concurrency", "1"],
    "keep": ["events", "30"],
    "budget set": ["acme", "1"],
    "runs write-log": ["1", "log.json"],
}


def words_of(name: tuple[str, ...], folder: Path) -> list[str]:
    """The arguments that a command requires, so that it comes to its store."""
    given = VALUES.get(" ".join(name))
    if given is not None:
        return given
    (folder / "data.jsonl").write_text("{}\n")
    words = []
    for parameter in WITH_STORE[name].params:
        if not parameter.required:
            continue
        choices = getattr(parameter.type, "choices", None)
        is_path = isinstance(parameter.type, click.Path)
        is_folder = is_path and not parameter.type.file_okay
        value = choices[0] if choices else str(folder) if is_folder else str(folder / "data.jsonl") if is_path else "1"
        words += [value] if isinstance(parameter, click.Argument) else [parameter.opts[0], value]
    return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def made(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in sorted((folder / "here").rglob("*"))]


def test_commands_with_a_store_are_found() -> None:
    names = {" ".join(name) for name in WITH_STORE}
    assert {"backup", "migrate", "doctor", "sweep", "keep", "serve", "work", "jobs list", "webhooks add"} <= names


@pytest.mark.slow
@each_case("name", WITH_STORE, ids=" ".join)
def test_no_command_takes_another_address_for_a_file(name: tuple[str, ...], folder: Path) -> None:
    words = words_of(name, folder)
    for place in ADDRESSES:
        refused = CliRunner().invoke(main, [*name, "--store", place, *words])
        assert refused.exit_code == 2, (place, refused.output, refused.exception)
        assert place.partition("/")[0] in refused.output
        assert "postgresql://" in refused.output, "the message says which addresses there are"
        assert made(folder) == []


@each_case("name", WITH_STORE, ids=" ".join)
def test_no_command_makes_a_folder_for_a_store(name: tuple[str, ...], folder: Path) -> None:
    words = words_of(name, folder)
    for place in NOWHERE:
        refused = CliRunner().invoke(main, [*name, "--store", place, *words])
        assert refused.exit_code in (1, 2), (place, refused.output, refused.exception)
        assert isinstance(refused.exception, SystemExit)
        assert name in READS_FIRST or str(Path(place).parent) in refused.output
        assert made(folder) == []


@each_case("name", [name for name in WITH_STORE if name not in MAKES_ONE], ids=" ".join)
def test_no_other_command_makes_a_store(name: tuple[str, ...], folder: Path) -> None:
    words = words_of(name, folder)
    for place, size in (("missing.db", None), ("empty.db", 0)):
        if size is not None:
            Path(place).touch()
        before = made(folder)
        given = CliRunner().invoke(main, [*name, "--store", place, *words])
        assert given.exit_code == 1, (given.output, given.exception)
        assert f"there is no store at {place}" in given.output
        assert made(folder) == before
        assert size is None or Path(place).stat().st_size == 0
    Path("folder.db").mkdir(exist_ok=True)
    given = CliRunner().invoke(main, [*name, "--store", "folder.db", *words])
    assert given.exit_code == 2
    assert "is a directory" in given.output
    assert [*Path("folder.db").iterdir()] == []


WRITES = [
    ("backup",),
    ("keep", "events", "90", "--export"),
    ("runs", "report", "quiz"),
    ("evaluate", "quiz", "echo", "--save"),
    ("quickstart",),
]


@pytest.mark.parametrize("words", WRITES, ids=" ".join)
def test_no_command_writes_to_what_is_an_address_or_in_no_folder(words: tuple[str, ...], folder: Path) -> None:
    for place in [*ADDRESSES, *NOWHERE]:
        refused = CliRunner().invoke(main, [*words, place])
        assert refused.exit_code == 2, (place, refused.output, refused.exception)
        named = place.partition("/")[0] if place in ADDRESSES else "there is no folder"
        assert named in refused.output
        assert made(folder) == []


def test_every_option_of_a_path_says_what_it_is() -> None:
    """It must exist, or it is a place that is checked."""
    for name, command in commands(main):
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                assert parameter.type.exists or isinstance(parameter.type, StoreType | PlaceType), name


@pytest.mark.parametrize("place", [*ADDRESSES, *NOWHERE])
def test_backup_restore_and_copy_take_no_address_for_a_file(place: str, folder: Path) -> None:
    store, good = folder / "yard.db", folder / "good.db"
    open_platform(store).close()
    assert CliRunner().invoke(main, ["backup", "--store", str(store), str(good)]).exit_code == 0
    for words in (
        ["backup", "--store", str(store), place],
        ["restore", place, "back.db"],
        ["restore", place, "--check"],
        ["restore", str(good), place],
        ["copy", str(store), place],
        ["copy", place, str(folder / "copy.db")],
    ):
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code in (1, 2), (words, refused.output, refused.exception)
        assert isinstance(refused.exception, SystemExit)
        named = place.partition("/")[0] if place in ADDRESSES else str(Path(place).parent)
        assert named in refused.output, words
        assert made(folder) == [], words
    assert not (folder / "copy.db").exists()


@pytest.mark.parametrize(
    "place", ["s3:/bucket/x", "S4://bucket/x", ":memory:", "postgresql://host/yard", "file://host/x"]
)
def test_artifacts_are_in_no_folder_that_is_meant_as_an_address(place: str, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="must be a folder"):
        open_artifacts(place, system_randomness())
    store = folder / "yard.db"
    open_platform(store).close()
    for words in (["work"], ["serve"], ["sweep"], ["doctor"]):
        refused = CliRunner().invoke(main, [*words, "--store", str(store), "--artifacts", place])
        assert refused.exit_code in (1, 2)
        assert "must be a folder" in refused.output
    assert made(folder) == []


BLANK = ["", " ", "\t", "  \n"]
"""What a shell passes for a variable that is not set."""


@pytest.mark.slow
@each_case("name", WITH_STORE, ids=" ".join)
def test_no_command_takes_an_empty_name_for_a_place(name: tuple[str, ...], folder: Path) -> None:
    open_platform(folder / "yard.db").close()
    words = words_of(name, folder)
    for option in ("--store", "--artifacts", "--factory"):
        for place in BLANK:
            refused = CliRunner().invoke(main, [*name, option, place, *words])
            assert (refused.exit_code, option in refused.output) == (2, True), (option, refused.output)
            assert made(folder) == []


@pytest.mark.parametrize("place", BLANK)
def test_nothing_is_written_to_or_read_from_an_empty_name(place: str, folder: Path) -> None:
    store, good = str(folder / "yard.db"), str(folder / "good.db")
    open_platform(store).close()
    assert CliRunner().invoke(main, ["backup", "--store", store, good]).exit_code == 0
    for words in (
        *([*words, place] for words in WRITES),
        ["backup", "--store", store, place],
        ["restore", place, "back.db"],
        ["restore", place, "--check"],
        ["restore", good, place],
        ["restore", good, "back.db", "--artifacts", place],
        ["copy", store, place],
        ["copy", place, "copy.db"],
    ):
        refused = CliRunner().invoke(main, [*words])
        assert refused.exit_code == 2, (words, refused.output, refused.exception)
        assert made(folder) == [], words
    with open_platform(store) as platform, pytest.raises(InvalidInput):
        platform.backup(place)
    for opened in (lambda: open_platform(place), lambda: open_platform("new.db", artifacts=place)):
        with pytest.raises(InvalidInput):
            opened()
    assert made(folder) == []


@pytest.mark.parametrize(
    "place", ["file:here", "file:/no/such/x", "s3:bucket", "S3:bucket", "gs:bucket", "file://", *BLANK]
)
def test_artifacts_are_in_no_folder_with_the_name_of_a_scheme(place: str, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="must be a folder"):
        open_artifacts(place, system_randomness())
    assert made(folder) == []


def test_a_folder_by_its_address_is_in_a_folder_that_is_there(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no folder"):
        open_artifacts(f"file://{folder}/here/no/such", system_randomness())
    assert made(folder) == []
    open_artifacts(f"file://{folder}/here/one", system_randomness())
    assert made(folder) == ["here/one"]


@pytest.mark.parametrize("place", NOWHERE)
def test_artifacts_are_in_no_folder_of_a_folder_that_is_not_there(place: str, folder: Path) -> None:
    """It may be the address of a bucket without its scheme."""
    with pytest.raises(InvalidInput, match=r"there is no folder .*s3://"):
        open_artifacts(place, system_randomness())
    assert made(folder) == []
    open_artifacts("one", system_randomness())
    assert made(folder) == ["here/one"]


@pytest.mark.parametrize("place", ["yard-12:30.db", "a:b", "C.db", "http.db", "s3", "memory"])
def test_a_file_may_have_a_colon_in_its_name(place: str, folder: Path) -> None:
    open_platform(place).close()
    assert Path(place).is_file()


@pytest.mark.parametrize("place", ADDRESSES)
def test_python_takes_no_other_address_for_a_file_either(place: str, folder: Path) -> None:
    with pytest.raises(InvalidInput):
        open_platform(place)
    with open_platform(folder / "yard.db") as platform, pytest.raises(InvalidInput):
        platform.backup(place)
    assert made(folder) == []


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("words", [["target.db"], ["--check"]])
def test_a_backup_that_is_not_there_is_none_of_a_server(empty: bool, words: list[str], folder: Path) -> None:
    if empty:
        Path("monday.db").touch()
    refused = CliRunner().invoke(main, ["restore", "monday.db", *words])
    assert refused.exit_code == 1
    assert "there is no backup at monday.db" in refused.output
    assert "serve" not in refused.output
