"""Locks of open files that are waited for."""

from modelyard.disk import HAS_LOCKS

if HAS_LOCKS:
    import fcntl


def wait_for_lock(file: int, *, shared: bool = False) -> None:
    """Wait for a lock of an open file; a shared lock leaves out exclusive ones only. Closing the file releases it. Does
    nothing on systems without such locks."""
    if HAS_LOCKS:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
