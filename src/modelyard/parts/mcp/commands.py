"""The command that speaks MCP over stdin and stdout, until the client ends it."""

from contextlib import ExitStack

import click

from modelyard.cli.terminal import StoreName, in_own_name, opened, store_option
from modelyard.cli.working import executor_of
from modelyard.parts.mcp.tools import ACTS, tools_for
from modelyard.report.terminal import log_to_terminal

QUEUES = frozenset({"evaluate", "train"})
"""The acts that queue jobs, which are then run here."""


def _acts(context: click.Context, option: click.Parameter, given: str) -> frozenset[str]:
    named = frozenset(name.strip() for name in given.split(",") if name.strip())
    if unknown := sorted(named.difference(ACTS)):
        raise click.BadParameter(f"there is no {unknown[0]!r} to allow; there are {', '.join(ACTS)}")
    return named


@click.command()
@store_option
@click.option(
    "--allow", default="", metavar="NAME,...", callback=_acts, help=f"What it may do besides: {', '.join(ACTS)}."
)
@click.option("--json", "as_json", is_flag=True, help="What it speaks in any case.")
def mcp(store: StoreName, allow: frozenset[str], as_json: bool) -> None:
    """Let a coding agent read this store by the Model Context Protocol, over stdin and stdout.

    Of what changes something, it has the tools that are allowed; what they queue is run in this process, too.
    """
    with ExitStack() as stack:
        platform = in_own_name(stack.enter_context(opened(store)))
        from modelyard.parts.mcp.server import serve  # noqa: PLC0415 - the help needs no extra, nor a wrong store

        log_to_terminal()
        if allow & QUEUES:
            platform.prepare()
            stack.enter_context(platform.worker(1, executor_of(platform, store, 1, False, "text")))
        serve(platform, tools_for(allow))
