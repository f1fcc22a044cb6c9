"""The command that runs queued jobs, and the executors of served platforms."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from modelyard.cli.answers import tell
from modelyard.cli.terminal import (
    StoreName,
    named_artifacts,
    named_factory,
    opened,
    patiently,
    printable_store,
    store_option,
    try_artifacts,
)
from modelyard.executors.fork_server import can_fork
from modelyard.executors.isolating import IsolatingExecutor
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.lazy import log as logger
from modelyard.part import JobCluster, by_scheme, standard_parts
from modelyard.platform.platform import Platform
from modelyard.protocols import Executor
from modelyard.report.terminal import log_to_terminal

SLOW_TO_IMPORT = ("modelyard.stores.sqlite.store", "modelyard.platform.training.run")
"""What every training imports."""

CLUSTERS = by_scheme(standard_parts(), "clusters")
ON_HELP = f"Run each job in a cluster: {'; '.join(example for example, _ in CLUSTERS.values())}."


class ClusterType(click.ParamType):  # type: ignore[type-arg]  # generic since 8.4 alone
    """The type of `--on`: a cluster, still unchecked."""

    name = "cluster"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JobCluster:
        """Return the cluster of an address."""
        kind = str(value).partition(":")[0]
        if kind not in CLUSTERS:
            self.fail(f"{value!r} is none of {'; '.join(example for example, _ in CLUSTERS.values())}", param, ctx)
        try:
            cluster: JobCluster = CLUSTERS[kind][1](str(value))
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)
        return cluster


def check_cluster_options(store: StoreName | None, isolate: bool) -> None:
    """Raise `click.UsageError` for options that do not go with a cluster, and for a secret that it would show."""
    if isolate:
        raise click.UsageError("--isolate does not go with --on: in a cluster each job has a process of its own")
    if store is not None and printable_store(store) != str(store):
        raise click.UsageError(
            "the cluster would show the password in --store to its users: use a PGPASSFILE in its place, or --factory"
        )


ENDED = "worker {} has ended by itself: its log says why; start it again"

DEFAULT_FACTORY = "modelyard.compose:open_by_addresses"

log_option = click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How each line of the log is written: for people, or as a JSON object.",
)


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
    cluster: JobCluster | None,
    python: str,
    log: str,
) -> None:
    """Run queued jobs until interrupted; running jobs then return to the queue, or continue in their cluster."""
    factory = named_factory()
    if cluster is not None:
        check_cluster_options(None if factory else store, isolate)
        cluster.check()
    with ExitStack() as stack:
        platform = stack.enter_context(opened(store, must_exist=isinstance(store, Path), waits=True))
        try_artifacts(platform)
        log_to_terminal(log)
        platform.prepare()
        if cluster is None:
            executor = executor_of(platform, store, concurrency, isolate, log)
            accelerators = accelerators or 0
        else:
            executor = cluster.executor(factory or DEFAULT_FACTORY, _arguments(store), python, log)
        worker = platform.worker(concurrency, executor, accelerators=accelerators, memory=memory)
        patiently(lambda: stack.enter_context(worker))
        does = "waits for jobs" if cluster is None else f"submits jobs to {cluster.name}, where they outlive it"
        logger.info("worker %s %s; Ctrl-C stops it", worker.id, does)
        tell({"worker": worker.id})
        try:
            worker.ended.wait()
        except KeyboardInterrupt:
            logger.info("worker %s is stopping", worker.id)
        else:
            raise click.ClickException(ENDED.format(worker.id))


def executor_of(platform: Platform, store: StoreName, concurrency: int, isolate: bool, log: str) -> Executor:
    """Make an executor of processes that open the same platform, with what loads slowly loaded beforehand.

    Unless every job is to be isolated, those alone are that were in a process that died.
    """
    arguments, factory = _arguments(store), named_factory() or DEFAULT_FACTORY
    if not isolate:
        return IsolatingExecutor(ThreadExecutor(concurrency), SubprocessExecutor(factory, arguments, log=log))
    slow = platform.prepare()
    preload = (*slow, *SLOW_TO_IMPORT) if slow else ()
    return SubprocessExecutor(factory, arguments, preload=preload, fork=bool(preload) and can_fork(), log=log)


def _arguments(store: StoreName) -> list[str]:
    named = [] if named_factory() else [store, *filter(None, [named_artifacts()])]
    return [str(one) if "://" in str(one) else str(Path(one).absolute()) for one in named]
