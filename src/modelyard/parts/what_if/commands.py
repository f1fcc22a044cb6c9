"""The commands that ask stored traffic: what it costs, then what would have been."""

import json
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    in_own_name,
    json_option,
    names_once,
    noted_entity,
    opened,
    show_fields,
    show_values,
    store_option,
)
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.rollouts.service import THUMBS
from modelyard.parts.traffic.commands import PROMPT
from modelyard.parts.what_if.records import ANSWERS, ASKS, NOTHING
from modelyard.parts.what_if.result import WhatIf
from modelyard.parts.what_if.service import AskTraffic

LISTED = ("id", "model", "asks", "budget", "spent", "created_at")
MOST_LISTED = 1000


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(f"{text!r} is not like team=desk")
    return key, value


@click.group("what-if", cls=Group)
def what_if() -> None:
    """Ask what stored traffic would have been like."""


@what_if.command("ask")
@store_option
@click.argument("model", required=False)
@click.option("--since", metavar="TIME", help="Only from 2026-11-23 on, in UTC, or of the last 2h, 30d or 4w.")
@click.option("--until", metavar="TIME", help="Only before this date, time or age.")
@click.option("--asks", type=click.Choice(ASKS), default=ANSWERS, show_default=True, help="What MODEL is asked for.")
@click.option("--judge", metavar="MODEL", help="A model that scores the served and the new answers.")
@click.option("--judge-prompt", default=PROMPT, metavar="TEXT", help="What it is asked, with {prompt} and {output}.")
@click.option("--judge-scale", type=click.Choice(["yes_no", "number"]), default="yes_no", help="What it answers.")
@click.option("--prices", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Other prices, as JSON.")
@click.option("--metric", default=THUMBS, show_default=True, help="What users scored, from 0 to 1.")
@click.option("--answered-by", metavar="MODEL", help="Ask again only what this model or checkpoint answered.")
@click.option("--source", "sources", multiple=True, help="chat, responses or traces; repeat for more. All by default.")
@click.option(
    "--metadata", type=_pair, callback=names_once, multiple=True, metavar="KEY=VALUE", help="Only with these metadata."
)
@click.option("--limit", type=int, help="Ask at most so many again, the newest.")
@click.option("--max-tokens", type=int, help="How long new answers may become.")
@click.option("--budget", metavar="USD", help="Spend at most so much, and do not ask.")
@click.option("--yes", is_flag=True, help="Do not ask whether to spend what is estimated.")
@click.option("--estimate", "only_estimate", is_flag=True, help="Only say what asking would cost.")
@click.option("--project", help="Only of this project.")
@click.option("--entity", callback=noted_entity, help="Of this entity.")
@json_option
def ask_traffic(
    store: StoreName,
    model: str | None,
    judge: str | None,
    judge_prompt: str,
    judge_scale: str,
    prices: Path | None,
    sources: tuple[Any, ...],
    metadata: tuple[tuple[str, str], ...],
    max_tokens: int | None,
    budget: str | None,
    yes: bool,
    only_estimate: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Ask what stored traffic would have been like.

    MODEL would have answered; without it only prices are others. What asking costs is estimated first, and nothing is
    spent without --yes, --budget or your word.
    """
    chosen = {**asked, "model": model, "metadata": dict(metadata)}
    chosen |= {"sources": sources} if sources else {}
    chosen |= {"options": {"max_tokens": max_tokens}} if max_tokens is not None else {}
    if judge is not None:
        chosen["judge"] = {"type": "llm_judge", "model": judge, "prompt": judge_prompt, "scale": judge_scale}
    if prices is not None:
        chosen["prices"] = _read(prices)
    with opened(store) as platform:
        own = in_own_name(platform).part(AskTraffic)
        spends = model is not None and asked["asks"] != NOTHING
        if spends or only_estimate:
            estimate = own.estimate(**chosen)
            if only_estimate:
                show_fields([*attrs.asdict(estimate).items(), ("total", estimate.total)], as_json)
                return
            click.echo(str(estimate), err=True)
            if not (yes or budget):
                click.confirm("Spend this, and at most half more?", abort=True, err=True)
        try:
            found = own(**chosen, budget=budget, progress=sys.stderr.isatty())
        except JobFailed as failed:
            raise click.ClickException(f"{failed}; modelyard jobs show {failed.job_id} shows all") from failed
        _show(found, as_json)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as wrong:
        raise InvalidInput.at("prices", msg=f"must be a JSON file of prices by model: {wrong}") from None


def _show(found: WhatIf, as_json: bool) -> None:
    if not as_json:
        click.echo(str(found))
        return
    names = ("id", "model", "status", "reason", "estimate", "repriced", "answers", "feedback")
    values = {name: getattr(found, name) for name in names}
    shown = {name: attrs.asdict(one) if attrs.has(type(one)) else one for name, one in values.items()}
    show_fields(shown.items(), as_json=True)


@what_if.command("list")
@store_option
@entity_option
@json_option
def list_what_ifs(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List what was asked, and what it has spent."""
    with opened(store) as platform:
        show_values(as_json, LISTED, list(islice(platform.part(AskTraffic).list(entity=entity), MOST_LISTED)))


@what_if.command("show")
@store_option
@click.argument("question")
@json_option
def show_what_if(store: StoreName, question: str, as_json: bool) -> None:
    """Show what came of QUESTION, an id, so far."""
    with opened(store) as platform:
        _show(platform.part(AskTraffic).get(question), as_json)


@what_if.command("cancel")
@store_option
@click.argument("question")
def cancel_what_if(store: StoreName, question: str) -> Mapping[str, Any]:
    """End the asking of QUESTION; what came of it stays."""
    with opened(store) as platform:
        found = in_own_name(platform).part(AskTraffic).cancel(question)
    click.echo(found.status)
    return {"id": found.id, "status": found.status}


@what_if.command("delete")
@store_option
@click.argument("question")
def delete_what_if(store: StoreName, question: str) -> Mapping[str, Any]:
    """Delete QUESTION, which has ended, with its rows."""
    with opened(store) as platform:
        gone = platform.part(AskTraffic).delete(question)
    click.echo(gone.id)
    return {"id": gone.id, "model": gone.model, "spent": gone.spent}
