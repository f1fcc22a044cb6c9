"""Commands that compare several runs."""

from pathlib import Path
from typing import Any

import attrs
import click

from modelyard.cli.answers import tell
from modelyard.cli.evaluations import save_option
from modelyard.cli.names import run_named
from modelyard.cli.terminal import PlaceType, StoreName, opened, store_option
from modelyard.http.evaluations.comparison import show_comparison
from modelyard.parts.comparisons.sheet import checked_ending
from modelyard.report.evaluations.export import check_report_path


@click.command()
@store_option
@click.argument("runs", nargs=-1, required=True)
@click.option("--baseline", metavar="RUN", help="Compare each with this run only, and not all pairs.")
@click.option("--lower-is-better", multiple=True, metavar="METRIC", help="A metric of which less is better.")
@click.option("--cluster-by", metavar="FIELD", help="An input that related rows share.")
@click.option("--save", type=PlaceType(), metavar="FILE", help="Write a report: .html or .md.")
def compare(
    store: StoreName,
    runs: tuple[str, ...],
    baseline: str | None,
    lower_is_better: tuple[str, ...],
    cluster_by: str | None,
    save: Path | None,
) -> object:
    """Compare several runs in a table.

    All pairs are compared, or each run with a baseline. p is corrected for all of them.

    A run is an id, its last characters, an evaluation whose newest run it is, or EVALUATION@MODEL.
    """
    with opened(store) as platform:
        if save is not None:
            checked_ending(save)
        found = platform.evaluations.compare_all(
            [run_named(platform, one) for one in runs],
            None if baseline is None else run_named(platform, baseline),
            lower_is_better=lower_is_better,
            cluster_by=cluster_by,
        )
        click.echo(str(found))
        if save is not None:
            found.save(save)
    ids = {label: run.id for label, run in found.runs.items()}
    pairs = [{**attrs.asdict(one, recurse=False), "comparison": show_comparison(one.comparison)} for one in found.pairs]
    return {"runs": ids, "baseline": found.baseline, "pairs": pairs}


@click.command()
@store_option
@click.argument("baseline")
@click.argument("candidate")
@click.option("--lower-is-better", multiple=True, metavar="METRIC", help="A metric of which less is better.")
@click.option("--cluster-by", metavar="FIELD", help="An input that rows share, such as a text with several questions.")
@click.option("--not-worse", is_flag=True, help="Fail, with status 1, if the candidate is shown to be worse.")
@save_option
def compare_runs(
    store: StoreName,
    baseline: str,
    candidate: str,
    lower_is_better: tuple[str, ...],
    cluster_by: str | None,
    not_worse: bool,
    save: Path | None,
) -> None:
    """Compare two runs, row by row.

    The run CANDIDATE is compared with the run BASELINE.
    """
    with opened(store) as platform:
        before, after = run_named(platform, baseline), run_named(platform, candidate)
        if save is not None:
            check_report_path(save)
        options: Any = {"lower_is_better": lower_is_better, "cluster_by": cluster_by}
        report = platform.evaluations.compare(baseline=before, candidate=after, **options)
        click.echo(str(report))
        tell({"baseline": before.id, "candidate": after.id, **attrs.asdict(show_comparison(report.comparison))})
        if save is not None:
            report.save(save)
        if not_worse:
            try:
                platform.evaluations.assert_not_worse(baseline=before, candidate=after, **options)
            except AssertionError as worse:
                raise click.ClickException(str(worse)) from None
