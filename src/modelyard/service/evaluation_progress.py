"""How far a run has come, for whoever waits for it: a bar, or a function of the caller's."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from modelyard.domain.job import Job
from modelyard.domain.tally import Tally
from modelyard.report.progress import Show, progress_bar

Progress = bool | Show
"""Whether to show a bar; or a function that is told how many rows are done, of how many, and numbers by name."""


class Told:
    """What the engine has told of its count."""

    tally: Tally | None = None

    def begin(self, tally: Tally) -> None:
        """Hear of it."""
        self.tally = tally


def shown(progress: Progress, job: Job) -> AbstractContextManager[Show | None]:
    """What shows the progress of a job, as long as the context lasts; None for nothing."""
    if isinstance(progress, bool):
        return progress_bar(job.lane) if progress else nullcontext()
    return nullcontext(progress)


def numbers(tally: Tally, seconds: float) -> Mapping[str, float]:
    """What stands beside the bar: the running score, failed rows, rows a second, and USD where they are known."""
    known = {"score": tally.mean, "failed": tally.failed, "rows/s": tally.rows / seconds if seconds > 0 else None}
    cost = tally.cost
    return {
        **{name: float(value) for name, value in known.items() if value is not None},
        **({} if cost is None else {"cost": float(cost)}),
    }
