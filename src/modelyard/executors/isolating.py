"""Jobs in threads, except that jobs which may have killed a process get their own processes."""

from collections.abc import Callable, Collection, Mapping

from modelyard.domain.job import Claim, Needs
from modelyard.protocols import Executor, ExecutorState


class IsolatingExecutor:
    """Runs jobs in `shared`, and jobs that must be `alone`, after a process died with them, in `isolated`.

        processes = SubprocessExecutor("modelyard.compose:open_platform", ["yard.db"])
        executor = IsolatingExecutor(ThreadExecutor(4), processes)
        with platform.worker(concurrency=4, executor=executor):
            ...

    So a job that kills its process dies alone, and this process continues. Closing it closes both.
    """

    isolates = True

    def __init__(self, shared: Executor, isolated: Executor) -> None:
        self._shared, self._isolated = shared, isolated

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        """Start the job, in its own process if it needs one."""
        return (self._isolated if needs.alone else self._shared).submit(claim, run, needs)

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        isolated = [handle for handle in handles if self._isolated.reattach(handle, alive=False)]
        return {**self._shared.states(set(handles).difference(isolated)), **self._isolated.states(isolated)}

    def cancel(self, handle: str) -> None:
        """End the job by force if that is possible."""
        for executor in (self._shared, self._isolated):
            executor.cancel(handle)

    def reattach(self, handle: str, alive: bool) -> bool:
        return any(executor.reattach(handle, alive) for executor in (self._shared, self._isolated))

    def close(self, leave: bool = False) -> None:
        for executor in (self._shared, self._isolated):
            executor.close(leave)


_conforms: type[Executor] = IsolatingExecutor
