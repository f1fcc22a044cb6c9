"""The result of a collection."""

from collections.abc import Mapping

import attrs

from modelyard.domain.training import Dataset
from modelyard.errors import InvalidInput


@attrs.frozen
class Collected:
    """The collected datasets, None for a dataset without rows, and how much was left out, by the reason.

    `training_job_id` is the job that trains on `train`, if that was requested.
    """

    train: Dataset | None
    held_out: Dataset | None
    left_out: Mapping[str, int]
    training_job_id: str | None = None

    @property
    def url(self) -> str:
        """The URL of the dataset to train on. Raises `InvalidInput` if nothing was collected."""
        if self.train is None:
            why = ", ".join(f"{reason} {count}" for reason, count in self.left_out.items()) or "nothing was stored"
            raise InvalidInput.at("data", msg=f"has no rows: {why}")
        return self.train.url


@attrs.frozen
class TrainedRow:
    """A row that a checkpoint was trained on: the dataset, the row's number from 0, and its sources.

    `sources` are ids of stored completions and responses and references of traced calls; a preference has the sources
    of both answers.
    """

    step: int
    dataset: str
    row: int
    sources: tuple[str, ...]
