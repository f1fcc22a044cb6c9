"""How far a run has come, for whoever waits for it: a bar, or a function of the caller's."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from modelyard.domain.job import Job
from modelyard.domain.tally import Tally
from modelyard.report.progress import Show, progress_bar

Progress = bool | Show
"""Whether to show a bar; or a function that is told how many rows are done, of how many, and numbers by name."""

RATE = "rows/s"


class Told:
    """What the engine has told of its count: of rows that were stored `before` it began, and of those since."""

    def __init__(self) -> None:
        self._tally: Tally | None = None
        self._before: int | None = None
        self._shown = 0

    def begin(self, tally: Tally) -> None:
        """Hear of the count."""
        self._tally = tally

    def show(self, show: Show, total: int | None, seconds: float) -> None:
        """Show how far it has come so many seconds after it began, if that is further than before."""
        if self._tally is None:
            return
        rows = self._tally.rows
        self._before = rows if self._before is None else self._before
        if rows > self._shown:
            self._shown = rows
            show(rows, total, numbers(self._tally, rows - self._before, seconds))


def shown(progress: Progress, job: Job) -> AbstractContextManager[Show | None]:
    """What shows the progress of a job, as long as the context lasts; None for nothing."""
    if isinstance(progress, bool):
        return _bar(job.lane) if progress else nullcontext()
    return nullcontext(progress)


@contextmanager
def _bar(label: str) -> Iterator[Show]:
    """A bar beside which the rate does not stand: it tells that itself."""
    with progress_bar(label, "row") as show:
        yield lambda done, total, told: show(done, total, {name: told[name] for name in told if name != RATE})


def numbers(tally: Tally, rows: int, seconds: float) -> Mapping[str, float]:
    """The running score, failed rows, the rate (`rows` in so many seconds), and USD, where they are known."""
    known = {"score": tally.mean, "failed": tally.failed, RATE: rows / seconds if seconds > 0 else None}
    cost = tally.cost
    return {
        **{name: float(value) for name, value in known.items() if value is not None},
        **({} if cost is None else {"cost": float(cost)}),
    }
