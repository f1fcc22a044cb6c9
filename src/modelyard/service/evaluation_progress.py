"""How far a run has come, for whoever waits for it: a bar, or a function of the caller's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from modelyard.domain.evaluation import EvaluationRun
from modelyard.domain.tally import Tally
from modelyard.errors import InvalidInput
from modelyard.report.number import ref_text
from modelyard.report.progress import Show, progress_bar
from modelyard.report.table import printable

Progress = bool | Show
"""Whether to show a bar; or a function that is told how many rows are done, of how many, and numbers by name."""

RATE = "rows/s"


class Told:
    """What the engine has told of its count, and whom to tell it; rows that were stored before are told first."""

    def __init__(self, show: Show | None) -> None:
        self._show = show
        self._tally: Tally | None = None
        self._before: int | None = None
        self._shown = -1

    def begin(self, tally: Tally) -> None:
        """Hear of the count."""
        self._tally = tally

    def tell(self, total: int | None, seconds: float) -> None:
        """Tell how far it has come so many seconds after it began, if that is further than before."""
        if self._show is None or self._tally is None:
            return
        rows = self._tally.rows
        self._before = rows if self._before is None else self._before
        if rows > self._shown:
            self._shown = rows
            self._show(rows, total, numbers(self._tally, rows - self._before, seconds))


@contextmanager
def telling(progress: Progress, run: EvaluationRun) -> Iterator[Told]:
    """What tells of the progress of a run, as long as the context lasts. Raises `InvalidInput`, ImportError."""
    if isinstance(progress, bool):
        with _bar(run) if progress else nullcontext() as show:
            yield Told(show)
    elif callable(progress):
        yield Told(progress)
    else:
        raise InvalidInput.at("progress", msg="must be True for a bar, or a function of done, total and numbers")


@contextmanager
def _bar(run: EvaluationRun) -> Iterator[Show]:
    """A bar beside which the rate does not stand: it tells that itself."""
    label = printable(f"{ref_text(run.model)} on {ref_text(run.evaluation)}")
    with progress_bar(label, "row") as show:
        yield lambda done, total, told: show(done, total, {name: told[name] for name in told if name != RATE})


def numbers(tally: Tally, rows: int, seconds: float) -> Mapping[str, float]:
    """The running score, failed rows, the rate (`rows` in so many seconds), and USD, where they are known."""
    failed = tally.failed if tally.rows else None
    known = {"score": tally.mean, "failed": failed, RATE: rows / seconds if seconds > 0 else None}
    cost = tally.cost
    return {
        **{name: float(value) for name, value in known.items() if value is not None},
        **({} if cost is None else {"cost": float(cost)}),
    }
