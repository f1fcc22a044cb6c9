"""The help of a command begins with what is its own."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from modelyard.cli import main

OF_ALL = {"--store", "--factory", "--artifacts", "--help"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def test_the_options_of_all_commands_come_last() -> None:
    for path in commands(main):
        shown = CliRunner().invoke(main, [*path, "--help"]).stdout
        options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE)
        own = [name for name in options if name not in OF_ALL]
        assert options[: len(own)] == own, path


@pytest.mark.parts
def test_the_interfaces_of_serve_are_not_broken_midword() -> None:
    shown = CliRunner().invoke(main, ["serve", "--help"]).stdout
    told = " ".join(shown.split())
    assert "traces, tinker, uploads. [default: all but uploads]" in told
