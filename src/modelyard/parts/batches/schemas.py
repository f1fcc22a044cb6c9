"""Batches as the clients of the chat format know them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.formats.chat.request import check_metadata
from modelyard.formats.constraints import Length
from modelyard.http.listing import PageObject, page_class
from modelyard.parts.batches.files.schemas import FileLife
from modelyard.parts.batches.records import BatchJob, BatchStatus


@attrs.frozen
class BatchCreate:
    """The body that starts a batch on an uploaded file of requests, all for one endpoint."""

    input_file_id: str = attrs.field(validator=Length(1, 128))
    endpoint: str = attrs.field(validator=Length(1, 128))
    completion_window: Literal["24h"]
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=check_metadata)
    output_expires_after: FileLife | None = None


@attrs.frozen
class BatchFault:
    """A problem of a batch, or with a line of its input file."""

    code: str
    line: int | None
    message: str
    param: str | None


@attrs.frozen
class BatchFaults:
    """The problems of a batch."""

    object: Literal["list"]
    data: tuple[BatchFault, ...]


@attrs.frozen
class BatchCounts:
    """How many lines a batch has, and what became of them so far."""

    total: int
    completed: int
    failed: int


@attrs.frozen
class BatchObject:
    """A batch. Times are in Unix seconds; the ids of its files are known when it has ended."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: Mapping[str, str]


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def batch_object(batch: BatchJob) -> BatchObject:
    ended = _seconds(batch.ended_at)

    def at(*statuses: BatchStatus) -> int | None:
        return ended if batch.status in statuses else None

    faults = tuple(BatchFault(one.code, one.line, one.message, one.param) for one in batch.problems)
    known: Mapping[str, Any] = {
        "in_progress_at": _seconds(batch.started_at),
        "expires_at": int(batch.expires_at.timestamp()),
        "finalizing_at": at(BatchStatus.COMPLETED, BatchStatus.EXPIRED),
        "completed_at": at(BatchStatus.COMPLETED),
        "failed_at": at(BatchStatus.FAILED),
        "expired_at": at(BatchStatus.EXPIRED),
        "cancelling_at": at(BatchStatus.CANCELLED),
        "cancelled_at": at(BatchStatus.CANCELLED),
    }
    return BatchObject(
        batch.id,
        "batch",
        batch.endpoint,
        BatchFaults("list", faults) if faults else None,
        batch.input_file_id,
        "24h",
        batch.status,
        batch.output_file_id,
        batch.error_file_id,
        int(batch.created_at.timestamp()),
        request_counts=BatchCounts(batch.total, batch.completed, batch.failed),
        metadata=batch.metadata,
        **known,
    )


BatchPage: type[PageObject] = page_class("BatchPage", BatchObject, batch_object, "Some batches, the newest first.")
