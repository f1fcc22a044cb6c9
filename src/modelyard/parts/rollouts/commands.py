"""The commands of rollouts: start, list, show and stop them, and score answers."""

from itertools import islice
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
    opened,
    show_fields,
    show_values,
    store_option,
)
from modelyard.domain.promotion import NotWorse
from modelyard.errors import InvalidInput
from modelyard.parts.rollouts.service import CANARY, LEAST, THUMBS, StagedRollouts
from modelyard.platform.models.promotion import PROD

LISTED = ("id", "model", "alias", "baseline", "step", "state", "stage", "metric", "created_at")
STEPS = ("number", "stage", "change", "baseline_scores", "candidate_scores", "difference", "low", "high", "reason")
MOST_LISTED = 1000


def _limit(text: str) -> tuple[str, float]:
    name, _, most = text.partition("=")
    try:
        return name, float(most)
    except ValueError:
        raise click.BadParameter(f"{text[:100]!r} is not like errors=0.05") from None


_LIMITS: Any = {"multiple": True, "type": _limit, "callback": names_once, "metavar": "NAME=N"}


@click.group(cls=Group)
def rollouts() -> None:
    """Bring checkpoints and variants to the users of an alias in stages."""


@rollouts.command("start")
@store_option
@click.argument("model")
@click.argument("step", type=int)
@click.option("--alias", default=PROD, show_default=True, help="The alias whose users get the step.")
@click.option(
    "--canary", default=",".join(f"{one:g}" for one in CANARY), show_default=True, help="Shares of the users."
)
@click.option("--metric", default=THUMBS, show_default=True, help="What users score, from 0 to 1.")
@click.option("--margin", default=0.02, show_default=True, type=float, help="By how much it may be worse.")
@click.option("--confidence", default=0.95, show_default=True, type=float, help="How sure a decision must be.")
@click.option("--lower-is-better", is_flag=True, help="Lower scores are better.")
@click.option("--least", default=LEAST, show_default=True, type=int, help="Scores of each arm before a stage ends.")
@click.option("--also", help="The most of errors, p95 (seconds) or cost (USD).", **_LIMITS)
@click.option("--shadow", metavar="N|TIME", help="Mirror so many answers first, or for so long, such as 1h.")
@click.option("--shadow-share", default=0.1, show_default=True, type=float, help="The share of answers mirrored.")
@click.option("--purse", default="1", show_default=True, help="What mirrored answers may cost, in USD.")
def start_rollout(
    store: StoreName,
    model: str,
    step: int,
    alias: str,
    canary: str,
    metric: str,
    margin: float,
    confidence: float,
    lower_is_better: bool,
    least: int,
    also: tuple[tuple[str, float], ...],
    shadow: str | None,
    shadow_share: float,
    purse: str,
) -> object:
    """Bring STEP of MODEL, or a version of variants/PROJECT/NAME, to users in stages, and print the rollout's id."""
    limits = dict(also)
    lower = (metric,) if lower_is_better else ()
    guard = NotWorse(metric, margin=margin, confidence=confidence, lower_is_better=lower)
    mirrored = None if shadow is None else {**_mirrored(shadow), "share": shadow_share, "purse": purse}
    with opened(store) as platform:
        made = (
            in_own_name(platform)
            .part(StagedRollouts)
            .start(model, step, alias, canary=_shares(canary), guard=guard, least=least, also=limits, shadow=mirrored)
        )
        click.echo(made.id)
    return made


def _mirrored(text: str) -> dict[str, Any]:
    return {"answers": int(text)} if text.isascii() and text.isdecimal() else {"lasts": text}


def _shares(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise InvalidInput.at("canary", msg=f"must be such as 0.05,0.25,1, and is {text[:100]!r}") from None


@rollouts.command("list")
@store_option
@entity_option
@json_option
def list_rollouts(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List the newest rollouts and how far they are."""
    with opened(store) as platform:
        found = platform.part(StagedRollouts).list(entity=entity, order="desc")
        show_values(as_json, LISTED, list(islice(found, MOST_LISTED)))


@rollouts.command("show")
@store_option
@click.argument("rollout")
@json_option
def show_rollout(store: StoreName, rollout: str, as_json: bool) -> None:
    """Show what ROLLOUT has decided, and the looks between."""
    with opened(store) as platform:
        own = platform.part(StagedRollouts)
        one, found, steps = own.get(rollout), own.standing(rollout), list(islice(own.steps(rollout), MOST_LISTED))
    if as_json:
        decided = [attrs.asdict(step) for step in steps]
        show_fields(
            [
                ("rollout", attrs.asdict(one)),
                ("standing", attrs.asdict(found, filter=lambda field, _: field.name != "of")),
                ("steps", decided),
            ],
            as_json=True,
        )
        return
    click.echo(str(found))
    show_values(False, STEPS, steps)


@rollouts.command("score")
@store_option
@click.argument("request")
@click.argument("value", type=float)
@click.option("--metric", default=THUMBS, show_default=True, help="What is scored, from 0 to 1.")
def score_answer(store: StoreName, request: str, value: float, metric: str) -> object:
    """Keep VALUE, from 0 to 1, as a score of the answer to REQUEST."""
    with opened(store) as platform:
        made = platform.part(StagedRollouts).score(request, value, metric)
        click.echo(f"{made.side}: {made.metric} {made.value:g}")
    return made


@rollouts.command("stop")
@store_option
@click.argument("rollout")
@click.option("--reason", default="", help="Why, for who reads it later.")
def stop_rollout(store: StoreName, rollout: str, reason: str) -> object:
    """Stop ROLLOUT: all users get what they had before it."""
    with opened(store) as platform:
        stopped = in_own_name(platform).part(StagedRollouts).stop(rollout, reason)
        click.echo(f"{stopped.state}: {stopped.reason}" if stopped.reason else stopped.state.value)
    return stopped


@rollouts.command("delete")
@store_option
@click.argument("rollout")
def delete_rollout(store: StoreName, rollout: str) -> object:
    """Delete ROLLOUT, which has ended, with its answers and scores."""
    with opened(store) as platform:
        gone = platform.part(StagedRollouts).delete(rollout)
    click.echo(gone.id)
    return gone
