"""Training jobs as fine-tuning services show them: what was requested in their words, and the model that it made."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.job import JobKind
from modelyard.domain.record import EMPTY, frozen_mapping
from modelyard.domain.training import TrainingJob
from modelyard.parts.loops.part import LOOP

REQUEST = "fine_tuning"
"""The member of a job's spec that keeps what was requested in the words of a fine-tuning service."""

METHOD_KINDS: Mapping[str, str] = {
    "supervised": JobKind.SFT,
    "dpo": JobKind.DPO,
    "reinforcement": LOOP,
}
"""The kinds of jobs by the names that fine-tuning services give to methods."""


@attrs.frozen
class FineTuningJob:
    """A training job with the names of its models.

    `base_model` is the model that it trains, `fine_tuned_model` the name of the checkpoint that it made: chat with it,
    or train it further. `requested` has `training_file`, `validation_file`, `method`, `hyperparameters`, `seed` and
    `metadata`; it is empty for a job that was requested as a training job. `result_files` are the ids of the files that
    a job that succeeded has written: its metrics step by step; `trained_tokens` is how many tokens it trained on.
    `pausing` says that it is paused, or stops at its next step.
    """

    job: TrainingJob
    base_model: str
    fine_tuned_model: str | None
    requested: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    result_files: tuple[str, ...] = ()
    trained_tokens: int | None = None
    pausing: Literal["pausing", "paused"] | None = None

    @property
    def id(self) -> str:
        """The id of the training job."""
        return self.job.id


@attrs.frozen
class FineTuningRequest:
    """A request to a fine-tuning service.

    `model` is a base model, or the name of a trained one, which is trained further. `method` is "supervised", "dpo" or
    "reinforcement". `hyperparameters` are `n_epochs`, `batch_size`, `learning_rate_multiplier`, with "dpo" `beta`, and
    with "reinforcement" `compute_multiplier` and `eval_interval`; "auto", None and absence mean our default.
    `training_file` and `validation_file` are ids of files. `suffix` becomes a part of the new model's name.
    """

    model: str
    training_file: str
    method: str = "supervised"
    hyperparameters: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    grader: Mapping[str, Any] | None = None
    validation_file: str | None = None
    suffix: str | None = None
    seed: int | None = None
    metadata: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
