"""A tiny base model, its trainer, and a learner of it, for the tests of training."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from local_models import base_model

from modelyard.domain.training import TrajectoryGroup
from modelyard.parts.contracts.trainer import WORDS, context_of, rewarded
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tiny_model import build_tiny_model
from modelyard.parts.torch.training.learner import LocalLearner
from modelyard.parts.torch.training.trainable import TrainableWeights
from modelyard.parts.torch.training.trainer import LocalTrainer, _begin

TINY = "tiny"
_kept = ExitStack()


@cache
def micro() -> Path:
    """The folder of a model of 91 thousand weights that sees 256 tokens."""
    folder = _kept.enter_context(tempfile.TemporaryDirectory())
    return build_tiny_model(Path(folder) / "micro", "micro", context_length=256)


def trainer_of(*, tuning: Tuning = Tuning.LORA, **options: Any) -> LocalTrainer:
    """Of the micro model."""
    return LocalTrainer([base_model(micro(), TINY, tuning)], device="cpu", **options)


def learner_of(
    files: Mapping[str, bytes], *, tuning: Tuning = Tuning.LORA, **options: Any
) -> tuple[LocalLearner, TrainableWeights]:
    """What a job on this parent begins with."""
    context = context_of(TINY, parent=files)
    with trainer_of(tuning=tuning, **options)._base_learner(context, copies=0) as (learner, trained):
        _begin(learner, trained, context)
        return learner, trained


def groups_of_words(count: int) -> list[TrajectoryGroup]:
    """Groups of two answers each, the first of which is better."""
    return [rewarded(word, [1.0, 0.0]) for word in WORDS[:count]]
