"""The rules of retention as a platform has them, which only the host may call."""

import os

from modelyard.domain.identity import Principal, require_host
from modelyard.parts.retention.events import RemovedEvents, keep_events
from modelyard.parts.retention.ledger import keep_ledger
from modelyard.parts.retention.runs import RemovedRuns, keep_runs
from modelyard.parts.retention.texts import RemovedTexts, keep_texts
from modelyard.platform.evaluations.runs import Runs
from modelyard.platform.runtime import Runtime

_Export = str | os.PathLike[str] | None


class Keep:
    """Rules by which old data go.

    platform.keep.texts(30)
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime, self._principal = runtime, principal

    def events(self, days: float, export: _Export = None) -> RemovedEvents:
        """Remove the events of jobs that ended more than so many days ago. The jobs and their results stay.

        They are first appended to the file `export`, one JSON object a line, if that is given. Raises `InvalidInput`.
        """
        return keep_events(self._runtime, days, export)

    def ledger(self, days: float, export: _Export = None) -> int:
        """Remove the rows of the ledger that were booked more than so many days ago. Totals and budgets stay.

        They are first appended to the file `export`, as events are. Returns how many. Raises `InvalidInput`.
        """
        return keep_ledger(self._runtime, days, export)

    def runs(self, days: float, export: _Export = None) -> RemovedRuns:
        """Delete the evaluation runs that ended more than so many days ago, with their predictions and scores.

        They are first appended to the file `export`, as events are. Raises `InvalidInput`.
        """
        return keep_runs(self._runtime, Runs(self._runtime, self._principal), days, export)

    def texts(self, days: float, *, entity: str | None = None, project: str | None = None) -> RemovedTexts:
        """Remove the texts that are more than so many days old: stored completions, responses, traced calls and
        feedback, logged trajectories, and files with the requests and answers of batches.

        `entity` and `project` keep to theirs. The ledger stays. Raises `InvalidInput`, `StoreError`.
        """
        return keep_texts(self._runtime, days, entity, project)
