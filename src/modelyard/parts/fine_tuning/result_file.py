"""The result file of a fine-tuning job: its metrics step by step, as CSV.

The columns of a supervised or a DPO job are those that fine-tuning services document, and `full_valid_loss`. What is
not measured is left empty.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.job import Job, JobEvent
from modelyard.domain.training import STEPS
from modelyard.parts.batches.files.records import RESULTS_PURPOSE, StoredFile
from modelyard.parts.fine_tuning.records import REQUEST
from modelyard.parts.loops.part import LOOP
from modelyard.platform.paging import iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import tokens_of
from modelyard.protocols import Tx

RESULTS = "results"
"""The member of a job's result that names its result file, and says how many tokens were trained on."""

FILENAME = "step_metrics.csv"

_BATCHED: Mapping[str, str] = {
    "train_loss": "loss",
    "train_accuracy": "accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
    "full_valid_loss": "full_valid_loss",
}
_ROUNDS: Mapping[str, str] = {"train_reward": "reward", "valid_reward": "held_out", "train_loss": "loss"}


@attrs.frozen
class ResultFile:
    """A result file that is stored, and that no record names yet."""

    file: StoredFile
    trained_tokens: int | None

    @classmethod
    def of(cls, runtime: Runtime, job: Job, loose: list[str]) -> "ResultFile | None":
        """Write the file of a job whose steps are all recorded; None for one that was not requested as fine-tuning.

        Its artifact is added to `loose`.
        """
        if REQUEST not in job.spec:
            return None
        table = _Table(runtime, job)
        stored = runtime.artifacts.put(table.lines())
        loose.append(stored.name)
        parts = {"0": {"artifact": stored.name, "size": stored.size, "digest": stored.digest}}
        head = (runtime.ids(), job.entity, job.project, FILENAME, RESULTS_PURPOSE, stored.size)
        return cls(StoredFile(*head, runtime.clock.now(), parts=parts), table.tokens or None)

    def add(self, tx: Tx, now: datetime) -> Mapping[str, Any]:
        """Record the file. Returns what the job's result says of it."""
        tx.add(attrs.evolve(self.file, created_at=now))
        return {RESULTS: {"file": self.file.id, "tokens": self.trained_tokens}}


class _Table:
    """The steps of a job as lines, read a page at a time; and the tokens that they were trained on."""

    def __init__(self, runtime: Runtime, job: Job) -> None:
        self.tokens = 0
        self._runtime, self._job = runtime, job
        self._columns = _ROUNDS if job.kind == LOOP else _BATCHED

    def lines(self) -> Iterator[bytes]:
        yield _line(["step", *self._columns])
        for event in iter_index_live(self._runtime, JobEvent, "by_job", self._job.id):
            if event.type in STEPS:
                self.tokens += tokens_of(event.data)
                yield _line([event.step, *(event.data.get(name, "") for name in self._columns.values())])


def _line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
