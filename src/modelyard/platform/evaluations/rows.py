"""The rows of an evaluation job, in the order in which they begin: of its dataset, or of the run it scores anew."""

from collections.abc import Iterator
from itertools import islice, starmap

import attrs

from modelyard.domain.evaluation.prediction import Prediction
from modelyard.domain.job import Job, JobKind
from modelyard.formats.jsonl import read_some
from modelyard.platform.evaluations.resume import Left, Place
from modelyard.platform.evaluations.scheduler import Item
from modelyard.platform.paging import every, scan
from modelyard.platform.runtime import Ports
from modelyard.protocols import Snapshot


@attrs.frozen
class JobRows:
    """What a job is about. A row's trials follow each other, and a row and trial has one number."""

    ports: Ports
    job: Job

    def items(self, left: Left) -> Iterator[Item]:
        """What is left of them, read as it is asked for."""
        if self.job.kind is JobKind.RESCORE:
            return self._copied(left)
        return self._read(left)

    def places(self, snapshot: Snapshot, first: int) -> Iterator[Place]:
        """The place of every row from the number `first` on."""
        if self.job.kind is JobKind.RESCORE:
            sources = every(snapshot, Prediction, "by_run", self.job.spec["source"])
            return islice(starmap(_place_in_copy, enumerate(sources)), first, None)
        return (divmod(number, self.job.spec["trials"]) for number in range(first, self.job.spec["total"]))

    def _copied(self, left: Left) -> Iterator[Item]:
        for number, source in enumerate(scan(self.ports, Prediction, "by_run", self.job.spec["source"])):
            if left.has(number, place := _place_in_copy(number, source)):
                yield Item(number, *place, source.inputs, source)

    def _read(self, left: Left) -> Iterator[Item]:
        trials = self.job.spec["trials"]
        first, rows = left.begun // trials, {index for index, _ in left.open}
        with self.ports.artifacts.open(self.job.spec.get("artifact") or self.job.spec["dataset"]) as file:
            for index, row in read_some(file, lambda index: index >= first or index in rows):
                for trial in range(trials):
                    if left.has(number := index * trials + trial, (index, trial)):
                        yield Item(number, index, trial, row)


def _place_in_copy(number: int, source: Prediction) -> Place:
    """Where a prediction stands in the run that scores it anew; a client's own have no index."""
    return number if source.index is None else source.index, source.trial
