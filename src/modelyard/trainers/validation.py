"""Validation while a job trains: the loss on some held-out rows now and then, on all at the end of each epoch."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

import attrs

from modelyard.domain.training_run import Objective
from modelyard.trainers.loop import Learner, Metrics, Turn

Row = TypeVar("Row")

MEASUREMENTS = 20
"""About how often in a job the loss on some of the rows is measured."""

MEASURED_ROWS = 32
"""How many of the rows are measured then, from the first on."""


@attrs.frozen
class Criterion(Generic[Row]):
    """How a method computes its loss: the turns of a row, the objective of some turns, and their weight. The loss of
    several batches is the mean of theirs, weighted by `weight`: their tokens, or their pairs."""

    turns_of: Callable[[Row], Sequence[Turn]]
    objective_of: Callable[[Sequence[Turn]], Objective]
    weight: Callable[[Sequence[Turn]], int]

    def trainable(self, rows: Iterable[Row]) -> list[Turn]:
        return [turn for row in rows for turn in self.turns_of(row) if turn.logprobs]


@attrs.frozen
class Validation(Generic[Row]):
    learner: Learner
    criterion: Criterion[Row]
    rows: Iterable[Row]
    batch: int
    steps: int
    epochs: int

    def after(self, step: int) -> Metrics:
        ends = {math.ceil(self.steps * epoch / self.epochs) for epoch in range(1, self.epochs + 1)}
        every = max(1, self.steps // MEASUREMENTS)
        some = self._loss(islice(self.rows, MEASURED_ROWS))[0] if step % every == 0 or step in ends else None
        return {**({} if some is None else {"valid_loss": some}), **(self.whole() if step in ends else {})}

    def whole(self) -> Metrics:
        """Return the loss on all rows, and its standard error."""
        loss, error = self._loss(self.rows)
        found = {"full_valid_loss": loss, "full_valid_loss_error": error}
        return {name: one for name, one in found.items() if one is not None}

    def _loss(self, rows: Iterable[Row]) -> tuple[float | None, float | None]:
        """Return the loss, and its standard error: that of a ratio of sums over batches (Cochran 1977)."""
        parts = list[tuple[int, float]]()
        for turns in self._batches(iter(rows)):
            objective = self.criterion.objective_of(turns)
            counted = self.criterion.weight(turns)
            if counted:
                parts.append((counted, objective.of(self.learner.scores(None, turns)).value))
        weight, count = sum(counted for counted, _ in parts), len(parts)
        loss = math.fsum(counted * value for counted, value in parts) / weight if weight else None
        if loss is None or count < 2:
            return loss, None
        residuals = [counted * (value - loss) for counted, value in parts]
        squares = math.fsum(one * one for one in residuals)
        return loss, math.sqrt(count / (count - 1) * squares) / weight

    def _batches(self, rows: Iterator[Row]) -> Iterator[list[Turn]]:
        while batch := list(islice(rows, self.batch)):
            yield self.criterion.trainable(batch)
