"""Jobs in a cluster. `ClusterExecutor` serves all clusters; each `Cluster` starts, lists and stops processes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol
from uuid import uuid4

import attrs

from modelyard.clock import SystemClock
from modelyard.domain.job import Claim, Needs
from modelyard.errors import ClusterError, JobRefused
from modelyard.executors.subprocess import WORKER, check_factory, with_last_words
from modelyard.lazy import log
from modelyard.protocols import Clock, Ended, Executor, ExecutorState, Running, Waiting

BETWEEN_LOOKS = 0.1
"""Seconds between two looks at jobs whose end is waited for."""


class Cluster(Protocol):
    """Starts processes on other machines, now or when there is room. Ids are strings without a space.

    Each function makes one request, however many ids it is given, also if it is given none, and raises `ClusterError`
    if the cluster does not answer, or refuses. If `states` is answered after `start` was refused, only this job is. A
    second process for one job does no harm, so a request may be sent again.
    """

    @property
    def name(self) -> str:
        """Where its ids mean the same: its kind and address."""
        ...

    def start(self, name: str, command: Sequence[str], needs: Needs) -> str:
        """Have the command run. Returns the id under which the cluster knows it.

        `name` is new, and fits a DNS label. If a caller may choose the ids of the cluster, `name` is the id, and the
        cluster must not start a second process for it.
        """
        ...

    def states(self, ids: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the states of these ids, as far as the cluster lists them."""
        ...

    def stop(self, id: str) -> None:
        """Take it out of the queue, or end it: politely first, if the cluster can. Idempotent for any string."""
        ...

    def output(self, id: str) -> str:
        """Return the last of what it has written, "" if that is not kept."""
        ...


class ClusterExecutor:
    """Runs each job in a cluster, as `PYTHON -m modelyard.worker FACTORY JOB_ID:ATTEMPT [ARGUMENT...]`.

    `factory` and `arguments` are as for `SubprocessExecutor`; the machines of the cluster must have them, and reach the
    same store and artifacts. With `log`, "text" or "json", a job's log goes to its standard error.

    Jobs outlive this process when it is closed with `leave`; their handles are enough to find
    them again. The cluster is asked for its list at most every `interval` seconds, once for all jobs. While it does not
    answer, jobs are taken to be as they were last seen: a job that runs keeps its own lease. A job that the cluster
    does not list for `patience` seconds has ended.

        executor = ClusterExecutor(RayJobs("http://127.0.0.1:8265"), "my_yard:platform")
        with platform.worker(concurrency=100, executor=executor):
            ...

    Raises `InvalidInput` if `factory` names no function.
    """

    isolates = True

    def __init__(
        self,
        cluster: Cluster,
        factory: str,
        arguments: Sequence[str] = (),
        *,
        python: str = "python",
        log: str = "",
        interval: float = 2.0,
        patience: float = 60.0,
        grace: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        check_factory(factory)
        self._cluster = cluster
        form = [f"--log={log}"] if log else []
        self._before, self._after = (python, "-X", "faulthandler", "-m", WORKER, *form, factory), tuple(arguments)
        self._interval, self._patience, self._grace = interval, patience, grace
        self._clock = clock or SystemClock()
        self._seen: dict[str, _Seen] = {}
        self._mine: set[str] = set()
        self._stopped: set[str] = set()
        self._asked: float | None = None
        self._answers = True

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        """Submit the job. It is submitted again if no answer has come.

        Raises `JobRefused` if the cluster answers, but not to this job, and `ClusterError` if it does not answer.
        """
        name, command = f"modelyard-{uuid4().hex}", [*self._before, claim.address, *self._after]
        try:
            job = self._cluster.start(name, command, needs)
        except Exception as refusal:  # noqa: BLE001 - options of the host for these needs may raise anything
            self._cluster.states(())  # raises if it is the cluster's own fault
            job = self._again(name, command, needs, refusal)
        handle = f"{self._cluster.name} {job}"
        self._mine.add(handle)
        self._seen[job] = _Seen(Waiting(), self._clock.monotonic())
        return handle

    def _again(self, name: str, command: Sequence[str], needs: Needs, refusal: Exception) -> str:
        try:
            return self._cluster.start(name, command, needs)
        except ClusterError as error:
            raise JobRefused(str(error)) from None
        except Exception as error:  # noqa: BLE001 - as above
            raise JobRefused(f"{type(error).__name__}: {error}") from refusal

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the states of jobs, from the cluster's list."""
        jobs = {handle: self._id(handle) for handle in handles}
        self._ask([job for job in jobs.values() if job])
        return {handle: self._state(handle, job) for handle, job in jobs.items()}

    def _id(self, handle: str) -> str:
        """Return the cluster's id for a handle; "" if the handle belongs to another cluster, or to none."""
        name, _, job = handle.rpartition(" ")
        return job if name == self._cluster.name else ""

    def _ask(self, ids: Collection[str]) -> None:
        """Read the cluster's list, unless it was read just now."""
        now = self._clock.monotonic()
        fresh = self._asked is not None and now - self._asked < self._interval
        if not ids or (fresh and self._seen.keys() >= set(ids)):
            return
        self._asked = now
        try:
            found = self._cluster.states(ids)
        except ClusterError as error:
            self._note(answers=False, why=str(error))
            return
        self._note(answers=True)
        for job in ids:
            state = found.get(job) or self._unlisted(job, now)
            if state is not None:
                self._seen[job] = _Seen(state, now)

    def _unlisted(self, id: str, now: float) -> ExecutorState | None:
        """Return the end of a job that the cluster does not list, or None while the cluster may still list it."""
        seen = self._seen.get(id)
        if seen is not None and id not in self._stopped and now - seen.when < self._patience:
            return None
        return Ended(f"{self._cluster.name} does not list it", preempted=True)

    def _note(self, answers: bool, why: str = "") -> None:
        """Log that the cluster does not answer, and that it does again, once each."""
        if answers and not self._answers:
            log.warning("%s answers again", self._cluster.name)
        elif self._answers and not answers:
            log.warning("jobs are taken to be as they were: %s", why)
        self._answers = answers

    def _state(self, handle: str, id: str) -> ExecutorState:
        if not id:
            return Ended("its handle is not of this cluster")
        state = self._seen[id].state if id in self._seen else Running()
        if isinstance(state, Waiting) and id in self._stopped:  # some clusters keep what they cannot stop
            state = Ended("it was cancelled while it waited", preempted=True)
        if isinstance(state, Ended):
            self._mine.discard(handle)
            self._seen.pop(id, None)
        return self._with_output(state, id)

    def _with_output(self, state: ExecutorState, id: str) -> ExecutorState:
        if not isinstance(state, Ended) or not state.fault:
            return state
        try:
            return attrs.evolve(state, fault=with_last_words(state.fault, self._cluster.output(id)))
        except ClusterError as error:
            log.warning("the output of %s cannot be read: %s", id, error)
            return state

    def cancel(self, handle: str) -> None:
        """Stop the job. If the cluster does not answer, that is logged; the worker cancels it again."""
        job = self._id(handle)
        if not job or job in self._stopped:
            return
        try:
            self._cluster.stop(job)
        except ClusterError as error:
            log.warning("%s cannot be stopped: %s", job, error)
        else:
            self._stopped.add(job)

    def reattach(self, handle: str, alive: bool) -> bool:
        """Return whether the job is this executor's, or runs in this cluster and its worker is gone."""
        return handle in self._mine or (bool(self._id(handle)) and not alive)

    def close(self, leave: bool = False) -> None:
        """Stop the jobs that this executor has submitted, and wait for their end within the grace; or leave them."""
        if leave:
            return
        for handle in tuple(self._mine):
            self.cancel(handle)
        until = self._clock.monotonic() + self._grace
        while self._mine and self._clock.monotonic() < until:
            self._asked = None
            self.states(tuple(self._mine))
            self._clock.sleep(BETWEEN_LOOKS if self._mine else 0)


@attrs.frozen
class _Seen:
    state: ExecutorState
    when: float


_conforms: type[Executor] = ClusterExecutor
