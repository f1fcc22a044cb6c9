"""The import of torch: its threads sleep while they wait for each other.

By default they spin, which takes several times the processor time of a program whose cores have other work, too. GNU's
OpenMP, which torch has on Linux, reads the policy when it is loaded, and never again. But while it manages more threads
than there are processors, it spins for a three-hundredth of the turns, whatever was loaded first.
"""

import os
import sys
import threading
from functools import cache
from importlib import import_module

_POLICY, _OTHERS = "OMP_WAIT_POLICY", ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def load_torch() -> None:
    """Import torch. If the host has, idle threads are added to those that OpenMP manages.

    A policy that the environment has stays, and none is left in it.
    """
    chosen = any(name in os.environ for name in (_POLICY, *_OTHERS))
    if "torch" in sys.modules:
        if not chosen and sys.platform == "linux":
            add_idle_teams()
        return
    if not chosen:
        os.environ[_POLICY] = "PASSIVE"
    try:
        import_module("torch")
    finally:
        if not chosen:
            os.environ.pop(_POLICY, None)


def idle_teams(processors: int, threads: int) -> int:
    """Return how many idle teams of so many threads make OpenMP manage more threads than there are processors, with a
    team that computes. It counts one of the threads that begin teams."""
    return (processors - 1) // (threads - 1) if threads > 1 else 0


@cache
def add_idle_teams() -> None:
    """Start teams that never compute again, once in a process. Each belongs to a thread, and lives as long."""
    torch = import_module("torch")  # waits for an import in another thread
    threads = torch.get_num_threads()
    for _ in range(idle_teams(len(os.sched_getaffinity(0)), threads)):
        ready = threading.Event()
        team = threading.Thread(target=_idle, args=(threads, ready), name="modelyard-idle-team", daemon=True)
        try:
            team.start()
        except RuntimeError:  # no more threads are allowed; then those that compute spin
            return
        ready.wait()


def _idle(threads: int, ready: threading.Event) -> None:
    torch = import_module("torch")
    try:
        torch.zeros(threads * _SHARE).add_(1)
    finally:
        ready.set()
    threading.Event().wait()


_SHARE = 2**16
"""Elements of which a thread takes some: twice the least that torch gives to one."""
