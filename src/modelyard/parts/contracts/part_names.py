"""The laws of the names of a part: what it declares is there under its name, and no other has that name."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module

import click
import pytest

from modelyard.cli import SECTIONS, command_line
from modelyard.domain.identity import host
from modelyard.domain.schema import records_of
from modelyard.http.core_routes import ROUTES as REST
from modelyard.http.endpoint import FIRST
from modelyard.http.interfaces import CORE as CORE_INTERFACES
from modelyard.part import Command, Part
from modelyard.parts.contracts.part_trial import PartHooks, PartTrial, addresses
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.extended import Compat, Extended
from modelyard.platform.job_types import job_types_of
from modelyard.platform.jobs.service import Jobs
from modelyard.platform.models.service import Models
from modelyard.platform.platform import Platform
from modelyard.platform.training.service import Training

_LOADED = """
import sys
from importlib import import_module
import_module({home!r})
print(*sys.modules)
"""

EXTENDED = (Compat, Evaluations, Jobs, Models, Training)
"""The resources of the core to which parts add members."""


class PartNameLaws(PartHooks):
    """What a part declares loads, has the name under which it is declared, and takes the name of nothing else."""

    def test_its_kinds_of_jobs_have_their_names(self, part: Part) -> None:
        for kind, load in part.job_types.items():
            assert load().kind == kind

    def test_its_resources_load(self, trial: PartTrial) -> None:
        made = [load() for part in (*trial.others, trial.part) for load in part.resources.values()]
        areas = ["", *(kind.AREA.rstrip(".") for kind in EXTENDED)]
        areas += [kind.AREA.rstrip(".") for kind in made if isinstance(kind, type) and issubclass(kind, Extended)]
        for name, load in trial.part.resources.items():
            area, _, last = name.rpartition(".")
            assert area in areas
            assert last.isidentifier()
            assert not last.startswith("_")
            assert callable(load())

    def test_its_commands_load_and_have_their_line_of_help(self, trial: PartTrial) -> None:
        line = command_line([*trial.others, trial.part])
        context = click.Context(line)
        for name, declared in trial.part.commands.items():
            loaded = _load(declared)
            assert loaded.get_short_help_str(limit=200).rstrip(".") == declared.help.rstrip("."), name
            found: click.Command | None = line
            for word in name.split(" "):
                assert isinstance(found, click.Group)
                found = found.get_command(context, word)
            assert found is loaded, f"`{name}` is not on the command line"
            assert bool(declared.section) is (" " not in name), "a command within a group has no section"

    def test_its_pages_answer_for_an_empty_platform(self, trial: PartTrial) -> None:
        unknown = {"": ["nothing-of-this-name"]}
        with trial.opened() as platform:
            ask = trial.pages(platform, host())
            for page in trial.part.pages():
                assert callable(page.answer)
                if page.method == "GET":
                    path = next(addresses(f"/dashboard/{'/'.join(page.path)}", unknown))
                    answer = ask(path)
                    assert answer.status < 500, path
                    assert answer.status == 200 or "{" in "".join(page.path), f"{path} answers {answer.status}"
                    assert not page.label or page.label in answer.text.partition("<main")[0]

    def test_its_names_are_of_nothing_else(self, trial: PartTrial) -> None:
        own = [*names_of(trial.part)]
        twice = sorted({name for name in own if own.count(name) > 1})
        assert not twice, f"{twice} are declared twice"
        taken = {*core_names(), *(name for other in trial.others for name in names_of(other))}
        both = sorted({*own} & taken - {*self.shared})
        assert not both, f"{both} are taken"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", trial.part.name), "it begins the names of changes"

    def test_loading_it_loads_nothing_else_of_its_folder(self, part: Part) -> None:
        home = self.home or home_of(part)
        if not home:
            pytest.skip("`home` is not overridden, and nothing says in which module the part is")
        folder = home.rpartition(".")[0]
        run = [sys.executable, "-c", _LOADED.format(home=home)]
        done = subprocess.run(run, check=True, capture_output=True, text=True, env={"PYTHONPATH": _path()})  # noqa: S603
        loaded = {name for name in done.stdout.split() if folder and name.startswith(f"{folder}.")} - {home}
        assert not loaded, f"{home} loads {sorted(loaded)}; import them in the functions of the part"


def _path() -> str:
    return ":".join(path or "." for path in sys.path)


def _load(declared: Command) -> click.Command:
    module, _, name = declared.home.partition(":")
    command: click.Command = getattr(import_module(module), name)
    return command


def home_of(part: Part) -> str:
    """Return the module in which a part is, by the functions that it is made of; "" if it has none."""
    made: list[object] = [
        part.records,
        part.changes,
        part.interfaces,
        part.pages,
        part.site,
        part.notes,
        part.engine,
        part.trained,
    ]
    made += [*part.resources.values(), *part.job_types.values(), *part.routes.values()]
    homes = [str(getattr(one, "__module__", "")) for one in made]
    return next((home for home in homes if home not in ("", "builtins", "modelyard.part")), "")


def names_of(part: Part) -> Iterator[str]:
    """Yield every name that a part takes, each with what it names."""
    yield f"part {part.name}"
    yield from (f"attribute {name}" for name in part.resources)
    yield from (f"kind of jobs {name}" for name in part.job_types)
    yield from (f"interface {one.name}" for one in part.interfaces())
    yield from (f"command {name}" for name in part.commands)
    yield from (f"change {change.name}" for change in part.changes())
    yield from (f"page {page.method} /{'/'.join(page.path)}" for page in part.pages())
    yield from (f"scheme {scheme}" for kind in (part.stores, part.artifacts, part.clusters) for scheme in kind)
    for record in part.records():
        yield from (f"table {record.table}", f"class {record.cls.__module__}.{record.cls.__qualname__}")
    for routes in part.routes.values():
        yield from (f"route {route.method} {_shape(route.path)}" for route in routes())


def core_names() -> Iterator[str]:
    """Yield the names that the core takes."""
    yield from (f"attribute {name}" for name in dir(Platform))
    yield from (f"attribute {kind.AREA}{name}" for kind in EXTENDED for name in dir(kind))
    yield from (f"kind of jobs {name}" for name in job_types_of(()))
    yield from (f"interface {one.name}" for one in CORE_INTERFACES)
    yield from (f"command {name}" for name in _commands(SECTIONS))
    yield from (f"route {route.method} {_shape(route.path)}" for route in (*FIRST, *REST))
    for record in records_of(()):
        yield from (f"table {record.table}", f"class {record.cls.__module__}.{record.cls.__qualname__}")


def _commands(sections: Mapping[str, Mapping[str, object]]) -> Iterable[str]:
    return (name for section in sections.values() for name in section)


def _shape(path: str) -> str:
    """Return a path without the names of its parameters, since two that differ in them alone are one."""
    return re.sub(r"\{\w+", "{", path)
