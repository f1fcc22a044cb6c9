"""`modelyard train import`: repeat the fine-tuning jobs of another service from their records and downloaded files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from modelyard.cli.terminal import StoreName, noted_entity, opened, store_option
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.fine_tuning.records import FineTuningJob
from modelyard.platform.platform import Platform
from modelyard.report.terminal import log_to_terminal

ENDINGS = ("", ".jsonl")


@click.command(name="import")
@store_option
@click.argument("records", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--files",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the downloaded files, each called by its id (file-abc or file-abc.jsonl).",
)
@click.option("--base-model", required=True, help="The base model to train instead of theirs.")
@click.option("--project", help="Train in this project, not in the default one.")
@click.option("--entity", callback=noted_entity, help="Train for this entity.")
@click.option("--no-wait", is_flag=True, help="Leave the jobs to a worker.")
def import_jobs(
    store: StoreName, records: Path, files: Path, base_model: str, no_wait: bool, **place: str | None
) -> object:
    """Repeat fine-tuning jobs of another service here.

    RECORDS has the jobs as the service's client shows them: one JSON object, a list, a page of a list, or one on each
    line. Their files are uploaded, and their methods, hyperparameters, graders, suffixes and seeds requested again.
    Nothing is uploaded unless all their files are there.
    """
    jobs = list(_records(records))
    named = {name: _path(files, name) for job in jobs for name in _files(job).values()}
    with opened(store, must_exist=False) as platform:
        uploaded = {name: _uploaded(platform, path, place) for name, path in named.items()}
        repeated = [_repeated(platform, job, uploaded, base_model, place) for job in jobs]
        if not no_wait:
            _finish(platform, repeated)
        answer = list[dict[str, Any]]()
        for job, made in zip(jobs, repeated, strict=True):
            shown = platform.compat.fine_tuning.get(made.id)
            click.echo(f"{job.get('id', '-')}  {made.id}  {shown.fine_tuned_model or shown.job.status}")
            facts = {"id": job.get("id"), "job": made.id, "status": shown.job.status, "model": shown.fine_tuned_model}
            answer.append(facts)
    return answer


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    try:
        found = json.loads(text)
    except ValueError:
        found = [_line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(found, dict):
        found = found.get("data", [found])
    for number, record in enumerate(found if isinstance(found, list) else [found], 1):
        if not isinstance(record, dict) or not isinstance(record.get("training_file"), str):
            raise click.ClickException(f"{path}: number {number} is not a record of a fine-tuning job")
        yield record
    if not found:
        raise click.ClickException(f"{path} has no records")


def _line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as wrong:
        raise click.ClickException(f"{path}, line {number} is not JSON: {wrong}") from None


def _files(record: Mapping[str, Any]) -> Mapping[str, str]:
    named = {name: record.get(name) for name in ("training_file", "validation_file")}
    return {name: file for name, file in named.items() if isinstance(file, str)}


def _path(folder: Path, name: str) -> Path:
    if Path(name).name != name:
        raise click.ClickException(f"{name!r} is not the id of a file")
    for path in (folder / f"{name}{ending}" for ending in ENDINGS):
        if path.is_file():
            return path
    raise click.ClickException(f"{folder} has neither {name} nor {name}.jsonl; download it there first")


def _uploaded(platform: Platform, path: Path, place: Mapping[str, Any]) -> str:
    with path.open("rb") as file:
        return platform.compat.files.create(path.name, file, purpose="fine-tune", **place).id


def _repeated(
    platform: Platform,
    record: Mapping[str, Any],
    uploaded: Mapping[str, str],
    base_model: str,
    place: Mapping[str, Any],
) -> FineTuningJob:
    files: Any = {name: uploaded[file] for name, file in _files(record).items()}
    with _named(record):
        return platform.compat.fine_tuning.repeat(record, model=base_model, **files, **place)


def _finish(platform: Platform, jobs: Iterable[FineTuningJob]) -> None:
    log_to_terminal()
    for job in jobs:
        try:
            platform.training.job(job.id).wait()
        except JobFailed as failed:
            click.echo(f"{failed}; modelyard jobs show {job.id} shows all", err=True)


@contextmanager
def _named(record: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except InvalidInput as wrong:
        raise click.ClickException(f"{record.get('id', 'a record')}: {wrong}") from None
