"""The rows of a job in the order of its options, and an end before the last of them."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
import torch

from modelyard.parts.torch.lora import tensor_bytes
from modelyard.parts.torch.training.options import BatchOptions
from modelyard.parts.torch.training.trainable import TrainableWeights, Weights
from modelyard.protocols import SavedState, Trained, TrainItem
from modelyard.trainers.loop import Files, Metrics, Plan

BEST_FILE = "best.safetensors"
"""The weights of the best validation, and what is known of it, in a saved state."""

_STANDING = "standing"


# ---- order ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Arranged:
    """Rows to train, all epochs of them, and rows to validate. `file_rows` are all rows of one epoch in the order of
    the file, None if that is the order in which they are trained.
    """

    rows: Iterable[Any]
    held_out: Iterable[Any]
    file_rows: Sequence[Any] | None = None


def arranged(config: Any, data: Iterable[Any], held_out: Iterable[Any], seed: int) -> Arranged:
    """Hold out and shuffle rows as a configuration says: the same for the same seed. Those that are shuffled or held
    out of are in memory. Raises `InvalidInput` for options that contradict the rows.
    """
    if not isinstance(config, BatchOptions):
        return Arranged(data, held_out)
    config.check_held_out(held_out != ())
    if not (config.shuffle or config.validation_split):
        return Arranged(data, held_out)
    count = sum(1 for _ in data) // config.epochs
    rows = list(islice(data, count))
    chosen = random.Random(f"validation/{seed}").sample(range(count), config.held_out(count))  # noqa: S311 - a seeded choice
    apart = sorted(chosen) if config.validation_split else []
    left = [place for place in range(count) if place not in set(apart)]
    validated = [rows[place] for place in apart] if apart else held_out
    return Arranged(_Epochs(rows, left, config.epochs, seed if config.shuffle else None), validated, rows)


@attrs.frozen
class _Epochs:
    rows: Sequence[Any]
    places: Sequence[int]
    epochs: int
    seed: int | None

    def __iter__(self) -> Iterator[Any]:
        for epoch in range(self.epochs):
            places = list(self.places)
            if self.seed is not None:
                random.Random(f"{epoch}/{self.seed}").shuffle(places)  # noqa: S311 - a seeded order
            yield from (self.rows[place] for place in places)


# ---- an early end --------------------------------------------------------------------------------------------------


@attrs.define
class EarlyStop:
    """Ends a job after `patience` validations in a row without a lower loss. Its weights are those of the lowest, and
    its held-out losses those of these weights."""

    trained: TrainableWeights
    patience: int
    best: float = math.inf
    step: int = 0
    waited: int = 0
    weights: Weights | None = None
    metrics: dict[str, float] = attrs.field(factory=dict)

    def plan(self, plan: Plan) -> Plan:
        self.metrics |= plan.metrics
        return Plan(plan.total, self._until_it_ends(plan), self.metrics)

    def _until_it_ends(self, plan: Plan) -> Iterator[tuple[int, Metrics]]:
        while not self._stops and (found := next(plan.steps, None)) is not None:
            if "valid_loss" in found[1]:
                self._measured(found[0], found[1]["valid_loss"])
            yield found
        if self.weights is not None:
            self.trained.load(self.weights)
            self.metrics |= {"valid_loss": self.best, **plan.validate()}

    @property
    def _stops(self) -> bool:
        return self.waited >= self.patience

    def told(self, items: Iterable[TrainItem]) -> Iterator[TrainItem]:
        """Yield the items of the plan; the last says why it ended early. No state is saved at that step: a job resumed
        from there would have no step to report."""
        for item in items:
            if isinstance(item, Trained) and self._stops:
                best = f"{self.best:.4g}, of step {self.step}"
                yield attrs.evolve(item, stop_reason=f"patience ({self.waited}): no later validation was below {best}")
            elif not (isinstance(item, SavedState) and self._stops):
                yield item

    def _measured(self, step: int, loss: float) -> None:
        self.waited += 1
        if loss < self.best:
            self.best, self.step, self.waited, self.weights = loss, step, 0, self.trained.copy()
        self._tell()

    def _tell(self) -> None:
        self.metrics |= {"best_valid_loss": self.best, "best_step": float(self.step)}

    # ---- a saved state

    def files(self) -> Files:
        if self.weights is None:
            return {}
        standing = torch.tensor([self.best, self.step, self.waited], dtype=torch.float64)
        return {BEST_FILE: [tensor_bytes({**self.weights, _STANDING: standing})]}

    def resume(self, read: Callable[[str], Mapping[str, torch.Tensor]]) -> None:
        tensors = dict(read(BEST_FILE))
        best, step, waited = tensors.pop(_STANDING).tolist()
        self.best, self.step, self.waited, self.weights = best, int(step), int(waited), tensors
        self._tell()
