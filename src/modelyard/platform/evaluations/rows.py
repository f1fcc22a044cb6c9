"""The rows of a run: from what a caller passes to a stored file, from there to the work, and from that to records.

They are checked, counted and stored before the run begins, and never whole in memory. The rows of a rescoring are the
predictions of its source.
"""

import csv
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice, starmap
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion, OneObject
from modelyard.domain.evaluation.prediction import Prediction, Score, Source
from modelyard.domain.evaluation.running_totals import VALUE
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput
from modelyard.formats.jsonl import dump_row, in_chunks, read_rows, read_some
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import Namespace, evaluation_ref
from modelyard.platform.evaluations.row import ModelUnderTest
from modelyard.platform.evaluations.scheduler import RowInFlight, WorkItem
from modelyard.platform.evaluations.scorers import Scorers, name_scorers
from modelyard.platform.evaluations.spec import (
    EVALUATION_OPTIONS,
    OneModel,
    Published,
    RunSpec,
    build_spec,
    check_models,
    check_options,
)
from modelyard.platform.paging import iter_index, iter_index_live, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

# ---- what a caller passes

RowData = Iterable[Mapping[str, Any]] | ObjectVersion | str | os.PathLike[str]
"""Any rows; the version of a dataset, or the reference of one; or the path of a file, CSV or JSON Lines."""

RunSpecs = Generator[RunSpec, None, None]
"""Specs that are made one by one. Closing it removes the rows of those that were not taken."""

_ROWS = (
    "mappings, one for each row; a version of a dataset, or its reference, such as "
    "weave:///<entity>/<project>/object/<name>; or the path of a JSON Lines file, or of a table that ends in .csv"
)


def build_specs(
    runtime: Runtime,
    principal: Principal,
    evaluation: OneObject,
    models: Sequence[OneModel],
    rows: RowData | None,
    scorers: Scorers | None,
    options: Mapping[str, Any],
    portable: bool = False,
) -> RunSpecs:
    """Build the spec of a run of each model. Everything is checked when the first is taken.

    Without `rows`, the evaluation must be published: its version then gives the rows, and by default scorers and
    trials. A `portable` run must not need functions. Raises as `build_spec`.
    """
    check_options(options, EVALUATION_OPTIONS, "run")
    namespace = named_place(runtime, principal, options.get("entity"), options.get("project"))
    models, objects = check_models(models), Objects(runtime, principal)
    if rows is None:
        published = Published.of(objects, evaluation_ref(evaluation, namespace))
        evaluation, rows = str(published.ref), published.dataset
        scorers = published.scorers if scorers is None else scorers
        options = {"trials": published.trials, **options}
    named = name_scorers("exact_match" if scorers is None else scorers, objects)
    specs = [build_spec(runtime, principal, evaluation, model, named, namespace, options) for model in models]
    for spec in specs if portable else ():
        spec.check_portable()
    return _with_dataset(runtime, principal, specs, rows)


def _with_dataset(runtime: Runtime, principal: Principal, specs: Sequence[RunSpec], rows: RowData) -> RunSpecs:
    """Add the rows to the specs, stored once for each, because a run removes its rows when it ends."""
    if isinstance(rows, str) and "://" in rows:
        rows = Objects(runtime, principal).resolve(ObjectKind.DATASET, rows)
    if isinstance(rows, ObjectVersion):
        artifact, count = _artifact_of(rows), _counted(rows.rows or 0)
        return (_with_rows(spec, count, dataset=artifact) for spec in specs)
    if isinstance(rows, str | os.PathLike):
        rows = _rows_of_file(principal, rows)
    if not isinstance(rows, Iterable):
        raise InvalidInput.at("rows", msg=f"must be {_ROWS}")
    return _spooled(runtime, specs, rows)


def rows_given(runtime: Runtime, principal: Principal, rows: RowData) -> Iterable[Mapping[str, Any]]:
    """Return the rows that a caller passes, read as they are used. Raises `InvalidInput`, `NotFound`, `Forbidden`."""
    if isinstance(rows, str) and "://" in rows:
        rows = Objects(runtime, principal).resolve(ObjectKind.DATASET, rows)
    if isinstance(rows, ObjectVersion):
        return _rows_stored(runtime, _artifact_of(rows))
    if isinstance(rows, str | os.PathLike):
        return _rows_of_file(principal, rows)
    if not isinstance(rows, Iterable):
        raise InvalidInput.at("rows", msg=f"must be {_ROWS}")
    return rows


def _rows_stored(runtime: Runtime, artifact: str) -> Iterator[Mapping[str, Any]]:
    with runtime.artifacts.open(artifact) as file:
        yield from read_rows(file)


def _counted(rows: int) -> int:
    if rows == 0:
        raise InvalidInput.at("rows", msg="there are none; an iterator that was read before has none left")
    return rows


def _rows_of_file(principal: Principal, path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    if principal.scope.entity is not None:
        raise InvalidInput.at("rows", msg="only the host may name a file; publish a dataset, and give its reference")
    if not os.path.isfile(path):
        raise InvalidInput.at("rows", msg=f"{os.fspath(path)!r} is not a file; rows must be {_ROWS}")
    try:
        if os.fspath(path).endswith(".csv"):
            yield from _csv_rows(path)
        else:
            with open(path, "rb") as file:
                yield from read_rows(file)
    except InvalidInput as wrong:
        raise wrong.below(os.fspath(path)) from None


def _csv_rows(path: str | os.PathLike[str]) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table in UTF-8, whose first line has the names of the columns. All values are strings."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        try:
            names = next(lines, [])
            if len(set(names)) < len(names):
                raise InvalidInput.at("line", 1, msg="must name each column once")
            for cells in filter(None, lines):
                if len(cells) != len(names):
                    msg = f"has {len(cells)} cells, and the first line has {len(names)}"
                    raise InvalidInput.at("line", lines.line_num, msg=msg)
                yield dict(zip(names, cells, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidInput.at("line", lines.line_num + 1, msg=f"is not valid CSV: {error}") from None


def _spooled(runtime: Runtime, specs: Sequence[RunSpec], rows: Iterable[Mapping[str, Any]]) -> RunSpecs:
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for count, row in enumerate(rows, 1):
            yield dump_row(row, count - 1)

    names = [runtime.artifacts.put(in_chunks(lines())).name]
    try:
        _counted(count)
        names += [_copy(runtime, names[0]) for _ in specs[1:]]
        for spec in specs:
            yield _with_rows(spec, count, artifact=names.pop())
    finally:
        for name in names:
            runtime.artifacts.remove(name)


def _copy(runtime: Runtime, name: str) -> str:
    with runtime.artifacts.open(name) as file:
        return runtime.artifacts.put(iter(partial(file.read, 2**16), b"")).name


def _with_rows(spec: RunSpec, count: int, **source: str) -> RunSpec:
    stored = {**spec.job.spec, **source, "total": count * spec.job.spec["trials"]}
    return attrs.evolve(spec, job=attrs.evolve(spec.job, spec=stored))


def _artifact_of(dataset: ObjectVersion) -> str:
    if dataset.kind is not ObjectKind.DATASET or dataset.rows_artifact is None:
        raise InvalidInput.at("rows", msg="must be rows, or a version of a dataset that has not been deleted")
    return dataset.rows_artifact


# ---- what a job works on

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
                comment=score.comment or None,
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
