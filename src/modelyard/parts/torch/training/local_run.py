"""An adapter in training that its caller drives, on a base model that it shares with others."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import attrs
import torch

from modelyard.domain.training_run import AdamParams, Loss, Objective, Rows, TargetRow
from modelyard.errors import TrainingError, located_at
from modelyard.parts.torch.training.memory_plan import MemoryBudget
from modelyard.parts.torch.training.row_learner import RowLearner
from modelyard.parts.torch.training.shared_base import SharedBase
from modelyard.parts.torch.training.trainable import AdapterWeights
from modelyard.protocols import OpenRun


@attrs.frozen
class GivenRow:
    """A row with a score for every position."""

    ids: Sequence[int]
    targets: Sequence[Sequence[int]]

    @property
    def before(self) -> Sequence[int]:
        return range(len(self.ids))

    @classmethod
    def of(cls, row: TargetRow) -> "GivenRow":
        starts = range(0, len(row.targets), row.k)
        return cls(row.inputs, [row.targets[start : start + row.k] for start in starts])


class LocalRun(RowLearner):
    """A run with its own adapter. `within` is the context of each call, `close` is called once at the end."""

    def __init__(
        self,
        base: SharedBase,
        adapter: AdapterWeights,
        room: MemoryBudget,
        context_length: int,
        within: Callable[[], AbstractContextManager[object]],
        close: Callable[[], None],
    ) -> None:
        super().__init__(base.scorer, adapter, room, partial(base.compute, adapter, room))
        self._context_length, self._within, self._close = context_length, within, close
        self._closed = False

    def score(self, rows: Sequence[TargetRow]) -> Rows:
        with self._within():
            return self._scored(self._read(rows))

    def accumulate(self, rows: Sequence[TargetRow], objective: Objective) -> tuple[Rows, Loss]:
        with self._within():
            scores, loss, _ = self._gradient(self._read(rows), objective)
            return scores, loss

    def _read(self, rows: Sequence[TargetRow]) -> list[GivenRow]:
        for number, row in enumerate(rows):
            with located_at(number):
                row.check(self._context_length, self._scorer.vocabulary)
            self._room.admit(len(row.inputs))
        return [GivenRow.of(row) for row in rows]

    def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """Make one step of AdamW; every weight with moments moves, even without a gradient."""
        with self._within():
            for parameter in self._trained.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            try:
                return {"grad_norm": self._step(params)}
            finally:
                self._optimizer.zero_grad(set_to_none=True)

    def _step(self, params: AdamParams) -> float:
        norm = self._norm(params.grad_clip_norm or None)
        if not norm < float("inf"):
            raise TrainingError(
                f"the step was left out: the norm of the gradient is {norm}; try a learning rate far below "
                f"{params.learning_rate:g}, or load an earlier checkpoint"
            )
        for group in self._optimizer.param_groups:
            group |= {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "eps": params.eps}
            group["weight_decay"] = params.weight_decay
        self._optimizer.step()
        return norm

    def close(self) -> None:
        """Give back the adapter's memory, and the base model's if this run is the last."""
        if not self._closed:
            self._closed = True
            self._close()


_: type[OpenRun] = LocalRun
