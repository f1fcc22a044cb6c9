"""The command that looks at the episodes of agents."""

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import StoreName, entity_option, json_option, opened, show_fields, show_values, store_option
from modelyard.parts.episodes.health import health_of
from modelyard.parts.episodes.service import Episodes
from modelyard.parts.episodes.tree import TreeTurn

GROUP = ("id", "name", "model", "size", "deadline", "closed_at", "job_id")
EPISODE = ("id", "place", "reward", "failure")


@click.group(cls=Group)
def episodes() -> None:
    """Look at the episodes of agents."""


@episodes.command("list")
@store_option
@entity_option
@click.option("--model", help="Only groups that train this model.")
@json_option
def list_groups(store: StoreName, entity: str | None, model: str | None, as_json: bool) -> None:
    """List the groups of episodes, the newest first."""
    with opened(store) as platform:
        show_values(as_json, GROUP, list(platform.part(Episodes).list(entity=entity, model=model, order="desc")))


@episodes.command("show")
@store_option
@click.argument("group")
@json_option
def show_group(store: StoreName, group: str, as_json: bool) -> None:
    """Show the episodes of GROUP, and whether they teach anything."""
    with opened(store) as platform:
        found = platform.part(Episodes).get(group)
        held_out = found.refresh().held_out
        attempts = [(one.refresh(), one.turns()) for one in found]
        show_values(as_json, EPISODE, [episode for episode, _ in attempts])
    if not as_json:
        for word in health_of(attempts, None, held_out=held_out).words:
            click.echo(word)


@episodes.command("replay")
@store_option
@click.argument("episode")
@json_option
def replay(store: StoreName, episode: str, as_json: bool) -> None:
    """Print what was said in EPISODE, turn by turn, and what of it is trained."""
    with opened(store) as platform:
        turns = platform.part(Episodes).episode(episode).turns()
    numbers = {one.id: number for number, one in enumerate(turns)}
    for one in turns:
        after = None if one.parent is None else numbers[one.parent.id]
        pairs = [("turn", numbers[one.id]), ("after", after), ("why", one.why), ("untrained", one.untrained)]
        said = [("added", _added(one)), ("answer", one.choice.message.text), ("tokens", len(one.ids))]
        show_fields(pairs + said, as_json)


def _added(one: TreeTurn) -> str:
    return "\n".join(f"{message.role}: {message.text}" for message in one.added)
