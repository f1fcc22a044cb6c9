"""The jobs with which the contract of executors tries one. Processes of such jobs load no test framework."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from modelyard.domain.job import Claim

PATIENCE = 60.0
"""Seconds to wait for an expected event: many, since only a broken executor takes that long."""
A_WHILE = 0.1
BETWEEN_LOOKS = 0.005
SHARE = 0.02
"""Of the time waited, after which to look again: processes that start share the processors with who waits for them."""


class Trials(Protocol):
    """Jobs to test an executor with. The part of a job's id before the first "-" is what the job does: "brief" ends at
    once, "failing" raises, "waiting" runs until it is released, "slow" takes a while after that."""

    def run(self, claim: Claim) -> None:
        """Run the job: the function that `submit` gets."""
        ...

    def begun(self) -> Sequence[str]:
        """Return the ids of the jobs that have begun, in order, one for each run."""
        ...

    def ended(self) -> Sequence[str]:
        """Return the ids of the jobs that ended without raising."""
        ...

    def release(self) -> None: ...


class TrialsHere:
    """Jobs in this process. The claim of each run is stored in `claims`."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self._ended: list[str] = []
        self._go_on = threading.Event()

    def run(self, claim: Claim) -> None:
        self.claims.append(claim)
        what = claim.job_id.partition("-")[0]
        if what == "failing":
            raise RuntimeError("a job must not raise")
        if what == "waiting":
            assert self._go_on.wait(PATIENCE)
        if what == "slow":
            threading.Event().wait(A_WHILE)
        self._ended.append(claim.job_id)

    def begun(self) -> Sequence[str]:
        return [claim.job_id for claim in self.claims]

    def ended(self) -> Sequence[str]:
        return list(self._ended)

    def release(self) -> None:
        self._go_on.set()


class TrialsElsewhere:
    """The same jobs in other processes, which write what they do into a folder that they share with this one.

    Such a process calls `trial_elsewhere` as its factory, with the folder as its argument:

        SubprocessExecutor("modelyard.parts.contracts.executor_trials:trial_elsewhere", [str(folder)])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, claim: Claim) -> None:
        """Refuse: the job must not run in this process."""
        raise AssertionError("the job must not run in this process")

    def begun(self) -> Sequence[str]:
        return self._written("begun")

    def ended(self) -> Sequence[str]:
        return self._written("ended")

    def release(self) -> None:
        (self.folder / "released").touch()

    def _written(self, what: str) -> Sequence[str]:
        file = self.folder / what
        return file.read_text(encoding="utf-8").split() if file.exists() else []


def trial_elsewhere(folder: str) -> NoReturn:
    """Be the factory of `python -m modelyard.worker` for `TrialsElsewhere`: do what the job's id says, and exit."""
    job, place = sys.argv[2], Path(folder)
    _write(place / "begun", job)
    what = job.partition("-")[0]
    if what == "failing":
        raise RuntimeError("a job must not raise")
    if what == "waiting":
        until((place / "released").exists)
    if what == "slow":
        threading.Event().wait(A_WHILE)
    _write(place / "ended", job)
    sys.exit(0)


def _write(file: Path, job: str) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{job}\n")


def until(condition: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < PATIENCE, "the condition did not become true"
        threading.Event().wait(max(BETWEEN_LOOKS, SHARE * waited))
