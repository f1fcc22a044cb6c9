"""Pages of memory: those that need not stay, as what they held was copied or freed, and huge ones, read faster."""

import ctypes
import mmap
import sys
import time
from collections.abc import Iterable

from torch import Tensor

_PAGE_OUT = 21
"""MADV_PAGEOUT of Linux, madvise(2): reclaims pages; their content stays, in the file or in swap."""

_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1, madvise(2): copies pages into a huge one, in place; content and addresses stay."""

_HUGE = 2**21

_MOST = 0.5
"""CPU seconds: a tenth is enough for hundreds of MiB, but moving what fragments the memory may take long."""


def use_huge_pages(blocks: Iterable[tuple[int, int]]) -> None:
    """Have the memory of these addresses and sizes in huge pages, which a processor reads faster: as many as can be had
    soon.

    Elsewhere than on Linux nothing happens.
    """
    if sys.platform != "linux":
        return
    pages = sorted({page for start, size in blocks for page in range(start // _HUGE, -(-(start + size) // _HUGE))})
    madvise, begun = ctypes.CDLL(None).madvise, time.thread_time()
    for page in pages:
        if time.thread_time() - begun > _MOST:
            break
        madvise(ctypes.c_void_p(page * _HUGE), ctypes.c_size_t(_HUGE), _COLLAPSE)


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
