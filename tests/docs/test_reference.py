"""The reference pages are complete: what the code has, they list."""

import pkgutil
import re
from pathlib import Path

import click

import pytest_modelyard
from modelyard import errors, open_platform, testing
from modelyard.cli import main
from modelyard.http.endpoint import Endpoint
from modelyard.http.route import Interface

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def rows(page: str) -> list[list[str]]:
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]


def test_every_exception_is_listed_with_its_code() -> None:
    tree = {
        name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert {row[0]: row[1] for row in rows("errors.md")} == {name: value.code for name, value in tree.items()}


def test_every_route_is_listed_with_its_authentication() -> None:
    with open_platform() as platform:
        routes = Endpoint(platform, list(Interface)).table.routes
    listed = {tuple(row[:3]) for row in rows("http.md") if len(row) == 4}
    assert listed == {(route.method, route.path, route.auth.value) for route in routes}


def commands(group: click.Group, prefix: str = "modelyard") -> set[str]:
    found = set()
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        found |= commands(command, path) if isinstance(command, click.Group) else {path}
    return found


def test_every_command_is_listed() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(modelyard [a-z -]+[a-z])", text, re.MULTILINE)) == commands(main)


def test_every_fixture_and_function_for_tests_is_listed() -> None:
    listed = [row[0] for row in rows("testing.md")]
    fixtures = [name for name, value in vars(pytest_modelyard).items() if "fixture" in type(value).__name__.lower()]
    public = {name for name in fixtures if not name.startswith("_")} | set(testing.__all__)
    assert public <= set(listed)
    assert {name for name in listed if "." not in name} <= public
    for name in listed:
        assert "." not in name or pkgutil.resolve_name(name)
