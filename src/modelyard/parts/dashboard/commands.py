"""The command that shows the dashboard."""

import click

from modelyard.asgi import dashboard_app
from modelyard.cli import uvicorn_server
from modelyard.cli.terminal import StoreName, opened, store_option
from modelyard.domain.identity import host as host_principal
from modelyard.report.terminal import log_to_terminal


@click.command()
@store_option
@click.option("--port", default=8001, show_default=True, type=click.IntRange(0, 65535))
def ui(store: StoreName, port: int) -> None:
    """Show the dashboard of a store on this machine, to read only.

    It needs no login, and runs until it is interrupted.
    """
    with opened(store) as platform:
        log_to_terminal("text")
        click.echo(f"Look at http://127.0.0.1:{port}/ ; Ctrl-C stops it", err=True)
        uvicorn_server.run(dashboard_app(platform, reader=host_principal()), "127.0.0.1", port)
