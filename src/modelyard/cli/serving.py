"""Commands that run the quickstart, serve over HTTP, and run queued jobs."""

import logging
import os
import re
import signal
import sys
import threading
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import click

from modelyard import quickstart as quickstart_job
from modelyard.asgi import Application, asgi_app, dashboard_app
from modelyard.cli.clusters import ON_HELP, CheckedCluster, ClusterType, check_cluster_options
from modelyard.cli.terminal import (
    STORE_HELP,
    StoreName,
    StoreType,
    artifacts_option,
    named_artifacts,
    opened,
    printable_store,
    store_option,
)
from modelyard.domain.identity import host as host_principal
from modelyard.errors import MissingExtra
from modelyard.executors.cluster import ClusterExecutor
from modelyard.executors.fork_server import can_fork
from modelyard.executors.isolating import IsolatingExecutor
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.http.route import STANDARD, Interface
from modelyard.platform.platform import Platform
from modelyard.protocols import Executor
from modelyard.report.terminal import PlainFormatter
from modelyard.worker import platform_of

GRACE_SECONDS = 10
"""How long streams may continue when the server is stopped: their clients may have stopped reading."""

SLOW_TO_IMPORT = (
    "modelyard.engines.torch.training.trainer",
    "transformers.modeling_utils",
    "modelyard.stores.sqlite.store",
    "modelyard.platform.training.run",
)
"""What training a local model of any architecture imports: seconds of processor time."""

_ADDRESS = re.compile(r"(/uploads/(?:files|manifests)/)[^/?\s]+")

DEFAULT_FACTORY = "modelyard.compose:open_by_addresses"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("quickstart"))
def quickstart(folder: Path) -> None:
    """Fine-tune, reinforce and evaluate a small model on real data, in seconds, in FOLDER (default: ./quickstart)."""
    quickstart_job.run(folder)


@click.command()
@store_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--worker", is_flag=True, help="Run training jobs in this process too.")
@click.option("--isolate", is_flag=True, help="Run each of them in a process of its own; implies --worker.")
@click.option("--uploads", is_flag=True, help="Take training data from the W&B client too.")
@click.option("--dashboard", is_flag=True, help="Add the pages of the dashboard, at /dashboard.")
@click.option("--cors-origin", "origins", multiple=True, metavar="ORIGIN", help="Let pages of this origin use it.")
def serve(
    store: StoreName,
    host: str,
    port: int,
    worker: bool,
    isolate: bool,
    uploads: bool,
    dashboard: bool,
    origins: tuple[str, ...],
) -> None:
    """Serve the platform over HTTP until interrupted."""
    _log_to_terminal()
    with opened(store, must_exist=False) as platform:
        if not platform.keys.list():
            click.echo(
                f"No API key yet; make one: modelyard keys create --store {printable_store(store)} --entity local",
                err=True,
            )
        _set_up_torch(platform)
        interfaces = tuple(Interface) if uploads else STANDARD
        executor = _executor(platform, store, None, 1, isolate)
        working = worker or isolate
        app = asgi_app(platform, interfaces, working, executor=executor, cors_origins=origins, dashboard=dashboard)
        _run_server(app, host, port)


@click.command()
@store_option
@click.option("--port", default=8001, show_default=True, type=click.IntRange(0, 65535))
def ui(store: StoreName, port: int) -> None:
    """Show the dashboard of a store on this machine, to read only and without a login, until interrupted."""
    _log_to_terminal()
    with opened(store) as platform:
        click.echo(f"Look at http://127.0.0.1:{port}/ ; Ctrl-C stops it", err=True)
        _run_server(dashboard_app(platform, reader=host_principal()), "127.0.0.1", port)


def _run_server(app: Application, host: str, port: int) -> None:
    try:
        import uvicorn  # noqa: PLC0415 - an extra that only these commands need
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve") from error
    uvicorn.run(app, host=host, port=port, log_level="info", timeout_graceful_shutdown=GRACE_SECONDS)


@click.command()
@click.option("--store", type=StoreType(), metavar="FILE|ADDRESS", help=STORE_HELP)
@artifacts_option
@click.option("--factory", metavar="MODULE:FUNCTION", help="Code that returns your own platform, instead of --store.")
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 1000), help="Jobs at a time.")
@click.option("--accelerators", type=click.IntRange(0), help="How many this worker gives to its jobs; by default none.")
@click.option("--memory", type=click.IntRange(0), help="GiB that it gives to its jobs; by default any number.")
@click.option("--isolate", is_flag=True, help="Run each job in a process of its own.")
@click.option("--on", "cluster", type=ClusterType(), metavar="CLUSTER", help=ON_HELP)
@click.option("--python", default="python", show_default=True, help="Python on the machines of the cluster.")
def work(
    store: StoreName | None,
    factory: str | None,
    concurrency: int,
    accelerators: int | None,
    memory: int | None,
    isolate: bool,
    cluster: CheckedCluster | None,
    python: str,
) -> None:
    """Run queued jobs until interrupted; running jobs then return to the queue, or continue in their cluster."""
    if (store is None) is (factory is None):
        raise click.UsageError("give either --store or --factory")
    if cluster is not None:
        check_cluster_options(store, isolate)
        cluster.check()
    if factory is not None and named_artifacts() is not None:
        raise click.UsageError("--artifacts goes with --store; a factory opens its own artifacts")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _log_to_terminal()
    with ExitStack() as stack:
        platform = stack.enter_context(_worked(store, factory))
        _set_up_torch(platform)
        if cluster is None:
            executor = _executor(platform, store, factory, concurrency, isolate)
            accelerators = accelerators or 0
        else:
            executor = ClusterExecutor(cluster, factory or DEFAULT_FACTORY, _arguments(store), python=python)
        worker = stack.enter_context(platform.worker(concurrency, executor, accelerators=accelerators, memory=memory))
        does = "waits for jobs" if cluster is None else f"submits jobs to {cluster.name}, where they outlive it"
        click.echo(f"worker {worker.id} {does}; Ctrl-C stops it", err=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("stopping", err=True)


def _log_to_terminal() -> None:
    """Log to standard error, where error messages direct a job's owner."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn.access").addFilter(without_addresses)


def without_addresses(record: logging.LogRecord) -> bool:
    """Take the secrets of upload addresses out of a line of the access log, which is kept."""
    if isinstance(record.args, tuple):
        record.args = tuple(_ADDRESS.sub(r"\1***", one) if isinstance(one, str) else one for one in record.args)
    return True


def _set_up_torch(platform: Platform) -> None:
    """Set, for libraries that are not loaded yet, how many threads torch uses, and that no model hub is searched.

    Variables that the environment already has stay. Threads that spin while they wait cost a busy machine more than
    they gain.
    """
    models = platform.base_models()
    if models:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if models and all(base.small for base in models):
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _executor(
    platform: Platform, store: StoreName | None, factory: str | None, concurrency: int, isolate: bool
) -> Executor:
    """Make an executor of processes that open the same platform, with torch loaded beforehand if it is needed.

    Unless every job is to be isolated, those alone are that were in a process that died.
    """
    arguments, factory = _arguments(store), factory or DEFAULT_FACTORY
    if not isolate:
        return IsolatingExecutor(ThreadExecutor(concurrency), SubprocessExecutor(factory, arguments))
    preload = SLOW_TO_IMPORT if platform.base_models() else ()
    return SubprocessExecutor(factory, arguments, preload=preload, fork=bool(preload) and can_fork())


def _arguments(store: StoreName | None) -> list[str]:
    """Return what opens the same platform in another process, which may run in another folder."""
    named = [] if store is None else [store, *filter(None, [named_artifacts()])]
    return [str(one) if "://" in str(one) else str(Path(one).absolute()) for one in named]


def _worked(store: StoreName | None, factory: str | None) -> AbstractContextManager[Platform]:
    if store is not None:
        return opened(store)
    sys.path.insert(0, "")  # as `python -m` does: the factory may lie in the working directory
    return platform_of(str(factory))
