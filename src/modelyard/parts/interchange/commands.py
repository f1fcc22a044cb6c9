"""Commands that read and write logs of other tools."""

from pathlib import Path

import click

from modelyard.cli.evaluations import project_option
from modelyard.cli.names import run_named
from modelyard.cli.terminal import PlaceType, StoreName, opened, store_option
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.parts.interchange.written_logs import check_log_path
from modelyard.report.numbers import id_text, run_title


@click.command()
@store_option
@click.argument("logs", nargs=-1, required=True)
@project_option
def import_logs(store: StoreName, logs: tuple[str, ...], project: str | None) -> object:
    """Keep LOGS of Inspect as runs.

    A log is a file that ends in .eval or .json. The same log is the same run.
    """
    with opened(store) as platform:
        runs = list[EvaluationRun]()
        for log in logs:
            run = platform.evaluations.inspect.read(log, project=project)
            runs.append(run)
            click.echo(f"{run_title(run)} is run {id_text(run.id)}, {run.state}")
    return [{"id": run.id, "evaluation": run.evaluation, "model": run.model, "state": run.state} for run in runs]


@click.command()
@store_option
@click.argument("run")
@click.argument("file", type=PlaceType())
def write_log(store: StoreName, run: str, file: Path) -> object:
    """Write RUN as a log of Inspect.

    FILE ends in .eval or .json.
    """
    check_log_path(file)
    with opened(store) as platform:
        platform.evaluations.inspect.write(run_named(platform, run), file)
    click.echo(f"wrote {file}")
    return {"file": file}
