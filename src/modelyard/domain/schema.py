"""Every kind of record, for a store to be opened with."""

from modelyard.domain import catalogue, completion, evaluation, identity, job, training, upload, usage
from modelyard.domain.record import Record

RECORDS: tuple[Record, ...] = (
    *catalogue.RECORDS,
    *completion.RECORDS,
    *identity.RECORDS,
    *usage.RECORDS,
    *job.RECORDS,
    *upload.RECORDS,
    *training.RECORDS,
    *evaluation.RECORDS,
)
