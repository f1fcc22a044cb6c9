"""Jobs in the calling thread: deterministic, for tests and small tools."""

import logging
from collections.abc import Callable
from itertools import count

from modelyard.domain.job import Claim
from modelyard.protocols import Executor

log: logging.Logger = logging.getLogger("modelyard")


class InlineExecutor:
    """Runs a job to its end before `submit` returns. An interrupt passes through to the caller."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def submit(self, claim: Claim, run: Callable[[Claim], None]) -> str:
        """Run the job."""
        try:
            run(claim)
        except Exception:
            log.exception("job %s raised in the executor", claim.job_id)
        return f"inline-{next(self._numbers)}"

    def poll(self, handle: str) -> str:
        """Return "": a submitted job has ended."""
        return ""

    def cancel(self, handle: str) -> None:
        """Do nothing: a submitted job has ended."""

    def reattach(self, handle: str) -> bool:
        """Return False: nothing outlives its call."""
        return False

    def close(self) -> None:
        """Do nothing: a submitted job has ended."""


_conforms: type[Executor] = InlineExecutor
