"""The results of a sweep: a row for each trial, and the best of them."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE, Interval, t_quantile
from modelyard.domain.job import Job, JobStatus
from modelyard.domain.record import first_lines
from modelyard.parts.sweeps.records import RUNG, Sweep, number
from modelyard.parts.sweeps.rungs import ERROR, jobs_of, score_of
from modelyard.protocols import Snapshot
from modelyard.report.table import text_table

TrialStatus = Literal["queued", "running", "succeeded", "failed", "cancelled", "stopped"]


@attrs.frozen
class SweepTrial:
    """One trial of a sweep: its options, and the model that it trains.

    `score` is the loss of its checkpoint on the held-out rows, the lower the better; `error` its standard error. One
    that was "stopped" trained for fewer `epochs` than others, since it was among the worst. `step` is the model's
    checkpoint; `stop_reason` says, in words, what ended its training before all epochs were done.
    """

    number: int
    model: str
    options: Mapping[str, Any]
    status: TrialStatus
    epochs: int
    score: float | None
    error: float | None
    loss: float | None
    step: int | None
    job_ids: tuple[str, ...]
    error_message: str | None = None
    stop_reason: str | None = None

    @property
    def lacks(self) -> str:
        """Why it has no held-out loss, in words; "" if it has one."""
        if self.score is not None:
            return ""
        return self.error_message or ("its trainer measured none" if self.status == "succeeded" else self.status)

    @property
    def note(self) -> str:
        """What is to be said of it once it has ended, besides its numbers; "" for nothing."""
        if self.status in ("queued", "running"):
            return ""
        if self.score is None:
            return f"trial {self.number} has no held-out loss: {self.lacks}"
        if self.error_message is not None:
            return f"trial {self.number} {self.status}: {self.error_message}"
        return f"trial {self.number} ended early: {self.stop_reason}" if self.stop_reason else ""


@attrs.frozen
class BestTrial:
    """The trial with the lowest held-out loss `of` so many, and the interval of that loss.

    The lowest of several measured losses is lower than the model's own loss is, because it was chosen for it. So the
    interval is one of `of` that hold together with 95 % confidence: Student's t at 1 - 0.05 / `of` (Bonferroni's
    correction; Dunn 1961). It is None if there are fewer than two batches of held-out rows. `left_out` are the trials
    that have no held-out loss, or none yet.
    """

    trial: SweepTrial
    of: int
    interval: Interval | None
    left_out: tuple[SweepTrial, ...] = ()

    @property
    def model(self) -> str:
        """The name of the model that it trained."""
        return self.trial.model

    @property
    def step(self) -> int | None:
        """The step of its checkpoint."""
        return self.trial.step

    @property
    def options(self) -> Mapping[str, Any]:
        """The options in which trials differ."""
        return self.trial.options

    @property
    def score(self) -> float:
        """The loss on the held-out rows."""
        assert self.trial.score is not None
        return self.trial.score

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        ends = f"the lowest of {self.of}; no interval, as the held-out rows are one batch"
        if self.interval is not None:
            ends = f"{self.interval.low:.4g} to {self.interval.high:.4g}, corrected for the choice of {self.of}"
        left_out = ", ".join(f"trial {one.number} ({one.lacks})" for one in self.left_out)
        but = f"; left out, without a held-out loss: {left_out}" if left_out else ""
        return f"{options}: held-out loss {self.score:.4g} ({ends}){but}"


class SweepTable(list[SweepTrial]):
    """The trials of a sweep, the best first. `to_pandas` makes a data frame of them; a notebook shows a table."""

    COLUMNS = ("trial", "status", "epochs", "held-out loss", "loss", "model", "step")

    def to_pandas(self) -> Any:
        """Return a data frame with a line for each trial. Raises `MissingExtra` if pandas is not installed."""
        from modelyard.parts.reports.frames import load_pandas  # noqa: PLC0415 - tables as text need none

        columns = ("status", "epochs", "score", "error", "loss", "model", "step")
        lines = [{"trial": one.number, **one.options, **{name: getattr(one, name) for name in columns}} for one in self]
        frame = load_pandas().DataFrame(lines)
        return frame.set_index("trial") if lines else frame

    @property
    def lines(self) -> tuple[list[str], list[list[object]]]:
        """The headings and the cells, as text."""
        axes = [name for name in (self[0].options if self else ()) if name != "epochs"]
        first, *rest = self.COLUMNS
        return [first, *axes, *rest], [self._cells(one, axes) for one in self]

    def _cells(self, one: SweepTrial, axes: Sequence[str]) -> list[object]:
        options = (one.options[name] for name in axes)
        step = "" if one.step is None else one.step
        return [one.number, *options, one.status, one.epochs, number(one.score), number(one.loss), one.model, step]

    def __repr__(self) -> str:
        return first_lines("SweepTable", self)

    def __str__(self) -> str:
        headings, cells = self.lines
        shown = text_table(headings, cells, right=("held-out loss", "loss", "step"))
        return "\n".join([shown, *self.notes])

    @property
    def notes(self) -> list[str]:
        """Why trials have no held-out loss, have failed or ended early: a line for each, in the order of the table."""
        return [one.note for one in self if one.note]

    def _repr_html_(self) -> str:
        from modelyard.parts.reports.html import fragment  # noqa: PLC0415 - a notebook alone needs it
        from modelyard.parts.sweeps.drawing import trial_table  # noqa: PLC0415

        return fragment(trial_table(self))


def read_trials(snapshot: Snapshot, sweep: Sweep) -> SweepTable:
    """Return the trials, the lowest score first, those without one last."""
    found = [_trial(sweep, trial, jobs_of(snapshot, sweep, trial)) for trial in sweep.plan["trials"]]
    return SweepTable(sorted(found, key=_rank))


def _rank(trial: SweepTrial) -> tuple[object, ...]:
    return trial.score is None, trial.score or 0.0, trial.number


def _trial(sweep: Sweep, trial: Mapping[str, Any], jobs: list[Job]) -> SweepTrial:
    done = [job for job in jobs if job.status is JobStatus.SUCCEEDED]
    last = jobs[-1] if jobs else None
    return SweepTrial(
        number=trial["number"],
        model=f"{sweep.entity}/{sweep.project}/{trial['name']}",
        options=trial["options"],
        status=_status(sweep, trial["number"], last),
        epochs=sum(job.spec["config"]["epochs"] for job in done),
        score=score_of(jobs),
        error=score_of(jobs, ERROR),
        loss=score_of(jobs, "loss"),
        step=done[-1].result["step"] if done else None,
        job_ids=tuple(job.id for job in jobs),
        error_message=None if last is None else last.error_message,
        stop_reason=done[-1].result.get("stop_reason") if done else None,
    )


def _status(sweep: Sweep, number: int, last: Job | None) -> TrialStatus:
    if last is None:
        return "cancelled"
    final = last.spec[RUNG] + 1 == len(sweep.rungs)
    if last.status is JobStatus.SUCCEEDED and not final:
        waits = number in sweep.state["going"] and not sweep.state["cancelled"]
        return "running" if waits else "stopped"
    status: TrialStatus = last.status.value
    return status


def best_trial(sweep: Sweep, trials: Sequence[SweepTrial]) -> BestTrial | None:
    """Return the trial with the lowest score; None while none has one."""
    measured = [one for one in trials if one.score is not None]
    if not measured:
        return None
    best = min(measured, key=_rank)
    left_out = tuple(sorted((one for one in trials if one.score is None), key=_rank))
    return BestTrial(best, len(measured), _interval(sweep, best, len(measured)), left_out)


def _interval(sweep: Sweep, best: SweepTrial, of: int) -> Interval | None:
    trial = next(one for one in sweep.plan["trials"] if one["number"] == best.number)
    batches = ceil(sweep.plan["held_out_rows"] / trial["batch"])
    if best.error is None or best.score is None or batches < 2:
        return None
    spread = t_quantile(1 - (1 - CONFIDENCE) / (2 * of), batches - 1) * best.error
    return Interval(max(0.0, best.score - spread), best.score + spread)  # no loss is below 0
