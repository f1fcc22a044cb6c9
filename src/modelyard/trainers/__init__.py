"""The parts of trainers: the loops over batches, the losses, and the files that they write."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

defer_modules(__name__, "methods")

if TYPE_CHECKING:
    from modelyard.domain.training_run import (
        TOKEN_LOSSES,
        AdamParams,
        AdapterConfig,
        Loss,
        Objective,
        TargetRow,
        token_objective,
    )
    from modelyard.formats.safetensors import Tensor, write_tensors
    from modelyard.trainers.loop import Learner, Plan, Policies, TrainableTurns, Turn, run
    from modelyard.trainers.losses import policy_loss, supervised_loss
    from modelyard.trainers.methods import LEARNER_METHODS, LearnerMethod
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "domain.training_run": (
                "TOKEN_LOSSES",
                "AdamParams",
                "AdapterConfig",
                "Loss",
                "Objective",
                "TargetRow",
                "token_objective",
            ),
            "formats.safetensors": ("Tensor", "write_tensors"),
            "trainers.loop": ("Learner", "Plan", "Policies", "TrainableTurns", "Turn", "run"),
            "trainers.losses": ("policy_loss", "supervised_loss"),
            "trainers.methods": ("LEARNER_METHODS", "LearnerMethod"),
        },
    )

__all__ = [
    "LEARNER_METHODS",
    "TOKEN_LOSSES",
    "AdamParams",
    "AdapterConfig",
    "Learner",
    "LearnerMethod",
    "Loss",
    "Objective",
    "Plan",
    "Policies",
    "TargetRow",
    "Tensor",
    "TrainableTurns",
    "Turn",
    "policy_loss",
    "run",
    "supervised_loss",
    "token_objective",
    "write_tensors",
]
