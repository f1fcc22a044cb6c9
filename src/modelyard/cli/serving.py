"""Commands that run the quickstart and serve over HTTP."""

from pathlib import Path

import click

from modelyard import quickstart as quickstart_job
from modelyard.asgi import asgi_app
from modelyard.cli import uvicorn_server
from modelyard.cli.logs import log_option, log_to_terminal
from modelyard.cli.terminal import (
    PlaceType,
    StoreName,
    named_factory,
    opened,
    printable_store,
    store_option,
    try_artifacts,
)
from modelyard.cli.working import ending_with_workers, executor_of
from modelyard.domain.identity import anonymous as anonymous_principal
from modelyard.http.auth import is_loopback
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD

_STANDARD = ",".join(map(str, STANDARD))
_KNOWN = {interface.name: interface for interface in Interface}


def _interfaces(context: click.Context, option: click.Parameter, given: str) -> tuple[Interface, ...]:
    names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in _KNOWN]
    if unknown:
        raise click.BadParameter(f"there is no interface {unknown[0]!r}; there are {', '.join(_KNOWN)}")
    return tuple(_KNOWN[name] for name in names)


@click.command()
@click.argument("folder", type=PlaceType(file_okay=False), default=Path("quickstart"))
def quickstart(folder: Path) -> None:
    """Fine-tune, reinforce and evaluate a small model on real data, in seconds, in FOLDER (default: ./quickstart)."""
    quickstart_job.run(folder)


@click.command()
@store_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--worker", is_flag=True, help="Run training jobs in this process too.")
@click.option("--isolate", is_flag=True, help="Run each of them in a process of its own; implies --worker.")
@click.option(
    "--interfaces",
    default=_STANDARD,
    metavar="NAME,...",
    callback=_interfaces,
    help=f"What to serve, of {', '.join(_KNOWN)}.  [default: {_STANDARD}]",
)
@click.option("--uploads", is_flag=True, help="Take training data from the W&B client too.")
@click.option("--dashboard", is_flag=True, help="Add the pages of the dashboard, at /dashboard.")
@click.option(
    "--anonymous",
    metavar="ENTITY",
    help="Let requests without an API key act for this entity; only on a loopback host.",
)
@click.option("--cors-origin", "origins", multiple=True, metavar="ORIGIN", help="Let pages of this origin use it.")
@log_option
def serve(
    store: StoreName,
    host: str,
    port: int,
    worker: bool,
    isolate: bool,
    interfaces: tuple[Interface, ...],
    uploads: bool,
    dashboard: bool,
    anonymous: str | None,
    origins: tuple[str, ...],
    log: str,
) -> None:
    """Serve the platform over HTTP until interrupted."""
    if anonymous is not None and not is_loopback(f"[{host}]" if ":" in host else host):
        raise click.UsageError(f"--anonymous is for a host that only this machine reaches; {host} is not one")
    with opened(store, must_exist=False) as platform:
        try_artifacts(platform)
        log_to_terminal(log)
        if named_factory() is None and anonymous is None and not platform.keys.list():
            click.echo(
                f"No API key yet; make one: modelyard keys create --store {printable_store(store)} --entity local",
                err=True,
            )
        platform.prepare()
        interfaces += (_KNOWN["uploads"],) if uploads else ()
        executor = executor_of(platform, store, 1, isolate)
        working = worker or isolate
        app = asgi_app(
            platform,
            interfaces,
            working,
            executor=executor,
            cors_origins=origins,
            dashboard=dashboard,
            anonymous=None if anonymous is None else anonymous_principal(anonymous),
        )
        with ending_with_workers(platform):
            uvicorn_server.run(app, host, port)
