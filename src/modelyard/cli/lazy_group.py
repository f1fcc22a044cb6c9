"""A group of commands that are loaded when they are used, so that help and completion answer at once."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

import modelyard


class Group(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except modelyard.errors.ModelyardError as error:  # loaded only then
            raise click.ClickException(str(error)) from error


class LazyGroup(Group):
    """A group that loads a command when it is used. `sections` maps titles of the help to commands: `{"Serve":
    {"serve": ("cli.serving:serve", "its help")}}`."""

    sections: Mapping[str, Mapping[str, tuple[str, str]]] = {}

    def _known(self) -> Mapping[str, tuple[str, str]]:
        return {name: where for section in self.sections.values() for name, where in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._known())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = self._known().get(cmd_name)
        if where is None:
            return None
        module, _, name = where[0].partition(":")
        command: click.Command = getattr(import_module(f"modelyard.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> Sequence[CompletionItem]:  # type: ignore[override]
        found = [CompletionItem(name, help=line) for name, (_, line) in self._known().items()]
        named = [item for item in found if str(item.value).startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]
