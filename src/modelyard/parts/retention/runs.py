"""Let go of evaluation runs that ended long ago, with their predictions and scores, after a file has them."""

from collections.abc import Iterator
from datetime import datetime
from functools import partial

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, Prediction, Score
from modelyard.parts.retention.in_use import InUse
from modelyard.parts.retention.retained import AT_ONCE, Export, Path, exporting, time_before
from modelyard.platform.evaluations.runs import Runs
from modelyard.platform.paging import iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot


@attrs.frozen
class RemovedRuns:
    """How many runs were removed, and how many predictions and scores with them."""

    runs: int
    parts: int


def keep_runs(runtime: Runtime, runs: Runs, days: float, export: Path) -> RemovedRuns:
    """Remove the runs that ended more than so many days ago, after they were appended to `export` with their parts.

    A run stays while a job rescores it. Each run can be removed again after a crash; it may then be in the file twice.
    Raises `InvalidInput`.
    """
    until = time_before(runtime, days)
    in_use = InUse(runtime)
    removed = parts = 0
    with exporting(export) as file:
        for run in _ended_before(runtime, until):
            runtime.store.read(in_use.follow)
            if (EvaluationRun, run.id) in in_use:
                continue
            parts += _export(runtime, run, file)
            removed += runs.delete([run.id], project=run.project, entity=run.entity)
    return RemovedRuns(removed, parts)


def _ended_before(runtime: Runtime, until: datetime) -> Iterator[EvaluationRun]:
    """Yield the runs that ended before a time, in the order in which they began: to the first that began later."""
    for run in iter_index_live(runtime, EvaluationRun, "all"):
        if run.started_at >= until:
            return
        if run.finished_at is not None and run.finished_at < until:
            yield run


def _export(runtime: Runtime, run: EvaluationRun, file: Export) -> int:
    file.append([run])
    exported = 0
    for cls in (Prediction, Score):
        after: tuple[object, ...] | None = None
        while page := runtime.store.read(partial(_parts, cls, run.id, after)):
            file.append(page)
            exported, after = exported + len(page), (page[-1].seq,)
    return exported


def _parts(
    cls: type[Prediction | Score], run_id: str, after: tuple[object, ...] | None, snapshot: Snapshot
) -> list[Prediction | Score]:
    return snapshot.page(cls, "by_run", run_id, after=after, limit=AT_ONCE)
