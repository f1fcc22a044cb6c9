"""Jobs in a Slurm cluster, by its commands: sbatch, squeue, scancel."""

import getpass
import os
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from modelyard.domain.job import Needs
from modelyard.errors import ClusterError
from modelyard.parts.clusters.cluster import Cluster
from modelyard.protocols import Ended, ExecutorState, Running, Waiting

SECONDS = 60.0
"""How long one command may take."""
END_OF_LOG = 4096
"""How many bytes of a job's output are read."""

WAITS = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
ENDS = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
OWN_FAULTS = frozenset({"FAILED", "OUT_OF_MEMORY"})
"""What a job ends with by its own doing; anything else came from outside."""
INFINITE = float("inf")
UNREACHED = ("configuration source", "contact slurm controller")
"""What Slurm's commands write where they have found no cluster."""
KILLED = (9, 15)
"""Signals that come from outside of a process."""


NEVER = frozenset({"BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionNodeLimit", "PartitionTimeLimit"})
"""Reasons for which a job waits that no free node ends."""
NOTICE, EARLY = 90, 60
"""How many seconds before its time limit a job is asked to stop, and by how many more Slurm may be early."""
SHORTEST = 2 * EARLY
"""The shortest time limit, in seconds, that leaves a job time to work whenever the notice comes."""


def no_options(needs: Needs) -> Sequence[str]:
    """Return no options: what a job takes is the partition's default, or in SBATCH_ variables of the environment."""
    return ()


def _amounts(needs: Needs) -> Sequence[str]:
    gpus = [f"--gpus={needs.accelerators}"] if needs.accelerators else []
    return [*gpus, f"--mem={needs.memory}G"] if needs.memory else gpus


class SlurmJobs:
    """The Slurm cluster of the commands that are installed here; all jobs go to `partition`, or to the default one.

    `options` returns further options of sbatch for a job with certain needs, such as ("--time=4:00:00",). The
    accelerators (--gpus) and the memory (--mem) that a request has named are added. Outputs are written into the folder
    `logs`, which the nodes share with this machine.

    A job that is cancelled or preempted, or reaches its time limit, gets SIGTERM first, `notice` seconds before a time
    limit, and is then returned to the queue with its saved state. By default these are 90 seconds, and a quarter of a
    limit of less than six minutes. A limit of less than two minutes, or than the notice and a minute, is refused: Slurm
    may send the notice a minute early.
    """

    def __init__(
        self,
        partition: str | None = None,
        *,
        options: Callable[[Needs], Sequence[str]] = no_options,
        logs: str | Path = ".",
        notice: int | None = None,
    ) -> None:
        self._options, self._logs = options, Path(logs).absolute()
        self._notice = notice
        self._limit: float | None = None
        self._partition = () if partition is None else (f"--partition={partition}",)

    @property
    def name(self) -> str:
        """The only Slurm that the commands speak to."""
        return "slurm"

    def check(self) -> None:
        """Raise `ClusterError` for a missing command, no answer, or an unknown partition."""
        found = _run("sinfo", "--noheader", "--format=%R", *self._partition)
        if self._partition and not found.split():
            known = ", ".join(sorted(set(_run("sinfo", "--noheader", "--format=%R").split())))
            raise ClusterError(f"slurm has no partition {self._partition[0].partition('=')[2]!r}; it has {known}")
        self._signal(())

    def _signal(self, options: Sequence[str]) -> str:
        """Return the option that asks for the notice. Raises `ClusterError` for a limit that leaves no time for it."""
        named = [one.partition("=")[2] for one in options if one.startswith("--time=")]
        limit = _seconds((named or [os.environ.get("SBATCH_TIMELIMIT", "")])[-1]) or self._limit_of_partition()
        notice = self._notice
        if notice is None:
            notice = int(min(NOTICE, limit / 4))
        if limit < max(SHORTEST, notice + EARLY):
            raise ClusterError(
                f"the time limit of {limit:g} s is too short: slurm may ask a job to stop {notice + EARLY} s before; "
                f"give jobs at least {max(SHORTEST, notice + EARLY)} s, by the partition or by --time"
            )
        return f"--signal=B:TERM@{notice}"

    def _limit_of_partition(self) -> float:
        """Return the seconds that a job of the partition gets that names no limit; read once."""
        if self._limit is None:
            rows = [
                line.split() for line in _run("sinfo", "--noheader", "--format=%P %L %l", *self._partition).splitlines()
            ]
            chosen = [row for row in rows if len(row) == 3 and (self._partition or row[0].endswith("*"))]
            limits = [_seconds(default) or _seconds(most) or INFINITE for _, default, most in chosen]
            self._limit = min(limits, default=INFINITE)
        return self._limit

    def start(self, name: str, command: Sequence[str], needs: Needs) -> str:
        """Submit a batch job, which becomes the command."""
        where = (f"--job-name={name}", f"--output={self._logs / 'slurm-%j.out'}")
        options = self._options(needs)
        always = ("--parsable", "--no-requeue", self._signal(options))
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
        answer = _run("sbatch", *always, *self._partition, *where, *options, *_amounts(needs), input=script)
        return answer.strip().partition(";")[0]

    def states(self, ids: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the states of jobs, from the list of this user's jobs. Ended jobs stay in it for minutes."""
        listed = _run(
            "squeue",
            f"--user={getpass.getuser()}",
            "--states=all",
            "--noheader",
            "--Format=JobID:|,State:|,exit_code:|,Reason:|",
        )
        rows = {
            job: (state, int(status), reason)
            for job, state, status, reason, *_ in (line.split("|") for line in listed.splitlines())
        }
        return {job: _state(*rows[job]) for job in ids if job in rows}

    def stop(self, id: str) -> None:
        """Send SIGTERM, and SIGKILL after Slurm's KillWait; a job that waits leaves the queue."""
        _run("scancel", "--quiet", id)

    def output(self, id: str) -> str:
        """Return the end of its output, if this machine sees the file."""
        try:
            with (self._logs / f"slurm-{id}.out").open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - END_OF_LOG))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""


def _run(*command: str, input: str | None = None) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the words are the host's and ours; no shell reads them
            command,
            input=input,
            stdin=None if input else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ClusterError(f"there is no command {command[0]} here; install Slurm's client commands") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"slurm does not answer: {command[0]} took more than {SECONDS:g} seconds") from None
    if done.returncode:
        words = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
        if any(sign in words for sign in UNREACHED):
            words = (
                f"{words.splitlines()[-1]}; look whether slurmctld runs, and whether this machine has its slurm.conf"
            )
        raise ClusterError(f"slurm refuses: {words}")
    return done.stdout


def _seconds(limit: str) -> float | None:
    """Return the seconds of a time limit as Slurm writes it, such as 2:00 or 1-12:00:00; None if it is not a time."""
    days, _, rest = limit.rpartition("-")
    try:
        first, *more = (int(part) for part in rest.split(":"))
        units = (3600, 60, 1) if days or len(more) == 2 else (60, 1)
        return 86_400 * int(days or 0) + sum(part * unit for part, unit in zip((first, *more), units, strict=False))
    except ValueError:
        return None


def _state(state: str, status: int, reason: str = "") -> ExecutorState:
    """Return the state of a job; `status` is that of wait(2)."""
    if state in WAITS:
        return Waiting(f"slurm will never place it: {reason}" if reason in NEVER else "")
    if state not in ENDS:
        return Running()
    if state == "COMPLETED":
        return Ended()
    end = f"exit status {status >> 8}" if status >> 8 else f"signal {status & 127}"
    outside = state not in OWN_FAULTS or (status & 127) in KILLED or status >> 8 in [128 + one for one in KILLED]
    return Ended(f"slurm ended it as {state}, with {end}", preempted=outside)


_conforms: type[Cluster] = SlurmJobs
