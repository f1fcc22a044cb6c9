"""What does the work of each kind of job."""

from collections.abc import Generator, Mapping

from modelyard.domain.job import JobKind
from modelyard.platform.evaluations import job as evaluation_job
from modelyard.platform.jobs.claimed_job import ClaimedJob, Handler
from modelyard.platform.training.run import train


def _evaluate(hold: ClaimedJob) -> Generator[None, None, None]:
    return evaluation_job.evaluate(hold)


JOB_TYPES: Mapping[JobKind, Handler] = {
    JobKind.SFT: train,
    JobKind.RL: train,
    JobKind.EVALUATE: _evaluate,
    JobKind.RESCORE: _evaluate,
}
