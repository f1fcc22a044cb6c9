"""The commands of reviews: draw rows, label them, and see what judges are worth."""

import csv
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard.cli.answers import tell
from modelyard.cli.lazy_group import Group
from modelyard.cli.names import RUN_HELP, run_named
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    in_own_name,
    json_option,
    opened,
    show,
    show_fields,
    show_values,
    store_option,
)
from modelyard.errors import InvalidInput
from modelyard.parts.review.estimates import JudgedVerdict, verdict_text
from modelyard.parts.review.labels import RowToLabel
from modelyard.parts.review.records import Review
from modelyard.parts.review.service import Reviews
from modelyard.parts.review.table_file import label_of, label_text, number_text
from modelyard.platform.models.promotion import PROD
from modelyard.report.table import printable

LISTED = ("id", "project", "run_id", "scorer", "size", "population", "created_at")
STOP = "q"
MOST_LISTED = 1000

_scorer_option = click.option("--scorer", help="The scorer, by its name or reference; the run's first by default.")
_margin_option = click.option(
    "--margin", default=0.05, show_default=True, type=float, help="By how much it may be worse."
)
_lower_option = click.option("--lower-is-better", is_flag=True, help="Lower values are better.")
_cluster_option = click.option("--cluster-by", metavar="FIELD", help="An input that rows share which go together.")
_person = click.argument("person")


@click.group(cls=Group)
def review() -> None:
    """Label rows of runs, and correct judges by that."""


@review.command("start", epilog=RUN_HELP)
@store_option
@click.argument("run")
@_scorer_option
@click.option("--rows", default=100, show_default=True, type=int, help="How many rows to draw.")
@click.option("--seed", default=0, show_default=True, type=int, help="The same draws the same rows of other runs.")
@click.option("--by-score", is_flag=True, help="Draw about as many rows of each score.")
def start_review(store: StoreName, run: str, scorer: str | None, rows: int, seed: int, by_score: bool) -> object:
    """Draw rows of RUN to label, and print the id of the review."""
    with opened(store) as platform:
        found = run_named(platform, run)
        reviews = in_own_name(platform).part(Reviews)
        started = reviews.start(found, scorer, rows=rows, seed=seed, by_score=by_score)
    click.echo(started.id)
    return started


@review.command("list")
@store_option
@entity_option
@json_option
def list_reviews(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List the newest reviews and what they label."""
    with opened(store) as platform:
        found = platform.part(Reviews).list(entity=entity, order="desc")
        show_values(as_json, LISTED, list(islice(found, MOST_LISTED)))


@review.command("label")
@store_option
@click.argument("review")
@_person
def label_rows(store: StoreName, review: str, person: str) -> object:
    """Label the rows of REVIEW as PERSON, one after the other, until q."""
    with opened(store) as platform:
        reviews = platform.part(Reviews)
        found = reviews.get(review)
        labelled = 0
        while (row := reviews.next(review, person)) is not None:
            click.echo(_text(found, row))
            said = click.prompt(_question(found), prompt_suffix=" ", err=True)
            if said.strip() == STOP:
                break
            try:
                reviews.label(review, person, row.place, label_of(found, said))
                labelled += 1
            except InvalidInput as wrong:
                click.echo(str(wrong), err=True)
        else:
            click.echo("every row is labelled")
    return {"review": review, "person": person, "labelled": labelled, "done": row is None}


def _question(found: Review) -> str:
    choices = "yes, no" if found.yes_no else ", ".join(map(number_text, found.choices)) or "a number"
    return f"{choices}, ? if you cannot say, q to stop:"


def _text(found: Review, row: RowToLabel) -> str:
    inputs = "\n".join(f"{name}: {printable(str(value))}" for name, value in row.inputs.items())
    return f"\nrow {row.place} of {found.size}\n{inputs}\n\n{printable(str(row.output))}\n"


@review.command("export")
@store_option
@click.argument("review")
@_person
def export_labels(store: StoreName, review: str, person: str) -> object:
    """Print the rows of REVIEW for PERSON to label as CSV."""
    with opened(store) as platform:
        written = platform.part(Reviews).write_csv(review, person)
    click.echo(written, nl=False)
    return list(csv.DictReader(written.splitlines(keepends=True)))


@review.command("import")
@store_option
@click.argument("review")
@_person
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
def import_labels(store: StoreName, review: str, person: str, file: Path) -> object:
    """Keep the labels of PERSON from a CSV FILE, all or none."""
    text = file.read_bytes().decode("utf-8", errors="replace")
    with opened(store) as platform:
        kept = platform.part(Reviews).read_csv(review, person, text)
    click.echo(f"{kept} labels")
    return {"review": review, "person": person, "labels": kept}


@review.command("disagreements")
@store_option
@click.argument("review")
@click.option("--person", required=True, help="Who reads them, and has labelled every row.")
@json_option
def list_disagreements(store: StoreName, review: str, person: str, as_json: bool) -> None:
    """List the rows of REVIEW of which people, or people and the judge, say different things."""
    with opened(store) as platform:
        reviews = platform.part(Reviews)
        found, every = reviews.get(review), reviews.disagreements(review, person)
    people = sorted({name for one in every for name in one.labels})
    lines = [
        [
            one.place,
            label_text(found, one.verdict),
            *(label_text(found, one.labels[name]) if name in one.labels else "" for name in people),
        ]
        for one in every
    ]
    show(as_json, ("row", "judge", *people), lines)


@review.command("estimate", epilog=RUN_HELP)
@store_option
@click.argument("run")
@_scorer_option
@_cluster_option
@json_option
def estimate(store: StoreName, run: str, scorer: str | None, cluster_by: str | None, as_json: bool) -> None:
    """Show the mean of RUN, corrected by labels, and how far its judge and people agree."""
    with opened(store) as platform:
        found = platform.part(Reviews).estimate(run_named(platform, run), scorer, cluster_by=cluster_by)
    if as_json:
        show_fields([("corrected", attrs.asdict(found.corrected)), ("checked", found.check.checked)], as_json=True)
    else:
        click.echo(f"{found}\n{found.check}")


@review.command("compare", epilog=RUN_HELP)
@store_option
@click.argument("baseline")
@click.argument("candidate")
@_scorer_option
@_margin_option
@_lower_option
@_cluster_option
@click.option("--not-worse", is_flag=True, help="Fail, with status 1, unless it is shown to be no worse than that.")
def compare(
    store: StoreName,
    baseline: str,
    candidate: str,
    scorer: str | None,
    margin: float,
    lower_is_better: bool,
    cluster_by: str | None,
    not_worse: bool,
) -> None:
    """Compare the run CANDIDATE with the run BASELINE, corrected by labels of both."""
    with opened(store) as platform:
        runs = run_named(platform, baseline), run_named(platform, candidate)
        kept: Any = {"lower_is_better": lower_is_better, "cluster_by": cluster_by}
        found = platform.part(Reviews).compare(*runs, scorer, **kept)
    verdict = found.verdict(margin)
    click.echo(f"{verdict} (margin {margin:g}): {found}")
    tell({"verdict": verdict, "margin": margin, "corrected": found.corrected, "checked": found.check.checked})
    if not_worse and verdict is not JudgedVerdict.NOT_WORSE:
        raise click.ClickException(str(verdict))


@review.command("promote")
@store_option
@click.argument("name")
@click.argument("number", type=int)
@click.option("--alias", default=PROD, show_default=True, help="What points at it then.")
@click.option("--not-worse", "evaluation", metavar="EVALUATION", required=True, help="What both must have run.")
@_margin_option
@_scorer_option
@_lower_option
def promote(
    store: StoreName,
    name: str,
    number: int,
    alias: str,
    evaluation: str,
    margin: float,
    scorer: str | None,
    lower_is_better: bool,
) -> Mapping[str, Any]:
    """Promote the step NUMBER of the model NAME, or the version NUMBER of variants/PROJECT/NAME, if labels allow it."""
    with opened(store) as platform:
        kept: Any = {"alias": alias, "lower_is_better": lower_is_better}
        made = in_own_name(platform).part(Reviews).promote(name, number, evaluation, margin, scorer, **kept)
    click.echo(f"{alias} points at {number}{verdict_text(made.verdict)}")
    return {"alias": alias, "number": number, "verdict": made.verdict}


@review.command("delete")
@store_option
@click.argument("review")
def delete_review(store: StoreName, review: str) -> object:
    """Delete REVIEW with its labels."""
    with opened(store) as platform:
        gone = platform.part(Reviews).delete(review)
    click.echo(gone.id)
    return gone
