"""What trains: the loops over batches and the losses of which a trainer is made, and the files that it writes."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.formats.safetensors import Tensor, write_tensors
    from modelyard.trainers.loop import Learner, Objective, Sampled, Turn, run_rl, run_sft
    from modelyard.trainers.losses import Loss, policy_loss, supervised_loss
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "formats.safetensors": ("Tensor", "write_tensors"),
            "trainers.loop": ("Learner", "Objective", "Sampled", "Turn", "run_rl", "run_sft"),
            "trainers.losses": ("Loss", "policy_loss", "supervised_loss"),
        },
    )

__all__ = [
    "Learner",
    "Loss",
    "Objective",
    "Sampled",
    "Tensor",
    "Turn",
    "policy_loss",
    "run_rl",
    "run_sft",
    "supervised_loss",
    "write_tensors",
]
