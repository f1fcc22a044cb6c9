"""The training methods: a row for each."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.job import JobKind
from modelyard.domain.training_config import DPOConfig, RLConfig, SFTConfig, TrainingConfig
from modelyard.formats.training_data import EXAMPLES, GROUPS, PREFERENCES, RowFormat


@attrs.frozen
class Method:
    """What the platform has to know of one training method: the configuration and the rows that it takes.

    A trainer knows the method by the value of its `kind`. `plotted` are the metrics of a step that a plot shows.
    """

    kind: JobKind
    config: type[TrainingConfig]
    rows: RowFormat[Any]
    plotted: tuple[str, ...] = ("loss",)


METHODS: Mapping[JobKind, Method] = {
    method.kind: method
    for method in (
        Method(JobKind.SFT, SFTConfig, EXAMPLES),
        Method(JobKind.RL, RLConfig, GROUPS, plotted=("loss", "reward")),
        Method(JobKind.DPO, DPOConfig, PREFERENCES, plotted=("loss", "accuracy", "margin")),
    )
}
