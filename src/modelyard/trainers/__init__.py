"""What trains: the loops over batches and the losses of which a trainer is made, and the files that it writes."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

defer_modules(__name__, "methods")

if TYPE_CHECKING:
    from modelyard.formats.safetensors import Tensor, write_tensors
    from modelyard.trainers.loop import Learner, Objective, Plan, Policies, TrainableTurns, Turn, run
    from modelyard.trainers.losses import Loss, policy_loss, supervised_loss
    from modelyard.trainers.methods import LEARNER_METHODS, LearnerMethod
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "formats.safetensors": ("Tensor", "write_tensors"),
            "trainers.loop": ("Learner", "Objective", "Plan", "Policies", "TrainableTurns", "Turn", "run"),
            "trainers.losses": ("Loss", "policy_loss", "supervised_loss"),
            "trainers.methods": ("LEARNER_METHODS", "LearnerMethod"),
        },
    )

__all__ = [
    "LEARNER_METHODS",
    "Learner",
    "LearnerMethod",
    "Loss",
    "Objective",
    "Plan",
    "Policies",
    "Tensor",
    "TrainableTurns",
    "Turn",
    "policy_loss",
    "run",
    "supervised_loss",
    "write_tensors",
]
