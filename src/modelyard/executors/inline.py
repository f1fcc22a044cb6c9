"""Jobs in the calling thread: deterministic, for tests and small tools."""

from collections.abc import Callable, Collection, Mapping
from itertools import count

from modelyard.domain.job import Claim, Needs
from modelyard.lazy import log
from modelyard.protocols import Ended, Executor


class InlineExecutor:
    """Runs a job to its end before `submit` returns. An interrupt passes through to the caller."""

    isolates = False

    def __init__(self) -> None:
        self._numbers = count(1)

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        try:
            run(claim)
        except Exception:  # noqa: BLE001 - it is logged
            log.exception("job %s raised in the executor", claim.job_id)
        return f"inline-{next(self._numbers)}"

    def states(self, handles: Collection[str]) -> Mapping[str, Ended]:
        """Return `Ended` for all: a submitted job has ended."""
        return dict.fromkeys(handles, Ended())

    def cancel(self, handle: str) -> None:
        """Do nothing: a submitted job has ended."""

    def reattach(self, handle: str, alive: bool) -> bool:
        return False

    def close(self, leave: bool = False) -> None:
        """Do nothing: a submitted job has ended."""


_conforms: type[Executor] = InlineExecutor
