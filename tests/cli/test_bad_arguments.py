"""Whatever is wrong with what a command is given: a line that says so, another status than 0, and nothing half made."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from each import each_case
from modelyard import open_platform
from modelyard.cli import main

pytestmark = pytest.mark.parts

ROWS = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 3
NEW = ("--base-model", "tabular-mini")

UNREADABLE = ("missing.jsonl", "no/such/file.jsonl", "folder", "loop", "yard.db/x", "x" * 300)
BAD_DATA = (*UNREADABLE, "latin.jsonl", "broken.jsonl", "bytes.jsonl", "array.jsonl", "empty.jsonl")
UNWRITABLE = ("no/such/report.html", "folder", "report.odd", "loop", "yard.db/report.html", "x" * 300 + ".html")
NAMES = ("nosuch", "d/nosuch", "a/b/c/d", "x" * 300, "", "\u00e9", "../x")
STORES = ("mysql://h/x", "nosuch://x", "folder", "broken.jsonl", "bytes.jsonl", "loop", "x" * 300, "yard.db/x")

READS = (
    *(
        ("train", method, model, "@", *more)
        for method in ("sft", "dpo", "rl")
        for model, more in (("d/m", ()), ("d/new", NEW))
    ),
    ("train", "sft", "d/new", "@", *NEW, "--no-wait"),
    ("evaluate", "new", "echo", "--rows", "@", "--scorer", "exact_match"),
)
WRITES = (
    ("runs", "report", "e", "@"),
    ("runs", "compare", "e", "e", "--save", "@"),
    ("evaluate", "new", "echo", "--rows", "rows.jsonl", "--scorer", "exact_match", "--save", "@"),
)
NAMED = (
    *((command, "@") for command in ("checkpoints", "aliases", "rollback")),
    *(("jobs", verb, "@") for verb in ("show", "watch", "cancel")),
    *(("runs", verb, "@") for verb in ("show", "export")),
    *(
        ("promote", "@", "1"),
        ("models", "show", "@"),
        ("runs", "compare", "@", "e"),
        ("runs", "report", "@", "new.html"),
    ),
    *(("ask", "@", "hi"), ("evaluate", "@", "echo"), ("keys", "revoke", "@"), ("usage", "--by", "@")),
    *(("train", "sft", "@", "data.jsonl"), ("train", "sft", "d/new", "data.jsonl", "--base-model", "@")),
    *(
        ("train", "sft", "d/new", "data.jsonl", *NEW, "-o", text)
        for text in ("@", "learning_rate=@", "@=1", "epochs=-1")
    ),
    ("train", "sft", "d/new", "modelyard:///@", *NEW),
    ("budget", "set", "a", "@"),
)
OPENS = (
    *(
        ("models",),
        ("jobs", "list"),
        ("keys", "list"),
        ("usage",),
        ("doctor",),
        ("sweep",),
        ("runs", "list"),
        ("migrate",),
    ),
    *(("catalogue",), ("ask", "echo", "hi"), ("keys", "create", "--entity", "a"), ("budget", "set", "a", "1")),
    *(("train", "sft", "d/new", "data.jsonl", *NEW), ("work",), ("backup", "new.db"), ("serve", "--port", "0")),
)
TRACES = ("modelyard_sequences", "tombstones")
CASES: Mapping[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]] = {
    "data that cannot be read": (READS, BAD_DATA),
    "files that cannot be written": (WRITES, UNWRITABLE),
    "names that nothing has": (NAMED, NAMES),
}


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin.jsonl").write_bytes(b'{"messages": "\xe9\xff"}\n')
    (tmp_path / "broken.jsonl").write_text('{"messages": \n[[[')
    (tmp_path / "bytes.jsonl").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "array.jsonl").write_text("[1, 2]")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "expected": "x"}\n')
    store = tmp_path / "yard.db"
    with open_platform(store) as platform:
        platform.training.sft(platform.models.create("m", project="d", base_model="tabular-mini"), ROWS).wait()
        platform.evaluations.run("e", "echo", [{"prompt": "x", "expected": "x"}], "exact_match")
    return store


def state(store: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Every record of the store, and every file next to it; but for the ids of what was made and removed again."""
    with sqlite3.connect(store) as connection:
        names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        found = {name: sorted(map(repr, connection.execute(f'select * from "{name}"'))) for name in names}
    connection.close()
    files = [str(path.relative_to(store.parent)) for path in store.parent.rglob("*")]
    own = [name for name in files if not name.endswith(("-wal", "-shm", "-turn"))]
    return {name: rows for name, rows in found.items() if name not in TRACES}, sorted(own)


def refusal(*words: str) -> str:
    """What is wrong with a command, "" for nothing."""
    ended = CliRunner().invoke(main, words)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        return f"raised {ended.exception!r}"
    last = (ended.output.strip().splitlines() or [""])[-1]
    wrong = ended.exit_code == 0 or "Traceback" in ended.output or not last.startswith("Error: ")
    return f"status {ended.exit_code}: {ended.output[-300:]!r}" if wrong else ""


@pytest.mark.parts
@pytest.mark.parametrize(
    "words",
    [
        ("train", "sft", "", "data.jsonl"),
        ("train", "sft", "d/m", ""),
        ("train", "sweep", "", "data.jsonl"),
        ("train", "sweep", "d/m", ""),
        ("datasets", "split", ""),
    ],
    ids=lambda words: "-".join(words),
)
def test_an_empty_argument_is_said_to_be_empty(words: tuple[str, ...]) -> None:
    assert "is empty: is a variable of the shell not set?" in CliRunner().invoke(main, words).output


def commands_of(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{path}{name} ")


def says_that_it_is_empty(command: click.Command, parameter: click.Parameter) -> bool:
    value: object = ("", "") if parameter.nargs == -1 else ""
    try:
        parameter.process_value(click.Context(command), value)
    except click.BadParameter as error:
        return "is empty: is a variable of the shell not set?" in error.message
    return False


@pytest.mark.parts
@pytest.mark.slow
def test_every_command_says_which_name_is_empty() -> None:
    asked = [
        (path, parameter.human_readable_name, says_that_it_is_empty(command, parameter))
        for path, command in commands_of(main)
        if path != "docs"  # which lists all pages for no word
        for parameter in command.params
        if isinstance(parameter, click.Argument) or parameter.name in ("entity", "project")
        if parameter.type is click.STRING
    ]
    assert len(asked) > 60
    assert [(path, name) for path, name, said in asked if not said] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_bad_argument_of_any_command_is_one_line_and_changes_nothing(yard: Path, case: str) -> None:
    commands, values = CASES[case]
    before, problems = state(yard), []
    for command in commands:
        for value in values:
            words = [word.replace("@", value) for word in command]
            problem = refusal(*words)
            if (now := state(yard)) != before:
                left = [name for name, rows in now[0].items() if rows != before[0].get(name)]
                problem, before = f"{problem} left {left or now[1]} behind", now
            if problem:
                problems.append((words, problem))
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_store_that_cannot_be_opened_is_one_line_for_every_command(yard: Path, store: str) -> None:
    before: Any = state(yard)
    problems = [(command, problem) for command in OPENS if (problem := refusal(*command, "--store", store))]
    assert problems == []
    assert state(yard) == before


@each_case(
    ("typed", "meant"),
    [
        ("budgt", "'budget'"),
        ("evalute", "'evaluate'"),
        ("job", "'jobs'"),
        ("sft", "'train sft'"),
        ("export", "'models export' or 'runs export'"),
    ],
)
def test_a_command_that_is_misspelt_or_stands_alone_is_named(typed: str, meant: str) -> None:
    said = CliRunner().invoke(main, [typed])
    assert said.exit_code == 2
    assert f"No such command '{typed}'; did you mean {meant}" in said.output


def test_what_is_near_no_command_is_refused_plainly() -> None:
    said = CliRunner().invoke(main, ["zzz"])
    assert said.output.splitlines()[-1] == "Error: No such command 'zzz'."


def test_the_short_option_shows_the_help_of_every_command() -> None:
    for words in ([], ["jobs"], ["jobs", "list"], ["serve"]):
        short, long = (CliRunner().invoke(main, [*words, option]) for option in ("-h", "--help"))
        assert (short.exit_code, short.output) == (0, long.output)
