"""The rows of an evaluation job: how they are read, in the order in which they begin, and the records they become.

They are those of a dataset, or the predictions of the run that is rescored.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import islice, starmap

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.prediction import Prediction, Score, Source
from modelyard.domain.evaluation.running_totals import VALUE
from modelyard.domain.job import Job, JobKind
from modelyard.domain.record import EMPTY
from modelyard.formats.jsonl import read_some
from modelyard.platform.evaluations.row import ModelUnderTest
from modelyard.platform.evaluations.scheduler import RowInFlight, WorkItem
from modelyard.platform.paging import iter_index, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.platform.scope import Namespace
from modelyard.protocols import Snapshot

RowKey = tuple[int, int]
"""Index and trial of a row."""


@attrs.frozen
class RemainingRows:
    """The rows left to do: those from the number `begun` on, in the order in which they begin, and the `open` ones."""

    begun: int = 0
    open: frozenset[RowKey] = frozenset()

    def has(self, number: int, key: RowKey) -> bool:
        """Return whether a row is left to do."""
        return number >= self.begun or key in self.open


@attrs.frozen
class JobRows:
    """The rows that a job works on. The trials of a row follow each other; each trial of each row has a number."""

    runtime: Runtime
    job: Job

    def items(self, left: RemainingRows) -> Iterator[WorkItem]:
        """Read the remaining rows, one at a time."""
        if self.job.kind is JobKind.RESCORE:
            return self._copied(left)
        return self._read(left)

    def keys(self, snapshot: Snapshot, first: int) -> Iterator[RowKey]:
        """Yield the key of every row from the number `first` on."""
        if self.job.kind is JobKind.RESCORE:
            sources = iter_index(snapshot, Prediction, "by_run", self.job.spec["source"])
            return islice(starmap(_key_of_copy, enumerate(sources)), first, None)
        return (divmod(number, self.job.spec["trials"]) for number in range(first, self.job.spec["total"]))

    def _copied(self, left: RemainingRows) -> Iterator[WorkItem]:
        for number, source in enumerate(iter_index_live(self.runtime, Prediction, "by_run", self.job.spec["source"])):
            if left.has(number, key := _key_of_copy(number, source)):
                yield WorkItem(number, *key, source.inputs, source)

    def _read(self, left: RemainingRows) -> Iterator[WorkItem]:
        trials = self.job.spec["trials"]
        first, rows = left.begun // trials, {index for index, _ in left.open}
        with self.runtime.artifacts.open(self.job.spec.get("artifact") or self.job.spec["dataset"]) as file:
            for index, row in read_some(file, lambda index: index >= first or index in rows):
                for trial in range(trials):
                    if left.has(number := index * trials + trial, (index, trial)):
                        yield WorkItem(number, index, trial, row)


def _key_of_copy(number: int, source: Prediction) -> RowKey:
    """Return the key of a copied prediction; the predictions that clients make have no index."""
    return number if source.index is None else source.index, source.trial


# ---- records


@attrs.frozen
class RowRecords:
    """Turns finished rows into the records of a run. `scorers` are the references of the scorers by name."""

    ids: Callable[[], str]
    namespace: Namespace
    run_id: str
    model: ModelUnderTest | None
    scorers: Mapping[str, str]

    def of(self, done: RowInFlight, now: datetime) -> tuple[Prediction, list[Score]]:
        """Return the prediction and the scores of a row."""
        copied = done.item.copied
        prediction = self._prediction(done, now) if copied is None else self._copy(done, copied, now)
        pairs = zip(self.scorers.values(), done.scores, strict=False)
        return prediction, [
            Score(
                self.ids(),
                *self.namespace,
                done.id,
                scorer,
                now,
                self.run_id,
                {VALUE: score.value} if score.scored else EMPTY,
                score.reason or None,
                score.prompt_tokens,
                score.completion_tokens,
                score.cost,
                row_digest=prediction.row_digest,
                trial=prediction.trial,
            )
            for scorer, score in pairs
        ]

    def _prediction(self, done: RowInFlight, now: datetime) -> Prediction:
        model, call, item = self.model, done.call, done.item
        assert model is not None
        assert call is not None
        reply = call.reply
        return Prediction(
            done.id,
            *self.namespace,
            str(model.ref),
            item.row,
            digest(item.row),
            done.started_at,
            self.run_id,
            item.index,
            item.trial,
            Source.ENGINE,
            EMPTY if reply is None else {VALUE: reply.output},
            call.error,
            max(now, done.started_at),
            call.latency,
            None if reply is None else reply.prompt_tokens,
            None if reply is None else reply.completion_tokens,
            None if reply is None else reply.cost,
            model.price,
            model.checkpoint_step,
            call.attempts,
            int(item.unsure),
        )

    def _copy(self, done: RowInFlight, source: Prediction, now: datetime) -> Prediction:
        return attrs.evolve(
            source,
            id=done.id,
            entity=self.namespace[0],
            project=self.namespace[1],
            run_id=self.run_id,
            index=done.item.index,
            source=Source.COPIED,
            copied_from=source.id,
            started_at=done.started_at,
            finished_at=max(now, done.started_at),
            possibly_repeated=0,
        )
