"""Pages of memory: those that need not stay, as what they held was copied or freed, and huge ones, read faster."""

import ctypes
import mmap
import sys
from collections.abc import Iterable
from itertools import pairwise

from torch import Tensor

_PAGE_OUT = 21
"""MADV_PAGEOUT of Linux, madvise(2): reclaims pages; their content stays, in the file or in swap."""

_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1, madvise(2): copies pages into a huge one, in place; content and addresses stay."""

_HUGE = 2**21


def use_huge_pages(blocks: Iterable[tuple[int, int]]) -> None:
    """Have the memory of these addresses and sizes in huge pages, as far as there are any: a processor reads it faster.

    Elsewhere than on Linux nothing happens.
    """
    if sys.platform != "linux":
        return
    pages = sorted({page for start, size in blocks for page in range(start // _HUGE, -(-(start + size) // _HUGE))})
    firsts = [page for before, page in pairwise([-1, *pages]) if page != before + 1]
    lasts = [page for page, after in pairwise([*pages, -1]) if after != page + 1]
    madvise = ctypes.CDLL(None).madvise
    for first, last in zip(firsts, lasts, strict=True):  # each call waits for all processors: so many pages at once
        madvise(ctypes.c_void_p(first * _HUGE), ctypes.c_size_t((last + 1 - first) * _HUGE), _COLLAPSE)


def page_out(tensor: Tensor) -> None:
    """Have a processor's memory of a tensor reclaimed, as it will hardly be read again; values stay.

    Elsewhere than on Linux nothing happens.
    """
    if sys.platform != "linux" or tensor.device.type != "cpu":
        return
    start, page = tensor.data_ptr(), mmap.PAGESIZE
    first, last = -(-start // page) * page, (start + tensor.nbytes) // page * page
    if last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _PAGE_OUT)


def trim() -> None:
    """Return free pages between blocks that are in use to the system. Elsewhere than with glibc nothing happens."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if found is not None:
        found(0)
