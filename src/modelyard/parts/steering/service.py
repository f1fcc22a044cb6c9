"""Steering a run that workers evaluate: `platform.evaluations.steering`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind, JobStatus, QueueState
from modelyard.domain.record import Order
from modelyard.errors import Conflict, InvalidInput, NotFound, Problem, StoreError
from modelyard.formats.jsonl import dump_row, in_chunks
from modelyard.parts.steering.records import EarlierAnswer, SteeringAction, SteeringEntry
from modelyard.parts.steering.work import reopen, stored_rows
from modelyard.platform.evaluations.input_rows import RowData, rows_given
from modelyard.platform.evaluations.resume import check_portable, engine_jobs
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.evaluations.shards import last_jobs
from modelyard.platform.evaluations.spec import limits_of
from modelyard.platform.jobs.queue import request_pause, resume_paused
from modelyard.platform.listing import Listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

LIMITS = ("concurrency", "scorer_concurrency", "timeout", "retries", "error_budget")
MOST_INDICES = 10_000


Step = Callable[[Tx, SteeringEntry, Sequence[Job], str | None], SteeringEntry]
"""Asks something of the jobs of a run, for which a file may have its rows. Returns the entry as it stands."""


class Steering:
    """Runs that are steered while workers evaluate them, by their ids; each request is kept in the run's audit.

    A worker that is at it finishes the rows under way, and then does what was asked: no row is asked twice for it.

    platform.evaluations.steering.change(run.id, concurrency=2)
    platform.evaluations.steering.requeue(run.id)
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def pause(self, run_id: str) -> SteeringEntry:
        """Stop a run after the rows under way, until it is resumed. Raises `NotFound`, `Conflict` if it has ended."""

        def step(tx: Tx, entry: SteeringEntry, jobs: Sequence[Job], file: str | None) -> SteeringEntry:
            going = [job for job in jobs if not job.ended]
            if not going:
                raise Conflict(f"evaluation run {run_id} has ended, so nothing of it can be paused")
            works = [job for job in going if job.status is JobStatus.RUNNING]
            for job in going:
                if job not in works:
                    request_pause(tx, job.id, self._principal.name)
            return self._asked_of(entry, works)

        return self._steer(run_id, SteeringAction.PAUSE, step)

    def resume(self, run_id: str) -> SteeringEntry:
        """Let a paused run go on. Raises `NotFound`, `Conflict` if it is not paused."""

        def step(tx: Tx, entry: SteeringEntry, jobs: Sequence[Job], file: str | None) -> SteeringEntry:
            asked = iter_index(tx, SteeringEntry, "waiting", run_id, True)
            pauses = [one for one in asked if one.action is SteeringAction.PAUSE]
            for one in pauses:
                tx.replace(attrs.evolve(one, left=(), pending=False, applied_at=entry.created_at))
            resumed = [resume_paused(tx, job) for job in jobs]
            if not pauses and not any(resumed):
                raise Conflict(f"evaluation run {run_id} is not paused")
            return self._asked_of(entry, ())

        return self._steer(run_id, SteeringAction.RESUME, step)

    def change(self, run_id: str, **limits: Any) -> SteeringEntry:
        """Give a run other limits: concurrency, scorer_concurrency, timeout (seconds, or None), retries, error_budget.

        A run that has failed has them when it is resumed. Raises `NotFound`, `InvalidInput`, TypeError for another
        name, and `Conflict` for a run that has completed or was cancelled.
        """
        for name in limits:
            if name not in LIMITS:
                raise TypeError(f"change() got an unexpected keyword argument {name!r}; it takes {', '.join(LIMITS)}")
        return self.change_limits(run_id, limits)

    def change_limits(self, run_id: str, limits: Mapping[str, Any]) -> SteeringEntry:
        """Give a run other limits as `change` does, by their names. Raises `InvalidInput` for another name, too."""
        _check_limits(limits)

        def step(tx: Tx, entry: SteeringEntry, jobs: Sequence[Job], file: str | None) -> SteeringEntry:
            if tx.get(EvaluationRun, run_id).state not in (RunState.RUNNING, RunState.FAILED):
                raise Conflict(f"evaluation run {run_id} has ended, and has no limits any more")
            before = {**jobs[0].spec["limits"], "error_budget": jobs[0].spec["error_budget"]}
            for one in sorted(iter_index(tx, SteeringEntry, "waiting", run_id, True), key=lambda one: one.id):
                if one.action is SteeringAction.LIMITS:
                    before |= {name: to for name, (_, to) in one.changed.items()}
            changed = {name: [before[name], to] for name, to in limits.items()}
            for job in jobs:
                if job.status is JobStatus.FAILED:
                    tx.replace(attrs.evolve(job, spec=_with(job.spec, limits)))
            going = [job for job in jobs if not job.ended]
            return self._asked_of(attrs.evolve(entry, changed=changed), going)

        return self._steer(run_id, SteeringAction.LIMITS, step)

    def requeue(self, run_id: str, rows: Iterable[int] | None = None) -> SteeringEntry:
        """Ask rows of a run again, by their indices, in all trials; or those that have failed.

        They are booked again, and the earlier answers stay in `earlier`. A run that has completed or failed goes on
        with them, and has no summary until it has ended again. Raises `NotFound`, `InvalidInput`, and `Conflict`, also
        where a completed run has no failed row.
        """
        chosen: Mapping[str, Any] = {"failed": True} if rows is None else {"indices": _indices(rows)}

        def step(tx: Tx, entry: SteeringEntry, jobs: Sequence[Job], file: str | None) -> SteeringEntry:
            summary = tx.get(EvaluationRun, run_id).summary
            if rows is None and summary and all(of["scored"] == of["trials"] for of in summary["scorers"].values()):
                raise Conflict(
                    f"no row of evaluation run {run_id} has failed; name the rows that are to be asked again"
                )
            total = _rows_of(tx, run_id, jobs)
            beyond = next((one for one in chosen.get("indices", ()) if one >= total), None)
            if beyond is not None:
                raise InvalidInput.at("rows", msg=f"row {beyond} is not in the run, which has {total} rows from 0 on")
            return self._asked_of(attrs.evolve(entry, rows=chosen), self._going(tx, entry, jobs, file))

        return self._steer(run_id, SteeringAction.REQUEUE, step)

    def add_rows(self, run_id: str, rows: RowData) -> SteeringEntry:
        """Add rows to a run, after those that it has: rows, the reference of a dataset, or for the host a file.

        A run that has completed or failed goes on with them. Raises `NotFound`, `InvalidInput`, and `Conflict` for a
        run in shards.
        """
        find_run(self._runtime, self._principal, run_id)
        count = 0

        def lines() -> Iterable[bytes]:
            nonlocal count
            for count, row in enumerate(rows_given(self._runtime, self._principal, rows), 1):
                yield dump_row(row, count - 1)

        name = self._runtime.artifacts.put(in_chunks(lines())).name

        def step(tx: Tx, entry: SteeringEntry, jobs: Sequence[Job], file: str | None) -> SteeringEntry:
            if count == 0:
                raise InvalidInput.at("rows", msg="there are none")
            if len(jobs) > 1:
                raise Conflict(f"evaluation run {run_id} is split in shards; evaluate these rows in a run of their own")
            before = _rows_of(tx, run_id, jobs)
            added = attrs.evolve(entry, changed={"rows": [before, before + count]}, added=name)
            return self._asked_of(added, self._going(tx, entry, jobs, file))

        try:
            return self._steer(run_id, SteeringAction.ROWS, step)
        except BaseException:
            with suppress(StoreError):  # a sweep removes what no record names
                if not any(one.added == name for one in self.audit(run_id)):  # else it was kept, unheard
                    self._runtime.artifacts.remove(name)
            raise

    # ---- what was asked, and answered before

    def audit(self, run_id: str) -> Sequence[SteeringEntry]:
        """Return what was asked of a run, the oldest first: who, when, from what to what. Raises `NotFound`."""
        find_run(self._runtime, self._principal, run_id)
        found = self._runtime.store.read(lambda snapshot: [*iter_index(snapshot, SteeringEntry, "by_run", run_id)])
        return sorted(found, key=lambda one: one.id)

    def earlier(self, run_id: str, *, order: Order = "asc") -> Listing[EarlierAnswer]:
        """List the answers of a run that were asked for again, by row and trial. Raises `NotFound`."""
        find_run(self._runtime, self._principal, run_id)
        return index_listing(self._runtime, EarlierAnswer, "by_run", run_id, place=self._place, order=order)

    def is_paused(self, run_id: str) -> bool:
        """Return whether a run is paused, or pauses after the rows under way. Raises `NotFound`."""
        find_run(self._runtime, self._principal, run_id)

        def read(snapshot: Snapshot) -> bool:
            waits = iter_index(snapshot, SteeringEntry, "waiting", run_id, True)
            asked = any(one.action is SteeringAction.PAUSE for one in waits)
            return asked or any(job.place is QueueState.PAUSED for job in last_jobs(snapshot, run_id))

        return self._runtime.store.read(read)

    def _place(self, id: str, snapshot: Snapshot) -> Any:
        found = get_or_none(snapshot, EarlierAnswer, id)
        if found is None:
            raise NotFound("Answer", id)
        return cursor_at(EarlierAnswer, "by_run", found)

    # ---- one request

    def _steer(self, run_id: str, action: SteeringAction, step: Step) -> SteeringEntry:
        found = find_run(self._runtime, self._principal, run_id)
        file = self._file(found) if action in (SteeringAction.REQUEUE, SteeringAction.ROWS) else None
        try:
            return self._stored(found, action, step, file)
        finally:
            with suppress(StoreError):  # a sweep removes what no record names
                if file is not None and not self._is_named(run_id, file):
                    self._runtime.artifacts.remove(file)

    def _file(self, run: EvaluationRun) -> str | None:
        """Return a file of the rows of a run that has completed, if its own is gone."""
        jobs = self._runtime.store.read(lambda snapshot: engine_jobs(snapshot, run.id))
        if run.state is not RunState.COMPLETED or jobs[0].kind != JobKind.EVALUATE or "dataset" in jobs[0].spec:
            return None
        return self._runtime.artifacts.put(in_chunks(stored_rows(self._runtime, run.id))).name

    def _is_named(self, run_id: str, file: str) -> bool:
        jobs = self._runtime.store.read(lambda snapshot: engine_jobs(snapshot, run_id))
        return any(job.spec.get("artifact") == file for job in jobs)

    def _stored(self, found: EvaluationRun, action: SteeringAction, step: Step, file: str | None) -> SteeringEntry:
        run_id = found.id
        who = self._principal.name, self._principal.key_id
        entry = SteeringEntry(
            self._runtime.ids(), found.entity, found.project, run_id, action, *who, self._runtime.clock.now()
        )

        def asked(tx: Tx) -> SteeringEntry:
            jobs = engine_jobs(tx, run_id)
            if tx.get(EvaluationRun, run_id).state is RunState.CANCELLED:
                raise Conflict(f"evaluation run {run_id} was cancelled, and takes nothing more; start another one")
            if jobs[0].kind != JobKind.EVALUATE:
                raise Conflict(f"evaluation run {run_id} scores the outputs of another one again, and is not steered")
            for job in jobs:
                check_portable(job)
            made = step(tx, entry, jobs, file)
            tx.add(made)
            return made

        return self._runtime.store.transact(asked)

    def _asked_of(self, entry: SteeringEntry, jobs: Sequence[Job]) -> SteeringEntry:
        """Return the entry as it waits for jobs; done at once if none is to do anything."""
        left = tuple(job.lane for job in jobs)
        return attrs.evolve(entry, left=left, pending=bool(left), applied_at=None if left else entry.created_at)

    def _going(self, tx: Tx, entry: SteeringEntry, jobs: Sequence[Job], file: str | None) -> Sequence[Job]:
        """Return the jobs of a run that goes on, which it may have to be reopened for."""
        run = tx.get(EvaluationRun, entry.run_id)
        for reader in iter_index(tx, EvaluationRun, "by_source", run.id):
            if any(not job.ended for job in last_jobs(tx, reader.id)):
                raise Conflict(f"evaluation run {reader.id} scores these outputs again; wait for its end, or cancel it")
        ended = [job for job in jobs if job.ended]
        if run.state is RunState.RUNNING and not ended:
            return jobs
        reopen(self._runtime, tx, run, ended, entry.created_at, file)
        return jobs


def _rows_of(tx: Tx, run_id: str, jobs: Sequence[Job]) -> int:
    """Return how many rows a run has, with those that are to be added."""
    rows = sum(job.spec["total"] for job in jobs) // jobs[0].spec.get("trials", 1)
    waits = iter_index(tx, SteeringEntry, "waiting", run_id, True)
    found: int = max([rows, *(one.changed["rows"][1] for one in waits if one.added)])
    return found


def _with(spec: Mapping[str, Any], limits: Mapping[str, Any]) -> Mapping[str, Any]:
    own = {name: value for name, value in limits.items() if name != "error_budget"}
    budget = {"error_budget": limits["error_budget"]} if "error_budget" in limits else {}
    return {**spec, "limits": {**spec["limits"], **own}, **budget}


def _check_limits(limits: Mapping[str, Any]) -> None:
    if not limits:
        raise InvalidInput.at("limits", msg=f"name what is to change: {', '.join(LIMITS)}")
    unknown = [Problem((name,), f"is no limit; there are {', '.join(LIMITS)}") for name in limits if name not in LIMITS]
    if unknown:
        raise InvalidInput(unknown)
    limits_of(limits, ())


def _indices(rows: Iterable[int]) -> list[int]:
    given: Any = rows
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    found = [*islice(given, MOST_INDICES + 1)] if several else [given]
    wrong = next((at for at, one in enumerate(found) if type(one) is not int or one < 0), None)
    if wrong is not None:
        raise InvalidInput([Problem(("rows", wrong), "must be the index of a row, from 0 on")])
    if not 0 < len(found) <= MOST_INDICES:
        raise InvalidInput.at("rows", msg=f"must be 1 to {MOST_INDICES} indices")
    return sorted(set(found))
