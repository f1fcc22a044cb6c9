"""The rules of retention as a platform has them, each a function that only the host may call."""

import os

from modelyard.domain.identity import Principal, require_host
from modelyard.parts.retention import events, ledger, runs, texts
from modelyard.platform.evaluations.runs import Runs
from modelyard.platform.runtime import Runtime

_Export = str | os.PathLike[str] | None


class _Rule:
    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime, self._principal = runtime, principal


class KeepEvents(_Rule):
    """Removes old events of jobs: `platform.keep_events`."""

    def __call__(self, days: float, export: _Export = None) -> events.RemovedEvents:
        """Remove the events of jobs that ended more than so many days ago. The jobs and their results stay.

        They are first appended to the file `export`, one JSON object a line, if that is given. Raises `InvalidInput`.
        """
        return events.keep_events(self._runtime, days, export)


class KeepLedger(_Rule):
    """Removes old rows of the ledger: `platform.keep_ledger`."""

    def __call__(self, days: float, export: _Export = None) -> int:
        """Remove the rows of the ledger that were booked more than so many days ago. Totals and budgets stay.

        They are first appended to the file `export`, as events are. Returns how many. Raises `InvalidInput`.
        """
        return ledger.keep_ledger(self._runtime, days, export)


class KeepRuns(_Rule):
    """Removes old evaluation runs: `platform.keep_runs`."""

    def __call__(self, days: float, export: _Export = None) -> runs.RemovedRuns:
        """Delete the evaluation runs that ended more than so many days ago, with their predictions and scores.

        They are first appended to the file `export`, as events are. Raises `InvalidInput`.
        """
        return runs.keep_runs(self._runtime, Runs(self._runtime, self._principal), days, export)


class KeepTexts(_Rule):
    """Removes old texts of requests and answers: `platform.keep_texts`."""

    def __call__(self, days: float, *, entity: str | None = None, project: str | None = None) -> texts.RemovedTexts:
        """Remove the texts that are more than so many days old: stored completions, responses, traced calls and
        feedback, logged trajectories, and files with the requests and answers of batches.

        `entity` and `project` keep to theirs. The ledger stays. Raises `InvalidInput`, `StoreError`.
        """
        return texts.keep_texts(self._runtime, days, entity, project)
