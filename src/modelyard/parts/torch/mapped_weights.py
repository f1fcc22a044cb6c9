"""Pages that need not stay in memory: of mapped weights that were copied, and of what was freed."""

import ctypes
import mmap
import sys

from torch import Tensor

_PAGE_OUT = 21
"""MADV_PAGEOUT of Linux, madvise(2): reclaims pages; their content stays, in the file or in swap."""


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
