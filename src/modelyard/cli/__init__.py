"""The command line, a thin layer over the Python API."""

from collections.abc import Iterable, Mapping

import click

from modelyard.cli.lazy_group import LazyGroup
from modelyard.part import Part, standard_parts

__all__ = ["main"]

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Start": {"work": ("modelyard.cli.working:work", "Run queued jobs until interrupted.")},
    "Models": {},
    "Work": {
        "evaluate": ("modelyard.cli.evaluations:evaluate", "Evaluate models, and print their scores."),
        "runs": ("modelyard.cli.evaluations:runs", "List, show, compare, report and export evaluation runs."),
        "jobs": ("modelyard.cli.jobs:jobs", "Manage jobs: trainings and evaluations."),
    },
    "Who may do what": {},
    "Store": {},
}


def command_line(parts: Iterable[Part]) -> click.Group:
    """Make the command line of the core and of these parts, with which it opens its platforms.

    main = command_line((*STANDARD, NOTES))
    """
    parts = tuple(parts)
    sections = {title: dict(commands) for title, commands in SECTIONS.items()}
    children: dict[str, dict[str, str]] = {}
    for part in parts:
        for name, command in part.commands.items():
            group, _, child = name.partition(" ")
            if child:
                children.setdefault(group, {})[child] = command.home
            else:
                sections.setdefault(command.section, {})[name] = (command.home, command.help)
    line = LazyGroup("modelyard", sections, children, HELP, parts)
    return click.version_option(package_name="modelyard")(line)


HELP = """Use the model platform from the command line.

The store is ./yard.db unless --store names another one; --factory MODULE:FUNCTION names code that returns your own
platform in its place. Names stand for ids everywhere.
"""


main: click.Group = command_line(standard_parts())
