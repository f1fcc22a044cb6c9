"""A base model in training: forward passes over trained tokens, exact derivatives, AdamW."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from modelyard.domain.training import Example, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.domain.training_run import Loss, Objective, Rows
from modelyard.errors import TrainingError
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.examples import TokenRow, example_rows, taught_rows, trajectory_rows
from modelyard.parts.torch.training.memory_plan import MemoryBudget
from modelyard.parts.torch.training.reading import RowReading, Survey
from modelyard.parts.torch.training.row_learner import RowLearner
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import TrainableWeights, Weights
from modelyard.trainers import loop

MAX_GRAD_NORM = 1.0
"""The usual limit for RL of language models."""


class LocalLearner(RowLearner):
    """Trains the parameters `trained` of the network of `scorer`, on rows of up to `context_length` tokens."""

    def __init__(
        self,
        chat: ChatTokenizer,
        scorer: TokenScorer,
        trained: TrainableWeights,
        room: MemoryBudget,
        context_length: int,
    ) -> None:
        super().__init__(scorer, trained, room)
        self._chat = chat
        self.reading: RowReading = RowReading(context_length)
        self.survey: Survey | None = None
        self.kept: Callable[[], loop.Files] = dict
        """Further files of a saved state."""

    @property
    def context_length(self) -> int:
        return self.reading.most

    def read_as(self, config: Any) -> None:
        """Read rows as a configuration says. Raises `TrainingError` if they cannot be packed."""
        self.reading = RowReading.of(config, self.reading.most)
        self._room.packs = getattr(config, "packing", False)
        if self._room.packs and not self._scorer.can_pack():
            raise TrainingError(
                "packing is not possible: this base model would read from one row into the next; leave it out"
            )

    def estimate(self, rows: int, longest: int) -> Mapping[str, int]:
        """Return the bytes that so many rows a step take, the longest of which has so many tokens."""
        return self._room.estimate(rows, longest)

    def placed_on(self) -> Mapping[str, str]:
        """Return where the network is, and the type of its numbers."""
        return self._scorer.placed_on()

    # ---- data

    def sft_turns(self, example: Example, which: AssistantTurns) -> Sequence[TokenRow]:
        return self._checked(example_rows(self._chat, example, which, self.reading.after_end))

    def sampled(self, trajectory: Trajectory, without_logprobs: bool) -> loop.TrainableTurns:
        rows = self._checked(trajectory_rows(self._chat, trajectory, without_logprobs))
        return loop.TrainableTurns(rows, sum(len(row.ids) for row in rows))

    def taught(self, trajectory: Trajectory) -> Sequence[TokenRow]:
        return self._checked(taught_rows(self._chat, trajectory, self._scorer.vocabulary))

    def _checked(self, rows: Sequence[TokenRow]) -> list[TokenRow]:
        fitted = [self.reading.fitted(row) for row in rows]
        if self.survey is not None:
            self.survey.count(rows, fitted)
        return [self._known(row) if row.places else row for row in fitted]

    def _known(self, row: TokenRow) -> TokenRow:
        if max(row.ids) >= self._scorer.vocabulary:
            raise TrainingError(
                f"token {max(row.ids)} is not one of this model's {self._scorer.vocabulary}: the trajectories were "
                "sampled from another model; leave token_ids and prompt_token_ids out to train on their text"
            )
        self._room.admit(len(row.ids))
        return row

    # ---- learning

    def scores(self, model: object | None, turns: Sequence[loop.Turn]) -> Rows:
        if model is None:
            return self._scored(cast(Sequence[TokenRow], turns))
        with self._trained.replaced(cast(Weights, model)):
            return self._scored(cast(Sequence[TokenRow], turns))

    def state(self) -> loop.Files:
        return {**super().state(), **self.kept()}

    def step(self, turns: Sequence[loop.Turn], loss: Objective, learning_rate: float, number: int) -> loop.Metrics:
        self._optimizer.zero_grad(set_to_none=True)
        _, found, entropy = self._gradient(cast(Sequence[TokenRow], turns), loss)
        norm = self._descend(learning_rate, number, found)
        tokens = sum(len(turn.places) for turn in cast(Sequence[TokenRow], turns))
        return {**found.metrics, "grad_norm": norm, "entropy": entropy / max(tokens, 1)}

    def _descend(self, learning_rate: float, number: int, found: Loss) -> float:
        norm = self._norm(MAX_GRAD_NORM)
        if not math.isfinite(norm) or not math.isfinite(found.value):
            raise TrainingError(
                f"training diverged at step {number}: the loss is {found.value:g} and its gradient {norm:g}; try a "
                f"learning rate far below {learning_rate:g}, or resume from an earlier checkpoint"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return norm


_learns: type[loop.Learner] = LocalLearner
