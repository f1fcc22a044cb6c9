"""How far an evaluation run has come."""

from modelyard.domain.evaluation import EvaluationRun, RunStatus
from modelyard.domain.job import JobProgress
from modelyard.protocols import Snapshot
from modelyard.service.evaluation_rules import latest_job
from modelyard.service.listing import maybe


def run_status(snapshot: Snapshot, run: EvaluationRun) -> RunStatus:
    """The status of a run: of one that the engine works on, by its job."""
    job = latest_job(snapshot, run.id)
    progress = None if job is None else maybe(snapshot, JobProgress, job.id)
    if progress is None or progress.total is None:
        return RunStatus(run)
    return RunStatus(run, progress.step, progress.total)
