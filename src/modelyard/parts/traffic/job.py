"""The work of a collection: read stored answers, and save the kept rows now and then for the next attempt.

The saved state of the job is parts with the lines of a `Collector`, which are removed when the job ends.
"""

from collections.abc import Generator, Mapping
from typing import Any

import attrs

from modelyard.domain.job import JobKind, JobProgress
from modelyard.domain.training import Dataset
from modelyard.parts.batches.parts import PartWriter
from modelyard.parts.own_lane import end_job
from modelyard.parts.traffic.collected import Collected
from modelyard.parts.traffic.collector import Collector
from modelyard.parts.traffic.kept_rows import KeptRows
from modelyard.parts.traffic.records import STARTED
from modelyard.parts.traffic.request import CollectRequest
from modelyard.platform.artifacts import remove_loose
from modelyard.platform.jobs.claims import ClaimedJob, fenced, job_topic
from modelyard.platform.jobs.queue import save_resume
from modelyard.platform.training.service import Training
from modelyard.protocols import Tx

ANSWERS_AT_ONCE = 10_000
JUDGED_AT_ONCE = 50
SECONDS_BETWEEN = 5.0
"""What was kept is saved after so many answers (with a judge, so many that it scored), or after so many seconds."""

_KIND = "lines"

Turns = Generator[None, None, None]


def collect(claimed: ClaimedJob) -> Turns:
    """Do the work of a collection. Yields after each write, and while it waits for a judge."""
    with remove_loose(claimed.runtime.artifacts, claimed.loose), KeptRows() as kept:
        yield from _Collection(claimed).turns(kept)


class _Collection:
    """One attempt at a collection."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed, self.runtime, self.spec = claimed, claimed.runtime, claimed.job.spec
        self.principal = claimed.principal
        self.request = CollectRequest.of_plain(self.spec["collect"])
        self.parts = PartWriter(self.runtime.artifacts, claimed.loose)
        self.at_once = ANSWERS_AT_ONCE if self.request.judge is None else JUDGED_AT_ONCE
        self.written_at = self.runtime.clock.monotonic()

    def turns(self, kept: KeptRows) -> Turns:
        job = self.claimed.job
        collector = Collector(self.runtime, self.principal, self.request, kept, job.created_at)
        for name in sorted(job.resume):
            part = job.resume[name]
            with self.runtime.artifacts.open(part["artifact"], part["digest"]) as file:
                collector.resume(file)
        if self.claimed.progress.total is None:
            total = collector.total()
            self.claimed.record(STARTED, {"total": total}, total=total)
            yield
        for is_read in collector.steps():
            if not is_read:
                self._refresh_progress()
                yield
            elif self._is_due(collector.read):
                self._write(collector)
                yield
        if collector.read > self.claimed.job.resume_step:
            self._write(collector)
            yield
        end_job(self.claimed, self._result(collector))

    def _is_due(self, read: int) -> bool:
        since = self.runtime.clock.monotonic() - self.written_at
        return read - self.claimed.job.resume_step >= self.at_once or since >= SECONDS_BETWEEN

    def _refresh_progress(self) -> None:
        """See whether the collection was cancelled, and show its progress. Raises `LeaseLost`."""
        self.claimed.progress = self.runtime.store.read(lambda snapshot: fenced(snapshot, self.claimed.claim))
        self.claimed.moved_at = self.runtime.clock.monotonic()

    def _write(self, collector: Collector) -> None:
        """Save the rows kept since the last time, with the position, in one transaction. Raises `LeaseLost`."""
        before, now = self.claimed.job.resume_step, self.runtime.clock.now()
        files = self.parts.add(self.claimed.job.resume, _KIND, before, collector.take_lines())

        def step(tx: Tx) -> JobProgress:
            progress = attrs.evolve(
                save_resume(tx, self.claimed.claim, collector.read, files, now), step=collector.read
            )
            tx.replace(progress)
            tx.notify(job_topic(progress.job_id))
            return progress

        self.claimed.write(step)
        self.claimed.job = attrs.evolve(self.claimed.job, resume=files, resume_step=collector.read)
        self.parts.recorded()
        self.written_at = self.runtime.clock.monotonic()

    # ---- its end

    def _result(self, collector: Collector) -> Mapping[str, Any]:
        """Write the datasets, and queue the training on them if it was requested: one job, however many attempts.

        Raises `InvalidInput` if there is nothing to train on, and the errors of a request for the training.
        """
        train, held_out, left_out = collector.finish()
        made: dict[str, Any] = {"train": _shown(train), "held_out": _shown(held_out), "left_out": left_out}
        if self.spec["train"] is not None:
            url, kind = Collected(train, held_out, left_out).url, JobKind.DPO if self.request.pairs else JobKind.SFT
            training = Training(self.runtime, self.principal)
            key = f"collection-{self.claimed.job.id}"
            needs = self.spec.get("needs")
            job = training.submit(kind, self.spec["train"], url, needs=needs, idempotency_key=key)
            made["training_job_id"] = job.id
        return made


def _shown(dataset: Dataset | None) -> Mapping[str, Any] | None:
    return None if dataset is None else {"url": dataset.url, "rows": dataset.rows, "digest": dataset.digest}
