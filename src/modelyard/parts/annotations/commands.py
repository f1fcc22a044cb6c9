"""The command for tags and notes."""

import click

from modelyard.cli.names import RUN_HELP, run_named
from modelyard.cli.terminal import StoreName, json_option, opened, show_fields, store_option
from modelyard.errors import NotFound
from modelyard.platform.platform import Platform


@click.command(epilog=RUN_HELP)
@store_option
@click.argument("subject")
@click.option("--tag", "tags", multiple=True, help="Add this tag; repeat for more.")
@click.option("--untag", "removed", multiple=True, help="Remove this tag; repeat for more.")
@click.option("--note", help="Replace the note; an empty one removes it.")
@json_option
def annotate(
    store: StoreName, subject: str, tags: tuple[str, ...], removed: tuple[str, ...], note: str | None, as_json: bool
) -> None:
    """Tag a job, a run, a model or a checkpoint, or write a note on it.

    Both are shown; without an option nothing is changed. SUBJECT is a job's id, a run (RUN), a model (project/name),
    or a checkpoint (project/name:step3, project/name:prod).
    """
    with opened(store) as platform:
        named, annotations = _subject(platform, subject), platform.annotations
        if tags:
            annotations.add_tags(named, *tags)
        if removed:
            annotations.remove_tags(named, *removed)
        found = annotations.get(named) if note is None else annotations.set(named, note=note)
    pairs = [("subject", found.subject), ("kind", found.kind), ("tags", list(found.tags)), ("note", found.note)]
    show_fields(pairs if as_json else [(name, _shown(value)) for name, value in pairs], as_json)


def _subject(platform: Platform, text: str) -> str:
    """Return the name of a subject in Python: in commands, a run has a name that stands for its id."""
    try:
        return platform.annotations.get(text).subject
    except NotFound:
        if "/" in text:
            raise
    return run_named(platform, text).id


def _shown(value: object) -> object:
    return ", ".join(value) if isinstance(value, list) else value
