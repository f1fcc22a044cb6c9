"""Delete all data of one entity: records first, in small steps, then the files that only they named."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from modelyard.domain import promotion as alias
from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.domain.identity import ApiKey, Principal, Scope
from modelyard.domain.job import Job, JobEvent, JobProgress, SupersededEvent
from modelyard.domain.models import Checkpoint, Model, TrajectoryLog
from modelyard.domain.record import Record
from modelyard.domain.schema import RECORDS
from modelyard.domain.training import Dataset
from modelyard.domain.usage import RateLimit
from modelyard.parts.batches.files.records import StoredFile
from modelyard.parts.tinker.payloads import artifacts_in
from modelyard.parts.tinker.records import RunCommand, RunWeights, Sample
from modelyard.parts.traces.records import TracedFile, TracedTable
from modelyard.parts.uploads.records import Upload
from modelyard.platform.catalogue.offered_models import trained_offers
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.jobs.queue import files_of
from modelyard.platform.models.service import Models
from modelyard.platform.paging import remove_if_present
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

# How many records one step removes: the store is held for milliseconds, not for the whole deletion.
BATCH = 200


def erase_entity(runtime: Runtime, entity: str) -> int:
    """Delete every record of `entity` and its files. Returns how many records were deleted.

    Catalogue entries that its models answer are unregistered first. Then aliases are removed, then models, by
    `Models.delete`, which cancels their jobs. Every step can be repeated after a crash.
    """
    host = Principal("host", entity, Scope(None))
    _withdraw(runtime, host)
    models = Models(runtime, host)
    removed = sum(_erase_all(runtime, record, entity) for record in alias.RECORDS)
    while found := runtime.store.read(lambda snapshot: snapshot.page(Model, "by_entity", entity)):
        for model in found:
            models.delete(model.id)
    for record in RECORDS:
        if "by_entity" in record.indexes:
            removed += _erase_all(runtime, record, entity)
    return removed


def _withdraw(runtime: Runtime, host: Principal) -> None:
    for entry_id, named in runtime.store.read(lambda snapshot: list(trained_offers(snapshot))):
        if named.entity == host.entity:
            Catalogue(runtime, host).unregister(entry_id)


def _erase_all(runtime: Runtime, record: Record, entity: str) -> int:
    removed = 0
    while True:
        gone = runtime.store.transact(lambda tx: _erase_batch(tx, record, entity))
        for value in gone:
            for name in artifacts_of(value):
                runtime.artifacts.remove(name)
        removed += len(gone)
        if len(gone) < BATCH:
            return removed


def _erase_batch(tx: Tx, record: Record, entity: str) -> list[Any]:
    gone: list[Any] = tx.page(record.cls, "by_entity", entity, limit=BATCH)
    for value in gone:
        _erase_parts(tx, value)
        tx.remove(record.cls, *(getattr(value, column) for column in record.key))
    return gone


def _erase_parts(tx: Tx, value: object) -> None:
    """Remove the records that belong to `value` and have no entity field."""
    if isinstance(value, Job):
        for event in _pages(lambda: tx.page(JobEvent, "by_job", value.id)):
            for old in _pages(lambda event=event: tx.page(SupersededEvent, "by_event", event.id)):  # type: ignore[misc]
                tx.remove(SupersededEvent, old.event_id, old.epoch)
            tx.remove(JobEvent, event.job_id, event.seq)
        tx.remove(JobProgress, value.id)
    if isinstance(value, ApiKey):
        remove_if_present(tx, RateLimit, value.id)


def _pages(page: Callable[[], list[Any]]) -> Iterator[Any]:
    """Yield every record of a page that shrinks as its records are removed."""
    while found := page():
        yield from found


def artifacts_of(value: object) -> Iterator[str]:
    """Yield the names of the artifacts that only this record refers to."""
    names = _ARTIFACTS.get(type(value))
    if names is not None:
        yield from (name for name in names(value) if name is not None)


def _of_files(files: Mapping[str, Any]) -> Iterator[str]:
    return (file["artifact"] for file in files.values())


_ARTIFACTS: Mapping[type, Callable[[Any], Iterable[str | None]]] = {
    Checkpoint: lambda checkpoint: _of_files(checkpoint.files),
    StoredFile: lambda file: _of_files(file.parts),
    RunWeights: lambda weights: _of_files(weights.state),
    Dataset: lambda dataset: [dataset.artifact],
    TrajectoryLog: lambda log: [log.artifact],
    Upload: lambda upload: [upload.artifact],
    TracedFile: lambda file: [file.artifact],
    TracedTable: lambda table: [table.artifact],
    ObjectVersion: lambda version: [version.rows_artifact],
    RunCommand: lambda command: artifacts_in(command.body, command.answer),
    Sample: lambda sample: artifacts_in(sample.answer),
    Job: files_of,
}
"""The records that refer to artifacts, each with a function that returns their names."""
