"""The commands that serve over HTTP."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from modelyard.asgi import asgi_app, dashboard_app
from modelyard.cli.answers import tell
from modelyard.cli.terminal import (
    StoreName,
    named_factory,
    not_empty,
    opened,
    patiently,
    printable_store,
    store_option,
    try_artifacts,
)
from modelyard.cli.working import ENDED, executor_of, log_option
from modelyard.domain.identity import anonymous as anonymous_principal
from modelyard.domain.identity import host as host_principal
from modelyard.http.auth import is_loopback
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.parts.asked_models import offer_named
from modelyard.parts.server import forwarded
from modelyard.parts.server.bounds import Bounds
from modelyard.platform.platform import Platform
from modelyard.report.terminal import log_to_terminal

HEAD_SECONDS = Bounds().head_seconds
_STANDARD = ",".join(map(str, STANDARD))
GRACE_HELP = (
    "How long to serve on after SIGTERM, while /readyz says 503, so that load balancers send no more.  [default: 0]"
)
ROOT_HELP = "The path below which a proxy serves this, and which it takes off."
PROXY_HELP = (
    "Believe the X-Forwarded headers of this address or network: Prefix, For and Proto.  [default: this machine's]"
)
CACHE_HELP = (
    "What each local model may take for answers under way and the conversations that it keeps, such as 512MiB or "
    "4GiB.  [default: 1GiB; on a graphics card 40 % of what is free]"
)
_UNITS = {"MiB": 2**20, "GiB": 2**30}
_KNOWN = {interface.name: interface for interface in Interface}


def _checked(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def check(context: click.Context, option: click.Parameter, given: Any) -> Any:
        try:
            return getattr(forwarded, name)(given) if given else given
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return check


def _size(context: click.Context, option: click.Parameter, given: str | None) -> int | None:
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})(MiB|GiB)", given)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{given!r} is not a size such as 512MiB or 4GiB")
    return int(found[1]) * _UNITS[found[2]]


def _give_memory(platform: Platform, memory: int) -> None:
    base_models = getattr(platform, "base_models", None)
    if base_models is None:
        raise click.UsageError("--cache-memory is for local models, and this platform was opened without their part")
    base_models.give_memory(memory)


def _interfaces(context: click.Context, option: click.Parameter, given: str) -> tuple[Interface, ...]:
    names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in _KNOWN]
    if unknown:
        raise click.BadParameter(f"there is no interface {unknown[0]!r}; there are {', '.join(_KNOWN)}")
    return tuple(_KNOWN[name] for name in names)


@click.command()
@store_option
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--host", callback=not_empty, default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--worker", is_flag=True, help="Run training jobs in this process too.")
@click.option("--isolate", is_flag=True, help="Run each of them in a process of its own; implies --worker.")
@click.option(
    "--interfaces",
    default=_STANDARD,
    metavar="NAME,...",
    callback=_interfaces,
    help=f"What to serve, of {', '.join(_KNOWN)}.  [default: all but uploads]",
)
@click.option("--uploads", is_flag=True, help="Take training data from the W&B client too.")
@click.option("--dashboard", is_flag=True, help="Add the pages of the dashboard, at /dashboard.")
@click.option(
    "--anonymous",
    metavar="ENTITY",
    help="Let requests without an API key act for this entity; only on a loopback host.",
)
@click.option("--cors-origin", "origins", multiple=True, metavar="ORIGIN", help="Let pages of this origin use it.")
@click.option("--root-path", default="", metavar="PATH", callback=_checked("check_prefix"), help=ROOT_HELP)
@click.option(
    "--proxy", "proxies", multiple=True, metavar="ADDRESS", callback=_checked("check_proxies"), help=PROXY_HELP
)
@click.option("--grace", metavar="SECONDS", type=click.FloatRange(0), default=0, help=GRACE_HELP)
@click.option(
    "--head-timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=HEAD_SECONDS,
    help=f"How long the head of a request may take.  [default: {HEAD_SECONDS:g}]",
)
@click.option("--cache-memory", metavar="SIZE", callback=_size, help=CACHE_HELP)
@log_option
def serve(
    store: StoreName,
    models: tuple[str, ...],
    host: str,
    port: int,
    worker: bool,
    isolate: bool,
    interfaces: tuple[Interface, ...],
    uploads: bool,
    dashboard: bool,
    anonymous: str | None,
    origins: tuple[str, ...],
    root_path: str,
    proxies: tuple[str, ...],
    grace: float,
    head_timeout: float,
    cache_memory: int | None,
    log: str,
) -> None:
    """Serve the platform over HTTP until interrupted.

    Each MODEL that it does not offer yet is added first: one in the cache of a hub by its name, as in org/name, or the
    path of a folder or of a GGUF file. Nothing is fetched.
    """
    from modelyard.parts.server import uvicorn_server  # noqa: PLC0415 - the help needs no server

    run = uvicorn_server.run  # without uvicorn, this ends before it makes a store
    if anonymous is not None and not is_loopback(f"[{host}]" if ":" in host else host):
        raise click.UsageError(f"--anonymous is for a host that only this machine reaches; {host} is not one")
    with opened(store, must_exist=False, waits=True) as platform:
        try_artifacts(platform)
        for model in models:
            offer_named(platform, model)
        if cache_memory is not None:
            _give_memory(platform, cache_memory)
        log_to_terminal(log)
        if named_factory() is None and anonymous is None and not patiently(platform.keys.list):
            click.echo(
                f"No API key yet; make one: modelyard keys create --store {printable_store(store)} --entity local",
                err=True,
            )
        platform.prepare()
        interfaces += (_KNOWN["uploads"],) if uploads else ()
        executor = executor_of(platform, store, 1, isolate, log)
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
        app = forwarded.behind_proxy(app, root_path, proxies or forwarded.LOOPBACK)
        tell({"url": f"http://{host}:{port}", "store": printable_store(store)})
        with ending_with_workers(platform):
            run(app, host, port, grace, platform.health.leave, head_timeout)


@click.command()
@store_option
@click.option("--port", default=8001, show_default=True, type=click.IntRange(0, 65535))
def ui(store: StoreName, port: int) -> None:
    """Show the dashboard of a store on this machine, to read only.

    It needs no login, and runs until it is interrupted.
    """
    from modelyard.parts.server import uvicorn_server  # noqa: PLC0415 - the help needs no server

    run = uvicorn_server.run
    with opened(store) as platform:
        log_to_terminal("text")
        click.echo(f"Look at http://127.0.0.1:{port}/ ; Ctrl-C stops it", err=True)
        tell({"url": f"http://127.0.0.1:{port}/", "store": printable_store(store)})
        run(dashboard_app(platform, reader=host_principal()), "127.0.0.1", port)


@contextmanager
def ending_with_workers(platform: Platform) -> Iterator[None]:
    """Have a worker that fails interrupt the main thread, and raise `click.ClickException` then."""
    failed, main = list[str](), threading.main_thread().ident or 0

    def interrupt(worker_id: str) -> None:
        failed.append(worker_id)
        signal.pthread_kill(main, signal.SIGINT)

    platform.on_worker_failure(interrupt)
    try:
        yield
    finally:
        if failed:
            raise click.ClickException(ENDED.format(failed[0]))
