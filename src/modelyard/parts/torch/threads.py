"""The number of threads that torch computes on. A small model is faster on one than on several that wait for each
other.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.errors import MissingExtra
from modelyard.parts.torch.records import BaseModel

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def serving_threads(base: BaseModel) -> int | None:
    """Return how many threads serve a base model on a processor: one for a small model, None for torch's own number.

    A number that the host has chosen stays, be it by a variable of the environment or by `torch.set_num_threads`. The
    choice depends on the size alone, so that the same model computes the same numbers each time.
    """
    return 1 if base.small and not _chosen_by_host() else None


def _chosen_by_host() -> bool:
    return any(name in os.environ for name in _VARIABLES) or torch.get_num_threads() not in _torchs_own()


def _torchs_own() -> set[int]:
    """Return the numbers that torch takes by itself: a thread for each processor, or for each of their cores."""
    processors = {os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        processors.add(len(os.sched_getaffinity(0)))
    return processors | {max(1, count // 2) for count in processors}


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Have torch compute on so many threads in the block, in this thread; None changes nothing."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
