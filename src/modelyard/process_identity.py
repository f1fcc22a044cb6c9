"""Names of processes that can be stored, and stay unique when the system reuses a process number. They are read from
Linux's `/proc`. On other systems a name means nothing to another process."""

import os
from functools import cache
from typing import Self

import attrs

PROC = "/proc"


def machine() -> str:
    """Return the scope of process names: this boot of this machine, this container. Empty if that is unknown. Another
    time namespace is another machine: the starts of processes read differently there."""
    spaces = f"{PROC}/self/ns"
    try:
        with open(f"{PROC}/sys/kernel/random/boot_id", encoding="ascii") as kept:
            found = [kept.read().strip(), os.stat(f"{spaces}/pid").st_ino]
        if os.path.exists(f"{spaces}/time"):
            found.append(os.stat(f"{spaces}/time").st_ino)
    except OSError:
        return ""
    return "-".join(map(str, found))


@attrs.frozen
class ProcessName:
    """A process: its number and when it was started, in the system's ticks since boot."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the name of a process that runs, or of a child that was not waited for yet."""
        return cls(pid, (_stat(pid) or ("", ""))[1])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        pid, _, started = text.partition("-")
        return cls(int(pid), started) if pid.isdecimal() and started.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.pid}-{self.started}"

    @property
    def lives(self) -> bool:
        """Whether it still runs here, or is frozen; a process that has ended and was not waited for does not live."""
        state, started = _stat(self.pid) or ("Z", "")
        return state not in "ZX" and started == self.started


@cache
def process_here() -> str:
    here = machine()
    return here and f"{here}/{this_process()}"


forks = 0
"""How many forks lie between this process and the one that loaded this module. An object that was made at another count
belongs to a process before a fork. The comparison costs no call of the system."""


def _count_fork() -> None:
    global forks
    forks += 1
    process_here.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def died_here(names: str) -> bool:
    """Return whether processes that `process_here` has named, with spaces between, ran here and are all dead."""
    here = machine()
    return bool(names and here) and all(_died(here, name) for name in names.split())


def _died(here: str, name: str) -> bool:
    where, _, process = name.partition("/")
    found = ProcessName.parse(process)
    return where == here and found is not None and not found.lives


def _stat(pid: int) -> tuple[str, str] | None:
    """Read the state of a process and its start, fields 3 and 22 of proc_pid_stat(5); None if there is none."""
    try:
        with open(f"{PROC}/{pid}/stat", encoding="utf-8", errors="replace") as kept:
            text = kept.read()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def this_process() -> ProcessName:
    return ProcessName.of(os.getpid())
