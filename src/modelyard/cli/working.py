"""The command that runs queued jobs, and the executors of served platforms."""

import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from modelyard.cli.logs import log_option, log_to_terminal
from modelyard.cli.terminal import StoreName, named_artifacts, named_factory, opened, store_option, try_artifacts
from modelyard.executors.fork_server import can_fork
from modelyard.executors.isolating import IsolatingExecutor
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.parts.clusters.cluster import ClusterExecutor
from modelyard.parts.clusters.commands import ON_HELP, CheckedCluster, ClusterType, check_cluster_options
from modelyard.platform.platform import Platform
from modelyard.protocols import Executor

SLOW_TO_IMPORT = (
    "modelyard.parts.torch.training.trainer",
    "transformers.modeling_utils",
    "modelyard.stores.sqlite.store",
    "modelyard.platform.training.run",
)

DEFAULT_FACTORY = "modelyard.compose:open_by_addresses"


@click.command()
@store_option
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 1000), help="Jobs at a time.")
@click.option("--accelerators", type=click.IntRange(0), help="How many this worker gives to its jobs; by default none.")
@click.option("--memory", type=click.IntRange(0), help="GiB that it gives to its jobs; by default any number.")
@click.option("--isolate", is_flag=True, help="Run each job in a process of its own.")
@click.option("--on", "cluster", type=ClusterType(), metavar="CLUSTER", help=ON_HELP)
@click.option("--python", default="python", show_default=True, help="Python on the machines of the cluster.")
@log_option
def work(
    store: StoreName,
    concurrency: int,
    accelerators: int | None,
    memory: int | None,
    isolate: bool,
    cluster: CheckedCluster | None,
    python: str,
    log: str,
) -> None:
    """Run queued jobs until interrupted; running jobs then return to the queue, or continue in their cluster."""
    factory = named_factory()
    if cluster is not None:
        check_cluster_options(None if factory else store, isolate)
        cluster.check()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        platform = stack.enter_context(opened(store))
        try_artifacts(platform)
        log_to_terminal(log)
        set_up_torch(platform)
        if cluster is None:
            executor = executor_of(platform, store, concurrency, isolate)
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


def set_up_torch(platform: Platform) -> None:
    """Set how many threads torch uses, and that no model hub is searched, before the libraries are loaded. Variables of
    the environment have precedence. Threads that spin while they wait cost a busy machine more than they gain."""
    models = platform.base_models()
    if models:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if models and all(base.small for base in models):
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def executor_of(platform: Platform, store: StoreName, concurrency: int, isolate: bool) -> Executor:
    """Make an executor of processes that open the same platform, with torch loaded beforehand if it is needed. Unless
    `isolate`, only jobs that were in a process that died are isolated."""
    arguments, factory = _arguments(store), named_factory() or DEFAULT_FACTORY
    if not isolate:
        return IsolatingExecutor(ThreadExecutor(concurrency), SubprocessExecutor(factory, arguments))
    preload = SLOW_TO_IMPORT if platform.base_models() else ()
    return SubprocessExecutor(factory, arguments, preload=preload, fork=bool(preload) and can_fork())


def _arguments(store: StoreName) -> list[str]:
    named = [] if named_factory() else [store, *filter(None, [named_artifacts()])]
    return [str(one) if "://" in str(one) else str(Path(one).absolute()) for one in named]
