"""Jobs in threads of this process."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from itertools import count

from modelyard.domain.job import Claim, Needs
from modelyard.lazy import log
from modelyard.protocols import Ended, Executor, ExecutorState, Running


class ThreadExecutor:
    """Runs up to `threads` jobs at a time, each in its own daemon thread.

    `submit` waits for a free thread. `close` waits for what runs, `grace` seconds at most: a thread cannot be ended by
    force, so one that hangs is left running, and ends with the process.

        with contextlib.closing(ThreadExecutor(4)) as executor:
            executor.submit(claim, run, needs)
    """

    isolates = False

    def __init__(self, threads: int = 1, grace: float = 20.0) -> None:
        self._grace = grace
        self._free = threading.BoundedSemaphore(threads)
        self._numbers = count(1)
        self._running: dict[str, threading.Thread] = {}

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        self._free.acquire()
        handle = f"thread-{next(self._numbers)}"
        thread = threading.Thread(target=self._run, args=(handle, claim, run), name=f"modelyard-{handle}", daemon=True)
        self._running[handle] = thread
        try:
            thread.start()
        except BaseException:
            self._ended(handle)
            raise
        return handle

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        return {handle: Running() if handle in self._running else Ended() for handle in handles}

    def cancel(self, handle: str) -> None:
        """Do nothing: a thread cannot be ended by force. The job's own cancellation ends it at its next step."""

    def reattach(self, handle: str, alive: bool) -> bool:
        return False

    def close(self, leave: bool = False) -> None:
        until = time.monotonic() + self._grace
        for thread in tuple(self._running.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, handle: str, claim: Claim, run: Callable[[Claim], None]) -> None:
        try:
            run(claim)
        except BaseException:  # noqa: BLE001 - it is logged
            log.exception("job %s raised in the executor", claim.job_id)
        finally:
            self._ended(handle)

    def _ended(self, handle: str) -> None:
        del self._running[handle]
        self._free.release()


_conforms: type[Executor] = ThreadExecutor
