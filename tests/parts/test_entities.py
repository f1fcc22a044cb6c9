"""A misspelt entity is told the nearest one, since nothing else would say that it is another."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main

COMMANDS = (
    ("budget", "set", "acm", "5"),
    ("shares", "set", "acm", "--weight", "2"),
    ("delete-entity", "acm", "--yes"),
    ("delete-entity", "acm", "--yes", "--keep-ledger"),
)
CHOOSING = (
    ("models", "list"),
    ("jobs", "list", "--json"),
    ("datasets", "list"),
    ("sweeps", "list"),
    ("episodes", "list"),
    ("review", "list"),
    ("rollouts", "list"),
    ("variants", "list"),
    ("what-if", "list"),
    ("what-if", "ask", "echo", "--estimate"),
    ("watches", "list"),
    ("webhooks", "dead"),
    ("webhooks", "list"),
    ("webhooks", "add", "https://example.com/hook"),
    ("usage",),
    ("usage", "--slowest"),
    ("budget", "list"),
    ("keep", "texts", "30"),
)
LISTED = tuple((*words, "--entity", "acm") for words in CHOOSING)
"""Commands that are told whose records to look at."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "yard.db")


@pytest.mark.parametrize("words", COMMANDS + LISTED, ids=" ".join)
def test_an_entity_that_nothing_is_of_is_told_the_nearest(words: tuple[str, ...], store: str) -> None:
    with open_platform(store) as platform:
        platform.keys.create("acme")
    said = CliRunner().invoke(main, [*words, "--store", store])
    assert said.exit_code == 0
    assert said.stderr.splitlines()[0] == "note: no key, model or usage is of 'acm'; did you mean 'acme'?"


@pytest.mark.parametrize("has", ["key", "usage", "model"])
def test_one_that_has_something_is_told_nothing(has: str, store: str) -> None:
    with open_platform(store) as platform:
        platform.keys.create("acme")
        if has == "key":
            platform.keys.create("acm")
        elif has == "usage":
            platform.chat.complete(model="echo", messages="x", entity="acm")
        else:
            platform.models.create("m", project="p", entity="acm", base_model="tabular-mini")
    for words in (*LISTED, *COMMANDS):
        said = CliRunner().invoke(main, [*words, "--store", store])
        assert said.exit_code == 0
        if words[0] == "delete-entity":
            break
        assert "note:" not in said.stderr


def test_the_first_customer_of_a_store_is_no_mistake(store: str) -> None:
    open_platform(store).close()
    said = CliRunner().invoke(main, ["budget", "set", "acme", "5", "--store", store])
    assert said.stderr == ""
    with open_platform(store) as platform:
        platform.keys.create("acme")
    said = CliRunner().invoke(main, ["budget", "set", "zeta", "5", "--store", store])
    assert said.stderr == "note: no key, model or usage is of 'zeta' yet\n"


def test_every_command_that_looks_at_an_entity_is_tried() -> None:
    named = {
        " ".join(path) for path, command in commands(main) if any("--entity" in one.opts for one in command.params)
    }
    making = {"keys create", "train import", "collect"}
    assert named - making <= {" ".join(words[:length]) for words in CHOOSING for length in (1, 2)}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command
