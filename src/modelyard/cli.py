"""The command line: thin over the Python API."""

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard import quickstart as quickstart_job
from modelyard.asgi import asgi_app
from modelyard.compose import open_platform
from modelyard.domain.alias import NotWorse
from modelyard.domain.identity import ApiKey
from modelyard.domain.job import JobStatus
from modelyard.errors import MissingExtra, ModelyardError
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.http.route import STANDARD, Interface
from modelyard.protocols import Executor
from modelyard.report.log import PlainFormatter
from modelyard.report.table import text_table
from modelyard.service.platform import Platform
from modelyard.worker import platform_of

GRACE_SECONDS = 10
"""How long streams may go on when the server is told to end: their clients may have stopped reading."""

DEFAULT_FACTORY = "modelyard.compose:open_platform"

store_option = click.option(
    "--store", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The SQLite file of the platform."
)
entity_option = click.option("--entity", default="local", show_default=True, help="Whose.")
alias_option = click.option("--alias", default="prod", show_default=True, help="Which alias.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


class Group(click.Group):
    """A group whose commands report the library's errors as one line, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        """Run the command; a `ModelyardError` becomes exit status 1 and its message."""
        try:
            return super().invoke(context)
        except ModelyardError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Group)
@click.version_option(package_name="modelyard")
def main() -> None:
    """The model platform that you import, from the command line."""


@contextmanager
def opened(store: Path, must_exist: bool = True) -> Iterator[Platform]:
    """The platform kept in `store`."""
    if must_exist and not store.exists():
        raise click.ClickException(f"there is no store at {store}; `modelyard serve --store {store}` makes one")
    with open_platform(store) as platform:
        yield platform


def show(as_json: bool, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as a table, or as one JSON array of objects."""
    if as_json:
        click.echo(json.dumps([dict(zip(headers, row, strict=True)) for row in rows], default=str))
    else:
        click.echo(text_table(headers, [["" if value is None else value for value in row] for row in rows]))


# ---- the main job, and serving -----------------------------------------------------------------------------------


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("quickstart"))
def quickstart(folder: Path) -> None:
    """Fine-tune, reinforce and evaluate a small model on real data, in seconds, in FOLDER (default: ./quickstart)."""
    quickstart_job.run(folder)


@main.command()
@store_option
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--worker", is_flag=True, help="Run training jobs in this process too.")
@click.option("--uploads", is_flag=True, help="Take training data from the W&B client too.")
def serve(store: Path, host: str, port: int, worker: bool, uploads: bool) -> None:
    """Serve the platform over HTTP until interrupted."""
    try:
        import uvicorn  # noqa: PLC0415 - an extra that only this command needs
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve") from error
    _log_to_terminal()
    with opened(store, must_exist=False) as platform:
        if not platform.keys.list():
            click.echo(f"No API key yet; make one: modelyard keys create --store {store} --entity local", err=True)
        interfaces = tuple(Interface) if uploads else STANDARD
        app = asgi_app(platform, interfaces, worker)
        uvicorn.run(app, host=host, port=port, log_level="info", timeout_graceful_shutdown=GRACE_SECONDS)


@main.command()
@click.option("--store", type=click.Path(dir_okay=False, path_type=Path), help="The SQLite file of the platform.")
@click.option("--factory", metavar="MODULE:FUNCTION", help="Code that returns your own platform, instead of --store.")
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 64), help="Jobs at a time.")
@click.option("--isolate", is_flag=True, help="Run each job in a process of its own.")
def work(store: Path | None, factory: str | None, concurrency: int, isolate: bool) -> None:
    """Run queued jobs until interrupted; what runs then goes back to the queue."""
    if (store is None) is (factory is None):
        raise click.UsageError("give either --store or --factory")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _log_to_terminal()
    executor = _isolated(store, factory) if isolate else None
    with _worked(store, factory) as platform, platform.worker(concurrency, executor) as worker:
        click.echo(f"worker {worker.id} waits for jobs; Ctrl-C stops it", err=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("stopping", err=True)


def _log_to_terminal() -> None:
    """Write what happens to standard error: a job's owner is told to look there."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _isolated(store: Path | None, factory: str | None) -> Executor:
    """What runs jobs in processes that open the same platform."""
    return SubprocessExecutor(factory or DEFAULT_FACTORY, [] if store is None else [str(store)])


def _worked(store: Path | None, factory: str | None) -> AbstractContextManager[Platform]:
    if store is not None:
        return opened(store)
    sys.path.insert(0, "")  # as `python -m` does: the factory may lie in the working directory
    return platform_of(str(factory))


# ---- keys --------------------------------------------------------------------------------------------------------


@main.group(cls=Group)
def keys() -> None:
    """API keys."""


@keys.command("create")
@store_option
@click.option("--entity", required=True, help="The team that the key belongs to.")
@click.option(
    "--project", "projects", multiple=True, help="A project that it may use; repeat for more; none means all."
)
@click.option("--name", default="", help="A word to recognise it by.")
@click.option("--days", type=click.IntRange(1), help="Days until it expires.")
@json_option
def create_key(store: Path, entity: str, projects: Sequence[str], name: str, days: int | None, as_json: bool) -> None:
    """Make a key and show it, this once."""
    with opened(store, must_exist=False) as platform:
        expires = timedelta(days=days) if days else None
        made = platform.keys.create(entity, projects or None, name=name, expires_in=expires)
    click.echo(json.dumps({"key": made.secret, "id": made.key.id}) if as_json else made.secret)
    if not as_json:
        click.echo("Keep it now: it is stored as a digest and cannot be shown again.", err=True)


@keys.command("list")
@store_option
@json_option
def list_keys(store: Path, as_json: bool) -> None:
    """List keys without their secrets."""
    with opened(store) as platform:
        rows = [_key_row(key) for key in platform.keys.list()]
    show(as_json, ("id", "prefix", "name", "entity", "projects", "created", "expires", "revoked"), rows)


def _key_row(key: ApiKey) -> tuple[Any, ...]:
    projects = ",".join(key.projects) or "all"
    return key.id, key.prefix, key.name, key.entity, projects, key.created_at, key.expires_at, key.revoked_at


@keys.command("revoke")
@store_option
@click.argument("key_id")
def revoke_key(store: Path, key_id: str) -> None:
    """Revoke a key by its id; requests with it are refused within a second."""
    with opened(store) as platform:
        platform.keys.revoke(key_id)
    click.echo(f"revoked {key_id}")


# ---- looking around ----------------------------------------------------------------------------------------------


MODEL_COLUMNS = ("id", "entity", "project", "name", "base_model", "last_step", "created_at")


@main.command()
@store_option
@entity_option
@json_option
def models(store: Path, entity: str, as_json: bool) -> None:
    """List trainable models."""
    with opened(store) as platform:
        rows = [_values(model, MODEL_COLUMNS) for model in _all(platform.models.list, entity)]
    show(as_json, MODEL_COLUMNS, rows)


@main.command("promote")
@store_option
@click.argument("model")
@click.argument("step", type=click.IntRange(min=0))
@alias_option
@click.option("--not-worse", metavar="EVALUATION", help="Only if its run of this is not worse than the current one's.")
def promote_checkpoint(store: Path, model: str, step: int, alias: str, not_worse: str | None) -> None:
    """Let an alias of MODEL (an id, or entity/project/name) point to the checkpoint of STEP."""
    require = None if not_worse is None else NotWorse(not_worse)
    with opened(store) as platform:
        made = platform.models.promote(model, step, alias, require=require)
    click.echo(f"{alias} points to step {made.step}" + _before(made.from_step))


@main.command("rollback")
@store_option
@click.argument("model")
@alias_option
def roll_back(store: Path, model: str, alias: str) -> None:
    """Let an alias of MODEL point to where it pointed before."""
    with opened(store) as platform:
        made = platform.models.rollback(model, alias)
    click.echo(f"{alias} points to step {made.step}" + _before(made.from_step))


def _before(step: int | None) -> str:
    return "" if step is None else f", before to step {step}"


@main.group(cls=Group)
def jobs() -> None:
    """Training jobs."""


JOB_COLUMNS = (
    "id",
    "kind",
    "status",
    "model_id",
    "progress",
    "total",
    "step",
    "attempts",
    "created_at",
    "error_message",
)


@jobs.command("list")
@store_option
@entity_option
@json_option
def list_jobs(store: Path, entity: str, as_json: bool) -> None:
    """List jobs, the oldest first."""
    with opened(store) as platform:
        rows = [_values(job, JOB_COLUMNS) for job in _all(platform.training.list, entity)]
    show(as_json, JOB_COLUMNS, rows)


@jobs.command("show")
@store_option
@click.argument("job_id")
@json_option
def show_job(store: Path, job_id: str, as_json: bool) -> None:
    """Show one job."""
    with opened(store) as platform:
        job = attrs.asdict(platform.training.get(job_id), value_serializer=_plain)
    if as_json:
        click.echo(json.dumps(job, default=str))
    else:
        click.echo(text_table(("field", "value"), list(job.items())))


def _plain(_: Any, __: Any, value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else value


@jobs.command("watch")
@store_option
@click.argument("job_id")
def watch_job(store: Path, job_id: str) -> None:
    """Follow a job's steps until it ends; a worker elsewhere runs it, or else this command does."""
    with opened(store) as platform:
        job = platform.training.job(job_id)
        with click.progressbar(length=1, label=job_id, item_show_func=lambda text: text) as bar:
            for event in job.events():
                if event.type == "training_started":
                    bar.length = max(1, event.data["num_sequences"])
                elif event.type == "gradient_step":
                    bar.update(1, _step_line(event.data))
        ended = job.refresh()
    click.echo(f"{ended.status}" + (f": {ended.error_message}" if ended.error_message else ""))


def _step_line(data: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {data[name]:.3g}" for name in ("loss", "reward") if name in data)


@jobs.command("cancel")
@store_option
@click.argument("job_id")
def cancel_job(store: Path, job_id: str) -> None:
    """Cancel a job; a running one stops at its next step."""
    with opened(store) as platform:
        job = platform.training.cancel(job_id)
    click.echo(f"cancelling {job_id}" if job.status is JobStatus.RUNNING else f"{job_id} is {job.status}")


@main.command()
@store_option
@click.option(
    "--by", default="team,project,model", show_default=True, help="Comma-joined: team, project, model, key, day."
)
@json_option
def usage(store: Path, by: str, as_json: bool) -> None:
    """Sum what was used and what it cost."""
    columns = tuple(by.split(","))
    with opened(store) as platform:
        totals = platform.usage.total(by=columns)
    counted = ("requests", "prompt_tokens", "completion_tokens", "cost")
    rows = [tuple(getattr(total, column) for column in (*columns, *counted)) for total in totals]
    show(as_json, (*columns, *counted), rows)


def _values(value: object, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(value, column) for column in columns)


def _all(listing: Callable[..., Any], entity: str) -> Iterator[Any]:
    """Every item of a paged listing."""
    after = None
    while True:
        page = listing(entity=entity, after=after, limit=100)
        yield from page.items
        if not page.has_more:
            return
        after = page.items[-1].id


if __name__ == "__main__":
    main()
