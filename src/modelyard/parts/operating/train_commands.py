"""Commands that train a model."""

import sys
from contextlib import suppress
from typing import Any

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import values_option
from modelyard.cli.terminal import C, StoreName, not_empty, opened, store_option
from modelyard.domain.job import JobKind
from modelyard.errors import Conflict, JobFailed
from modelyard.report.terminal import log_to_terminal


def _training(command: C) -> C:
    for option in (
        click.option("--idempotency-key", metavar="KEY", help="The same command with the same KEY makes one job only."),
        click.option("--no-wait", is_flag=True, help="Leave the job to a worker, and return its id."),
        values_option("A setting of the method, such as learning_rate=1e-4; repeat for more."),
        click.option("--priority", type=int, help="From -1000 to 1000; the higher runs first."),
        click.option("--base-model", help="Make MODEL from this base model, if there is none of that name."),
        click.argument("data", callback=not_empty),
        click.argument("model", callback=not_empty),
        store_option,
    ):
        command = option(command)
    data = "DATA is a file, or the URL of a data set, such as modelyard:///local/desk/rooms-train:v0."
    command.__doc__ = f"{command.__doc__}\n\n{data}"
    return command


@click.group(cls=Group)
def train() -> None:
    """Train MODEL ([entity/]project/name, or an id) on DATA, a file or the URL of a dataset."""


@train.command()
@_training
def sft(**given: Any) -> object:
    """Fine-tune MODEL on examples: {"messages": [...]} on each line."""
    return _train(JobKind.SFT, **given)


@train.command()
@_training
def dpo(**given: Any) -> object:
    """Train MODEL to prefer answers: {"messages": [...], "chosen": ..., "rejected": ...} on each line."""
    return _train(JobKind.DPO, **given)


@train.command()
@_training
def distill(**given: Any) -> object:
    """Train MODEL to answer as its teacher: trajectories with the teacher's logprobs, one on each line."""
    return _train(JobKind.DISTILL, **given)


@train.command()
@_training
def rl(**given: Any) -> object:
    """Train MODEL on rewards: {"trajectories": [{"messages_and_choices": [...], "reward": ...}, ...]} on each line."""
    return _train(JobKind.RL, **given)


def _train(
    kind: str,
    store: StoreName,
    model: str,
    data: str,
    base_model: str | None,
    options: tuple[tuple[str, Any], ...],
    no_wait: bool,
    idempotency_key: str | None,
    priority: int | None,
) -> object:
    with opened(store, must_exist=base_model is None) as platform:
        made = None
        if base_model is not None:
            place, _, name = model.rpartition("/")
            entity, _, project = place.rpartition("/")
            with suppress(Conflict):  # there is one of that name
                made = platform.models.create(
                    name, project=project or None, entity=entity or None, base_model=base_model
                )
        try:
            more: Any = {
                "needs": {} if priority is None else {"priority": priority},
                "idempotency_key": idempotency_key,
            }
            job = platform.training.submit(kind, model, data, dict(options), **more)
        except Exception as wrong:
            if made is not None:
                platform.models.delete(made)
            if isinstance(wrong, TypeError):  # an option that the method lacks, or a value of another type
                raise click.UsageError(str(wrong)) from wrong
            raise
        if no_wait:
            click.echo(job.id)
            return {"job": job.id}
        try:
            log_to_terminal()
            checkpoint = job.result(progress=sys.stderr.isatty())
        except JobFailed as failed:
            raise click.ClickException(f"{failed}; modelyard jobs show {job.id} shows all") from failed
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in sorted(checkpoint.metrics.items()))
    click.echo(f"{model} is at step {checkpoint.step}  {metrics}".rstrip())
    return {"job": job.id, "model": model, "step": checkpoint.step, "metrics": checkpoint.metrics}
