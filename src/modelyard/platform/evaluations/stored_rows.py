"""The rows of a run as a job works on them: from the stored file to the work, and from that to records. They are never
all in memory. The rows of a rescoring are the predictions of its source. Every progress event records how many rows had
been begun when it was stored, and which of these were not done. Rows begin in order, and only so many can be
uncommitted at a time. So the rows that were stored since are found without reading all that are done: by looking up the
rows that were open, and then one row after the other, until as many are missing as can be uncommitted."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice, starmap
from types import MappingProxyType
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import Prediction, Score, Source
from modelyard.domain.evaluation.running_totals import VALUE
from modelyard.domain.frozen_fast import maker
from modelyard.domain.job import Job, JobKind
from modelyard.domain.record import EMPTY, WrittenMapping, frozen_mapping
from modelyard.formats.jsonl import read_dumped
from modelyard.platform.evaluations.references import Namespace
from modelyard.platform.evaluations.row_evaluation import ModelUnderTest
from modelyard.platform.evaluations.scheduler import RowInFlight, WorkItem
from modelyard.platform.evaluations.shards import RemainingRows, RowKey, shard_of
from modelyard.platform.evaluations.stored_run import scores_of
from modelyard.platform.paging import iter_index, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

# ---- what a job works on


@attrs.frozen
class JobRows:
    """The rows that a job works on: all of its run, or those of its shard. The trials of a row follow each other; each
    trial of each row has a number."""

    runtime: Runtime
    job: Job

    @property
    def shard(self) -> tuple[int, int]:
        return shard_of(self.job)

    def items(self, left: RemainingRows) -> Iterator[WorkItem]:
        """Read the remaining rows, one at a time."""
        if self.job.kind == JobKind.RESCORE:
            return self._copied(left)
        return self._read(left)

    def keys(self, snapshot: Snapshot, first: int) -> Iterator[RowKey]:
        (shard, shards), trials = self.shard, self.job.spec.get("trials", 1)
        if self.job.kind == JobKind.RESCORE:
            sources = iter_index(snapshot, Prediction, "by_run", self.job.spec["source"])
            return islice(starmap(_key_of_copy, enumerate(sources)), shard + shards * first, None, shards)
        keys = (divmod(number, trials) for number in range(first, self.job.spec["total"]))
        return ((shard + shards * row, trial) for row, trial in keys)

    def _copied(self, left: RemainingRows) -> Iterator[WorkItem]:
        shard, shards = self.shard
        sources = enumerate(iter_index_live(self.runtime, Prediction, "by_run", self.job.spec["source"]))
        for number, (place, source) in enumerate(islice(sources, shard, None, shards)):
            if left.has(number, key := _key_of_copy(place, source)):
                yield WorkItem(number, *key, source.inputs, source.inputs, source.row_digest, source)

    def _read(self, left: RemainingRows) -> Iterator[WorkItem]:
        (shard, shards), trials = self.shard, self.job.spec["trials"]
        first, rows = left.begun // trials, {index for index, _ in left.open}

        def wanted(index: int) -> bool:
            return index % shards == shard and (index // shards >= first or index in rows)

        with self.runtime.artifacts.open(self.job.spec.get("artifact") or self.job.spec["dataset"]) as file:
            for index, row, text in read_dumped(file, wanted):
                kept = frozen_mapping(row) if "\\" in text else WrittenMapping(text), digest(row)
                for trial in range(trials):
                    if left.has(number := index // shards * trials + trial, (index, trial)):
                        yield WorkItem(number, index, trial, row, *kept)


def _key_of_copy(number: int, source: Prediction) -> RowKey:
    return number if source.index is None else source.index, source.trial


# ---- which rows are left


def remaining_rows(
    snapshot: Snapshot,
    run_id: str,
    progress: Mapping[str, Any],
    keys_from: Callable[[int], Iterable[RowKey]],
    width: int,
    count: Callable[[Prediction, list[Score]], None],
) -> RemainingRows:
    """Find what is left of a run, and `count` what was stored since its last `progress` event. `width` is how many rows
    may have begun and not be stored; `keys_from` gives the keys of all rows from a number on."""

    def stored(key: RowKey) -> bool:
        prediction = snapshot.find(Prediction, "place", run_id, *key)
        if prediction is not None:
            count(prediction, scores_of(snapshot, prediction))
        return prediction is not None

    begun = progress.get("begun", 0)
    still_open = [key for key in map(_key, progress.get("open", ())) if not stored(key)]
    missing: list[RowKey] = []
    for number, key in enumerate(keys_from(begun), begun):
        if not stored(key):
            missing.append(key)
        else:
            still_open += missing
            missing, begun = [], number + 1
        if len(missing) == width:
            break
    return RemainingRows(begun, frozenset(still_open))


def _key(pair: Iterable[int]) -> RowKey:
    index, trial = pair
    return index, trial


# ---- records

_prediction, _score = maker(Prediction), maker(Score)


@attrs.frozen
class RowRecords:
    """Turns finished rows into the records of a run. `scorers` are the references of the scorers by name."""

    ids: Callable[[], str]
    namespace: Namespace
    run_id: str
    model: ModelUnderTest | None
    scorers: Mapping[str, str]
    _model_ref: str = attrs.field(init=False)

    @_model_ref.default
    def _text_of_model(self) -> str:
        return "" if self.model is None else str(self.model.ref)

    def of(self, done: RowInFlight, now: datetime) -> tuple[Prediction, list[Score]]:
        copied = done.item.copied
        prediction = self._prediction(done, now) if copied is None else self._copy(done, copied, now)
        pairs = zip(self.scorers.values(), done.scores, strict=False)
        return prediction, [
            _score(
                self.ids(),
                *self.namespace,
                done.id,
                scorer,
                now,
                self.run_id,
                MappingProxyType({VALUE: score.value}) if score.scored else EMPTY,
                score.reason or None,
                score.prompt_tokens,
                score.completion_tokens,
                score.cost,
                row_digest=prediction.row_digest,
                trial=prediction.trial,
                comment=score.comment or None,
            )
            for scorer, score in pairs
        ]

    def _prediction(self, done: RowInFlight, now: datetime) -> Prediction:
        model, call, item = self.model, done.call, done.item
        assert model is not None
        assert call is not None
        reply = call.reply
        return _prediction(
            done.id,
            *self.namespace,
            self._model_ref,
            item.inputs,
            item.row_digest,
            done.started_at,
            self.run_id,
            item.index,
            item.trial,
            Source.ENGINE,
            EMPTY if reply is None else MappingProxyType({VALUE: reply.output}),
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
