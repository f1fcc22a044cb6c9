"""What does the work of each kind of job."""

from collections.abc import Mapping

from modelyard.domain.job import JobKind
from modelyard.service.hold import Handler
from modelyard.service.training_run import train

HANDLERS: Mapping[JobKind, Handler] = {JobKind.SFT: train, JobKind.RL: train}
