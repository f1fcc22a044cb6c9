"""Commands that evaluate models, and show, compare and export the runs."""

import json
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import RUN_HELP, project_of, run_named, values_option
from modelyard.cli.terminal import PlaceType, StoreName, json_option, opened, show, show_fields, store_option
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.scorer_rules import RULES, rule_of
from modelyard.errors import InvalidInput
from modelyard.report.evaluations.export import check_report_path
from modelyard.report.numbers import id_text, model_text, ref_text, run_title, score_text, scorer_text
from modelyard.report.terminal import log_to_terminal

project_option = click.option("--project", help="The project; by default that of the platform.")
save_option = click.option(
    "--save", type=PlaceType(), metavar="FILE", help="Write a report: .html, .md, .xml (JUnit) or data."
)

RUN_COLUMNS = ("run", "evaluation", "model", "project", "state", "scorer", "score", "started")


def read_scorers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[Any]:
    try:
        for kind in RULES.keys() & texts:
            rule_of({"type": kind})
        return [json.loads(text) if text.startswith("{") else text for text in texts]
    except (InvalidInput, ValueError, RecursionError) as wrong:
        raise click.BadParameter(f'{wrong}; with fields it is JSON: \'{{"type": "llm_judge", ...}}\'') from None


@click.command()
@store_option
@click.argument("evaluation")
@click.argument("models", nargs=-1, required=True)
@click.option(
    "--rows", metavar="FILE", help="A file of rows (.csv, else JSON Lines), or a dataset; else it is published."
)
@click.option(
    "--scorer", "scorers", multiple=True, callback=read_scorers, metavar="TYPE|JSON", help="Repeat it for more."
)
@click.option("--system", help="The system message of each row; {name} stands for a field of the row.")
@click.option("--prompt", help="What the user asks in each row; {name} stands for a field of the row.")
@click.option("--trials", type=click.IntRange(1), help="How often each row is answered.")
@click.option("--concurrency", type=click.IntRange(1), help="How many rows are under way at once.")
@click.option("--shards", type=click.IntRange(1), help="Split the rows into so many jobs for workers.")
@values_option("Of the run or of its completions, such as temperature=0, seed=1, max_tokens=64 or retries=2.")
@click.option("--priority", type=int, help="From -1000 to 1000: the higher, the earlier each of these jobs runs.")
@project_option
@click.option("--not-worse-than", metavar="RUN", help="Fail, with status 1, if a model is shown to be worse than this.")
@save_option
@json_option
def evaluate(
    store: StoreName,
    evaluation: str,
    models: tuple[str, ...],
    rows: str | None,
    scorers: list[Any],
    system: str | None,
    prompt: str | None,
    trials: int | None,
    concurrency: int | None,
    shards: int | None,
    options: tuple[tuple[str, Any], ...],
    priority: int | None,
    project: str | None,
    not_worse_than: str | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Evaluate MODELS by EVALUATION, each in a run of its own, and print their scores.

    EVALUATION is the name of a published one, or with --rows a name for this one.
    """
    given: dict[str, Any] = {"trials": trials, "concurrency": concurrency, "shards": shards, "project": project}
    given |= {"system": system, "prompt": prompt, "needs": None if priority is None else {"priority": priority}}
    given |= {"evaluation": evaluation, "models": models, "rows": rows, "scorers": scorers or None}
    given["progress"] = sys.stderr.isatty()
    named = {name: value for name, value in given.items() if value is not None}
    if twice := named.keys() & dict(options):
        raise click.UsageError(f"{min(twice)} is given twice: as it is, and by -o")
    named |= dict(options)
    with opened(store) as platform:
        if save is not None:
            check_report_path(save)
        if rows is not None and "project" not in named and (place := project_of(platform, models)):
            named["project"] = place
        baseline = None if not_worse_than is None else run_named(platform, not_worse_than)
        log_to_terminal()
        try:
            found = platform.evaluations.run_each(**named)
        except TypeError as wrong:  # an option that a run does not have
            raise click.UsageError(str(wrong)) from wrong
        _show_runs(as_json, [result.run for result in found])
        for result in found:
            _say_what_has_no_score(result.run)
        if save is not None:
            platform.evaluations.report(found[0]).save(save)
        for result in found if baseline is not None else ():
            try:
                platform.evaluations.assert_not_worse(baseline=baseline, candidate=result)  # type: ignore[arg-type]
            except AssertionError as worse:
                raise click.ClickException(str(worse)) from None


def _say_what_has_no_score(run: EvaluationRun) -> None:
    counts = run.summary or {}
    missing = counts.get("trials", 0) - counts.get("scored", 0)
    if missing:
        why = f"modelyard runs show {id_text(run.id)} says why"
        click.echo(f"{model_text(run)}: {missing} of {counts['trials']} answers have no score; {why}", err=True)


@click.group(cls=Group, help=f"Look at evaluation runs. {RUN_HELP}")
def runs() -> None:
    """Look at evaluation runs."""


@runs.command("list")
@store_option
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@click.option("--tag", help="Only those with this tag.")
@project_option
@json_option
def list_runs(store: StoreName, last: int, tag: str | None, project: str | None, as_json: bool) -> None:
    """List runs, the newest first."""
    with opened(store) as platform:
        every = platform.evaluations.runs.list_all(order="desc")
        if tag is not None:
            named = {one.subject for one in platform.annotations.list(tag=tag)}
            every = (run for run in every if run.id in named)  # type: ignore[assignment]
        found = islice((run for run in every if project in (None, run.project)), last)
        _show_runs(as_json, found)


def _show_runs(as_json: bool, runs: Iterable[EvaluationRun]) -> None:
    more = ("imported", "prompts") if as_json else ()  # with what the table says next to the name of the model
    show(as_json, (*RUN_COLUMNS, *more), [_run_row(run, as_json) for run in runs])


def _run_row(run: EvaluationRun, whole: bool) -> tuple[object, ...]:
    score = (run.summary or {}).get("mean")
    if whole:
        asked = (run.summary or {}).get("imported"), run.prompts
        names = run.id, run.evaluation, run.model, run.project, run.state
        return *names, scorer_text(run), score, run.started_at, *asked
    names = id_text(run.id), ref_text(run.evaluation), model_text(run), run.project, run.state
    return *names, scorer_text(run), score_text(run), run.started_at


@runs.command("show")
@store_option
@click.argument("run")
@json_option
def show_run(store: StoreName, run: str, as_json: bool) -> None:
    """Show the numbers of RUN."""
    with opened(store) as platform:
        found = run_named(platform, run)
        if as_json:
            whole = {name: getattr(found, name) for name in ("id", "entity", "project", "evaluation", "model", "state")}
            whole |= {"summary": dict(found.summary or {}), "reason": found.reason}
            show_fields({**whole, "remarks": platform.evaluations.remarks(found)}.items(), True)
        elif found.summary is None:
            status = platform.evaluations.runs.status(found.id)
            show_fields([("run", run_title(found)), ("state", found.state), ("reason", found.reason), ("of", status)])
        else:
            click.echo(str(platform.evaluations.report(found)))
