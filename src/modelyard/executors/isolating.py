"""Jobs in threads, but those that may have killed a process in processes of their own."""

from collections.abc import Callable, Collection, Mapping

from modelyard.domain.job import Claim, Needs
from modelyard.protocols import Executor, ExecutorState


class IsolatingExecutor:
    """Runs jobs in `shared`, and those that need to be `alone`, since they were in a process that died, in `isolated`.

        processes = SubprocessExecutor("modelyard.compose:open_platform", ["yard.db"])
        executor = IsolatingExecutor(ThreadExecutor(4), processes)
        with platform.worker(concurrency=4, executor=executor):
            ...

    So a job that kills its process dies alone, and this process lives on. Closing it closes both.
    """

    isolates = True

    def __init__(self, shared: Executor, isolated: Executor) -> None:
        self._shared, self._isolated = shared, isolated

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        """Start the job, in a process of its own if it needs one."""
        return (self._isolated if needs.alone else self._shared).submit(claim, run, needs)

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the states of jobs in both."""
        isolated = [handle for handle in handles if self._isolated.reattach(handle, alive=False)]
        return {**self._shared.states(set(handles).difference(isolated)), **self._isolated.states(isolated)}

    def cancel(self, handle: str) -> None:
        """End the job by force where that is possible."""
        for executor in (self._shared, self._isolated):
            executor.cancel(handle)

    def reattach(self, handle: str, alive: bool) -> bool:
        """Return whether one of the two watches the job."""
        return any(executor.reattach(handle, alive) for executor in (self._shared, self._isolated))

    def close(self, leave: bool = False) -> None:
        """Close both."""
        for executor in (self._shared, self._isolated):
            executor.close(leave)


_conforms: type[Executor] = IsolatingExecutor
