"""The rows of an evaluation job, in the order in which they begin: of its dataset, or of the run it scores anew."""

from collections.abc import Iterator
from itertools import islice, starmap

import attrs

from modelyard.domain.evaluation.prediction import Prediction
from modelyard.domain.job import Job, JobKind
from modelyard.formats.jsonl import read_some
from modelyard.platform.evaluations.resume import RemainingRows, RowKey
from modelyard.platform.evaluations.scheduler import WorkItem
from modelyard.platform.paging import iter_index, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot


@attrs.frozen
class JobRows:
    """What a job is about. A row's trials follow each other, and a row and trial has one number."""

    runtime: Runtime
    job: Job

    def items(self, left: RemainingRows) -> Iterator[WorkItem]:
        """What is left of them, read as it is asked for."""
        if self.job.kind is JobKind.RESCORE:
            return self._copied(left)
        return self._read(left)

    def places(self, snapshot: Snapshot, first: int) -> Iterator[RowKey]:
        """The place of every row from the number `first` on."""
        if self.job.kind is JobKind.RESCORE:
            sources = iter_index(snapshot, Prediction, "by_run", self.job.spec["source"])
            return islice(starmap(_place_in_copy, enumerate(sources)), first, None)
        return (divmod(number, self.job.spec["trials"]) for number in range(first, self.job.spec["total"]))

    def _copied(self, left: RemainingRows) -> Iterator[WorkItem]:
        for number, source in enumerate(iter_index_live(self.runtime, Prediction, "by_run", self.job.spec["source"])):
            if left.has(number, place := _place_in_copy(number, source)):
                yield WorkItem(number, *place, source.inputs, source)

    def _read(self, left: RemainingRows) -> Iterator[WorkItem]:
        trials = self.job.spec["trials"]
        first, rows = left.begun // trials, {index for index, _ in left.open}
        with self.runtime.artifacts.open(self.job.spec.get("artifact") or self.job.spec["dataset"]) as file:
            for index, row in read_some(file, lambda index: index >= first or index in rows):
                for trial in range(trials):
                    if left.has(number := index * trials + trial, (index, trial)):
                        yield WorkItem(number, index, trial, row)


def _place_in_copy(number: int, source: Prediction) -> RowKey:
    """Where a prediction stands in the run that scores it anew; a client's own have no index."""
    return number if source.index is None else source.index, source.trial
