"""The end of a batch: in the transaction that ends it, however it ends, the parts that it has written become files."""

from datetime import timedelta

import attrs

from modelyard.domain.job import Job
from modelyard.domain.record import FOR_EVER
from modelyard.parts.batches.files.records import BATCH_OUTPUT, StoredFile
from modelyard.parts.batches.records import BATCH_FILES, counts_of
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx


def end_batch(tx: Tx, job: Job) -> None:
    """Make files of the parts that a batch has written. The files own the parts from then on."""
    assert job.ended_at is not None
    life, made = job.spec["output_life"], {}
    for kind in BATCH_FILES:
        parts = {name: part for name, part in job.resume.items() if name.startswith(f"{kind}/")}
        if not parts:
            continue
        made[kind] = job.spec["files"][kind]
        file = StoredFile(
            made[kind],
            job.entity,
            job.project,
            f"batch_{job.id}_{kind}.jsonl",
            BATCH_OUTPUT,
            sum(part["size"] for part in parts.values()),
            job.ended_at,
            FOR_EVER if life is None else job.ended_at + timedelta(seconds=life),
            parts,
        )
        tx.add(file)
    result = {**job.result, **made, "counts": dict(counts_of(job.resume))}
    tx.replace(attrs.evolve(job, resume={}, result=result))


def keeps_files(runtime: Runtime, job: Job) -> bool:
    """Return True: the parts that a batch has written are not removed with its job."""
    return True
