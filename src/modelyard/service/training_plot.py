"""Training to look at: the loss and the reward of a job, or of all jobs of a model one after another."""

from collections.abc import Iterable, Iterator

from modelyard.domain.job import Job, JobEvent
from modelyard.domain.training import GRADIENT_STEP
from modelyard.protocols import Snapshot
from modelyard.report.plot import Panel, Plot, Point, Series
from modelyard.service.ports import Ports

SHOWN = ("loss", "reward")
_PAGE = 500


def job_plot(ports: Ports, job_id: str, title: str) -> Plot:
    """The loss and, where there is one, the reward of each optimizer step of a job."""
    return _plot(title, ports, [job_id])


def model_plot(ports: Ports, model_id: str, title: str) -> Plot:
    """The same of all jobs that made a checkpoint of the model, in their order, steps counted on from job to job."""
    return _plot(title, ports, _jobs_behind(ports, model_id))


def _plot(title: str, ports: Ports, job_ids: Iterable[str]) -> Plot:
    """Read once for each line: the lines are as short as the plot is wide, the events may be millions."""
    ids = tuple(job_ids)
    lines = [Series.of(name, _points(ports, ids, name)) for name in SHOWN]
    drawn = [Panel(line.name, (line,)) for line in lines if line.points or line.name == SHOWN[0]]
    return Plot(title, "optimizer step", tuple(drawn))


def _points(ports: Ports, job_ids: Iterable[str], name: str) -> Iterator[Point]:
    before = 0
    for job_id in job_ids:
        last = 0
        for event in _steps(ports, job_id):
            last = event.step
            if name in event.data:
                yield before + event.step, event.data[name]
        before += last


def _steps(ports: Ports, job_id: str) -> Iterator[JobEvent]:
    """The gradient steps of a job, a page at a time."""
    seq = 0
    while page := ports.store.read(lambda snapshot, seq=seq: _behind(snapshot, job_id, seq)):  # type: ignore[misc]
        yield from (event for event in page if event.type == GRADIENT_STEP)
        seq = page[-1].seq


def _behind(snapshot: Snapshot, job_id: str, seq: int) -> list[JobEvent]:
    return snapshot.page(JobEvent, "by_job", job_id, after=(seq,), limit=_PAGE)


def _jobs_behind(ports: Ports, model_id: str) -> list[str]:
    """The jobs of a model that have made a step of theirs, oldest first."""
    found: list[str] = []
    after = None
    while page := ports.store.read(
        lambda snapshot, after=after: snapshot.page(Job, "of_lane", model_id, after=after, limit=_PAGE)  # type: ignore[misc]
    ):
        found += [job.id for job in page if "checkpoint_id" in job.result]
        after = (page[-1].created_at, page[-1].id)
    return found
