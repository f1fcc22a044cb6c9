"""The command that makes training data of stored answers."""

import re
import sys
from datetime import datetime
from typing import Any

import click

from modelyard.cli.terminal import StoreName, json_option, names_once, noted_entity, opened, show_fields, store_option
from modelyard.domain.worker import Resources
from modelyard.errors import JobFailed
from modelyard.parts.times import WORDS, moment_of

PROMPT = "Is this a good answer? Say yes or no.\n\nQuestion: {prompt}\n\nAnswer: {output}"


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(f"{text!r} is not like team=desk")
    return key, value


def _moment(text: str | None, name: str, now: datetime) -> datetime | None:
    try:
        return None if text is None else moment_of(text, now)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {WORDS}", param_hint=f"'--{name}'") from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as wrong:
        raise click.BadParameter(f"{text!r} is not a pattern: {wrong}") from None


@click.command()
@store_option
@click.argument("name")
@click.option("--model", help="Only what this answered: a model, project/name:prod, or variants/project/name@3.")
@click.option("--source", "sources", multiple=True, help="chat, responses or traces; repeat for more. All by default.")
@click.option("--since", metavar="TIME", help="Only from 2026-11-23 on, in UTC, or of the last 2h, 30d or 4w.")
@click.option("--until", metavar="TIME", help="Only before this date, time or age.")
@click.option(
    "--metadata", type=_pair, callback=names_once, multiple=True, metavar="KEY=VALUE", help="Only with these metadata."
)
@click.option("--score", metavar="PATH", help="Where feedback has a value, such as up; what has none is left out.")
@click.option("--judge", metavar="MODEL", help="A model that scores the answers, instead of --score.")
@click.option("--judge-prompt", default=PROMPT, metavar="TEXT", help="What it is asked, with {prompt} and {output}.")
@click.option("--judge-scale", type=click.Choice(["yes_no", "number"]), default="yes_no", help="What it answers.")
@click.option("--at-least", type=float, help="Only with a score of at least this.")
@click.option("--pairs", is_flag=True, help="Make preferences of the best and the worst answer to the same messages.")
@click.option(
    "--redact", multiple=True, metavar="KIND", help="Replace email, secret, card, ip or phone; repeat for more."
)
@click.option("--redact-pattern", "patterns", type=_pattern, multiple=True, help="Replace what this matches.")
@click.option("--holdout", type=float, default=0.0, help="Keep this part of the conversations apart, such as 0.1.")
@click.option("--limit", type=int, help="At most so many rows, the newest.")
@click.option("--project", help="Only of this project; the dataset is in it, else in the default one.")
@click.option("--entity", callback=noted_entity, help="Of this entity.")
@click.option("--train", metavar="MODEL", help="Train MODEL on them: by SFT, with --pairs by DPO.")
@click.option("--priority", type=int, help="From -1000 to 1000; the higher runs first, its training too.")
@click.option("--idempotency-key", metavar="KEY", help="The same command with the same KEY makes one job only.")
@click.option("--no-wait", is_flag=True, help="Leave the job to a worker, and print its id.")
@json_option
def collect(
    store: StoreName,
    name: str,
    sources: tuple[Any, ...],
    metadata: tuple[tuple[str, str], ...],
    redact: tuple[str, ...],
    patterns: tuple[re.Pattern[str], ...],
    judge: str | None,
    judge_prompt: str,
    judge_scale: str,
    train: str | None,
    no_wait: bool,
    idempotency_key: str | None,
    priority: int | None,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Collect stored answers into training data, and train on them.

    The rows of chat completions (store), responses and traced calls become the dataset NAME.
    """
    if sources:
        conditions["sources"] = sources
    if judge is not None:
        if conditions["score"] is not None:
            raise click.UsageError("give --score or --judge, not both")
        scale = {"prompt": judge_prompt, "scale": judge_scale}
        conditions["score"] = {"type": "llm_judge", "model": judge, **scale}
    with opened(store) as platform:
        now = platform.clock.now()
        conditions |= {name: _moment(conditions[name], name, now) for name in ("since", "until")}
        chosen = {**conditions, "metadata": dict(metadata), "redact": (*redact, *patterns)}
        needs: Resources = {} if priority is None else {"priority": priority}
        handle = platform.traffic.submit(name, train=train, needs=needs, idempotency_key=idempotency_key, **chosen)
        job, shown = handle.refresh(), dict[str, Any]()
        try:
            if not no_wait:
                job = handle.wait(progress=sys.stderr.isatty())
                shown = {
                    "train": job.train and job.train.url,
                    "rows": job.train.rows if job.train else 0,
                    "held_out": job.held_out and job.held_out.url,
                    "held_out_rows": job.held_out.rows if job.held_out else 0,
                    "left_out": ", ".join(f"{reason} {count}" for reason, count in job.left_out.items()),
                }
                if job.training_job_id is not None:
                    training = platform.training.job(job.training_job_id)
                    shown |= {"job": training.id, "step": training.result(progress=sys.stderr.isatty()).step}
        except JobFailed as failed:
            raise click.ClickException(f"{failed}; modelyard jobs show {failed.job_id} shows all") from failed
        show_fields({"collection": job.id, **shown}.items(), as_json)
