"""The commands of watches: a scorer judges stored answers as they come."""

from itertools import islice
from typing import Any

import click

from modelyard.cli.evaluations import project_option, read_scorers
from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    in_own_name,
    json_option,
    not_empty,
    opened,
    show,
    show_values,
    store_option,
)
from modelyard.parts.review.service import Reviews
from modelyard.parts.review.watch_service import WatchedMean, Watches
from modelyard.parts.review.watches import Watch

LISTED = ("id", "project", "model", "scorer", "share", "purse", "spent", "state", "reason", "created_at")
DAYS = ("day", "run", "answers", "judged", "labelled", "mean", "low", "high", "reason")
MOST_LISTED = 1000


def _scorer(context: click.Context, parameter: click.Parameter, text: str) -> Any:
    return read_scorers(context, parameter, (not_empty(context, parameter, text),))[0]


@click.group(cls=Group)
def watches() -> None:
    """Judge a sample of stored answers as they come."""


@watches.command("start")
@store_option
@click.argument("model")
@click.argument("scorer", callback=_scorer)
@click.option("--share", default=0.01, show_default=True, type=float, help="The share of the answers that is judged.")
@click.option("--purse", default="1", show_default=True, help="What judging them may cost, in USD.")
@project_option
def start_watch(store: StoreName, model: str, scorer: Any, share: float, purse: str, project: str | None) -> Watch:
    """Let SCORER, a reference or JSON, judge a share of what MODEL answers; print the id of the watch."""
    with opened(store) as platform:
        of = _of(in_own_name(platform))
        made = of.start(model, scorer, share=share, purse=purse, project=project)
    click.echo(made.id)
    return made


@watches.command("list")
@store_option
@entity_option
@json_option
def list_watches(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List the newest watches and what they have spent."""
    with opened(store) as platform:
        show_values(as_json, LISTED, list(islice(_of(platform).list(entity=entity, order="desc"), MOST_LISTED)))


@watches.command("show")
@store_option
@click.argument("watch")
@json_option
def show_watch(store: StoreName, watch: str, as_json: bool) -> None:
    """Show the means of WATCH by day, corrected by labels."""
    with opened(store) as platform:
        show(as_json, DAYS, [_line(one) for one in _of(platform).days(watch)])


def _line(one: WatchedMean) -> tuple[object, ...]:
    found = one.mean.corrected
    low, high = (None, None) if found.interval is None else (found.interval.low, found.interval.high)
    return one.day, one.run_id, found.rows, found.judged, found.labelled, found.mean, low, high, one.mean.check.reason


@watches.command("stop")
@store_option
@click.argument("watch")
def stop_watch(store: StoreName, watch: str) -> Watch:
    """Judge no more for WATCH."""
    with opened(store) as platform:
        stopped = _of(platform).stop(watch)
    click.echo(stopped.reason)
    return stopped


@watches.command("delete")
@store_option
@click.argument("watch")
def delete_watch(store: StoreName, watch: str) -> Watch:
    """Delete WATCH; the runs with what it judged stay."""
    with opened(store) as platform:
        gone = _of(platform).delete(watch)
    click.echo(gone.id)
    return gone


def _of(platform: Any) -> Watches:
    reviews: Reviews = platform.part(Reviews)
    return reviews.watches
