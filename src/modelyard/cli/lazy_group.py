"""A group of commands that are loaded when they are used, so that help and completion answer at once."""

import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click
from click.shell_completion import CompletionItem

import modelyard
from modelyard.part import Part, standard_parts

PARTS = "modelyard.parts"
"""Where a context keeps the parts of its command line."""


def parts_of(context: click.Context | None) -> Sequence[Part]:
    """Return the parts of the command line that runs: the standard ones for a command that runs alone."""
    found: Sequence[Part] | None = None if context is None else context.meta.get(PARTS)
    return standard_parts() if found is None else found


def _completed(command: click.Command) -> click.Command:
    """Let a command take `--json`, and its help begin with its own options, and end with those that every one has."""
    from modelyard.cli.answers import with_json  # noqa: PLC0415 - the help loads no command

    with_json(command)
    command.params.sort(key=lambda one: one.name in ("store", "factory", "artifacts"))
    return command


class Group(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return command and _completed(command)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except modelyard.errors.ModelyardError as error:  # loaded only then
            raise click.ClickException(str(error)) from error
        except UnicodeError as error:
            raise click.ClickException(f"what is to be read is not UTF-8: {error}") from error
        except OSError as error:
            if error.filename is None:  # not about a file, as where nothing reads the output any more
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def _loaded(home: str) -> click.Command:
    module, _, name = home.partition(":")
    command: click.Command = getattr(import_module(module), name)
    return command


class LazyGroup(Group):
    """A group that knows of each command its module, its name there and its line of help, by section.

    `sections` maps titles of the help to the commands below: `{"Start": {"serve": ("module:function", "")}}`.
    """

    def __init__(
        self,
        name: str,
        sections: Mapping[str, Mapping[str, tuple[str, str]]],
        children: Mapping[str, Mapping[str, str]],
        help: str,
        parts: Sequence[Part],
    ) -> None:
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self.sections: Mapping[str, Mapping[str, tuple[str, str]]] = sections
        self.children: Mapping[str, Mapping[str, str]] = children
        self._parts = parts

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Make the context of the group, from which its commands know the parts.

        From then on a character that the terminal's encoding lacks is shown by its code, as `\\xe9`.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        context = super().make_context(*arguments, **options)
        context.meta[PARTS] = self._parts
        return context

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run the command line. With `--json` an error is a JSON object, on the last line of standard error."""
        given = sys.argv[1:] if args is None else args
        if "--json" not in given or not options.get("standalone_mode", True):
            return super().main(args, *more, **options)
        from modelyard.cli.answers import error_text  # noqa: PLC0415 - the help loads no command

        try:
            status = super().main(args, *more, **{**options, "standalone_mode": False})
        except click.Abort:  # perhaps amidst a line
            click.echo(f"\n{error_text(click.ClickException('it was interrupted'))}", err=True)
            status = 1
        except click.ClickException as error:
            click.echo(error_text(error), err=True)
            status = error.exit_code
        sys.exit(status)

    def invoke(self, context: click.Context) -> Any:
        """Run the command; a request of the system to end is an interrupt, so that a job that it runs is given back."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        return super().invoke(context)

    def _known(self) -> Mapping[str, tuple[str, str]]:
        return {name: where for section in self.sections.values() for name, where in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._known())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = self._known().get(cmd_name)
        if where is None:
            return None
        command = _completed(_loaded(where[0]))
        for child, home in self.children.get(cmd_name, {}).items():
            assert isinstance(command, click.Group)
            command.add_command(_loaded(home), child)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            groups = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
            known = ((name, one.commands) for name, one in groups.items() if isinstance(one, click.Group))
            meant = [f"'{name} {args[0]}'" for name, commands in known if args[0] in commands]
            hint = f"; did you mean {' or '.join(meant[:4])}?" if meant else modelyard.errors.nearest(args[0], groups)
            raise click.UsageError(error.message.rstrip(".") + (hint or "."), ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> Sequence[CompletionItem]:  # type: ignore[override]
        found = [CompletionItem(name, help=line) for name, (_, line) in self._known().items()]
        named = [item for item in found if str(item.value).startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]
