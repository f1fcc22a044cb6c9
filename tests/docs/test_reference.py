"""The reference pages are complete: what the code has, they list."""

import pkgutil
import re
import tomllib
from functools import cached_property
from inspect import getmembers, isfunction
from operator import attrgetter
from pathlib import Path

import click
import pytest

import pytest_modelyard
from modelyard import errors, open_platform, testing
from modelyard.cli import main
from modelyard.formats.chat.request import ChatRequest
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.part import standard_parts
from modelyard.parts.completions.formats.generate import SAMPLING_WITHOUT_EFFECT
from modelyard.parts.completions.formats.request import CompletionBody
from modelyard.parts.messages.formats.request import MessagesBody
from modelyard.parts.responses.formats.request import INCLUDED, ResponseRequest
from modelyard.parts.tinker.formats.forward_backward import IGNORED
from modelyard.parts.tinker.http import rest_routes, routes, session_routes
from modelyard.parts.tinker.interface import TINKER
from modelyard.platform.extended import members_of_parts
from unknown_members import without_effect

pytestmark = pytest.mark.parts

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def rows(page: str) -> list[list[str]]:
    lines = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]


def test_every_exception_is_listed_with_its_code() -> None:
    tree = {
        name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert {row[0]: row[1] for row in rows("errors.md")} == {name: value.code for name, value in tree.items()}


def test_every_route_is_listed_with_its_authentication_and_operation() -> None:
    with open_platform() as platform:
        routes = Endpoint(platform, list(Interface)).table.routes
    listed = {tuple(row[:4]) for row in rows("http.md") if len(row) == 5}
    assert listed == {(route.method, route.path, route.auth.value, route.operation) for route in routes}


def test_every_member_without_effect_is_listed_with_its_reason() -> None:
    named = {
        "chats": ChatRequest,
        "completions": CompletionBody,
        "responses": ResponseRequest,
        "messages": MessagesBody,
    }
    known = {(what, name, why) for what, cls in named.items() for name, why in without_effect(cls).items()}
    known |= {
        (TINKER.name, f"{route.path.rpartition('/')[2]}: {name}", why)
        for route in (*rest_routes.ROUTES, *routes.ROUTES, *session_routes.ROUTES)
        for name, why in without_effect(route.request).items()
    }
    known |= {(TINKER.name, f"forward_backward: data[].{name}", why) for name, why in IGNORED.items()}
    known |= {("generate", f"sampling_params.{name}", why) for name, why in SAMPLING_WITHOUT_EFFECT.items()}
    known |= {("responses", f"include: {name}", why) for name, why in INCLUDED.items() if why}
    text = (REFERENCE / "http.md").read_text(encoding="utf-8")
    section = text.partition("| interface | members | why |")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "`" in line]
    assert {(what, name.strip("`"), why) for what, names, why in lines for name in names.split(", ")} == known


def commands(group: click.Group, prefix: str = "modelyard") -> dict[str, click.Command]:
    found = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command, path = group.get_command(context, name), f"{prefix} {name}"
        found |= commands(command, path) if isinstance(command, click.Group) else {path: command}
    return found


def takes(command: click.Command) -> set[str]:
    """Its arguments and options, but for the three of which the page speaks once for all commands."""
    named = {taken.opts[0] if taken.opts[0].startswith("-") else taken.name.upper() for taken in command.params}
    return named - {"--store", "--artifacts", "--factory", "--json"}


def test_every_command_is_listed_with_its_arguments_and_options() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(modelyard [a-z -]+[a-z])` (?:`(.*?)` )?\|", text, re.MULTILINE)
    words = {path: re.sub(r"(--[a-z-]+) [^\s\]]+", r"\1", given) for path, given in listed}
    named = {path: set(re.findall(r"--[a-z-]+|[A-Z_]+", given)) for path, given in words.items()}
    assert named == {path: takes(command) for path, command in commands(main).items()}


def test_every_resource_is_listed_with_its_methods() -> None:
    """But for what every resource has, and what HTTP alone builds on."""
    listed = {row[0]: set(re.findall(r"\w+", row[1])) for row in rows("python.md") if row[0].startswith("platform.")}
    resources = {path: named for path, named in listed.items() if "(" not in path}
    with open_platform() as platform:
        for path, named in resources.items():
            resource = attrgetter(path.removeprefix("platform."))(platform)
            public = {name for name, value in getmembers(type(resource), isfunction) if not name.startswith("_")}
            assert public | {*members_of_parts(standard_parts(), f"{path.removeprefix('platform.')}.")} == named, path
        resources_of = {
            name for name, value in getmembers(type(platform)) if isinstance(value, property | cached_property)
        }
    brought = {name: resource() for part in standard_parts() for name, resource in part.resources.items()}
    named_by_parts = {name for name, resource in brought.items() if "__call__" not in vars(resource)}
    assert {f"platform.{name}" for name in named_by_parts} <= set(resources)
    named_by_parts |= {name for name in brought if f"platform.{name}" in resources}  # and is called, too
    resources_of |= {_resource_of(f"platform.{name}") for name in named_by_parts}
    resources_of.remove("compat")
    opened_with = {
        "parts",
        "job_types",
        "settings",
        "clock",
        "randomness",
        "blocking",
        "spool",
        "threads",
        "observer",
        "tracing",
        "each_second",
        "principal",
    }
    assert {_resource_of(path) for path in resources} == resources_of - opened_with


def _resource_of(path: str) -> str:
    """Return the resource of a path such as `platform.evaluations.objects` or `platform.compat.traces.calls`."""
    words = path.split(".")[1:]
    return ".".join(words[: 2 if words[0] == "compat" else 1])


def test_every_fixture_and_function_for_tests_is_listed() -> None:
    doors = (testing, testing.contracts, testing.servers)
    listed = [name.strip(" `") for row in rows("testing.md") for name in row[0].split(",")]
    fixtures = [name for name, value in vars(pytest_modelyard).items() if "fixture" in type(value).__name__.lower()]
    public = {name for name in fixtures if not name.startswith("_")}.union(*(door.__all__ for door in doors))
    assert public <= set(listed)
    assert {name for name in listed if "." not in name} <= public
    for name in listed:
        assert "." not in name or pkgutil.resolve_name(
            name if name.startswith("modelyard.") else f"modelyard.testing.{name}"
        )


def test_every_extra_that_a_page_installs_is_there() -> None:
    root = REFERENCE.parents[1]
    there = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.ipynb")]
    named = {
        (page.name, extra)
        for page in pages
        for extras in re.findall(r"modelyard\[([^]]+)\]", page.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert len(named) > 20
    assert [(page, extra) for page, extra in sorted(named) if extra not in there] == []
