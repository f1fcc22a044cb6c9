"""A base model in training: forward passes over trained tokens, exact derivatives, AdamW."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from modelyard.domain.training import Example, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.engines.torch.lora import tensor_bytes
from modelyard.engines.torch.tokenizer import ChatTokenizer
from modelyard.engines.torch.training.examples import LEFT_OUT, TokenRow, example_rows, trajectory_rows
from modelyard.engines.torch.training.memory_plan import MemoryBudget, Pass
from modelyard.engines.torch.training.token_logprobs import TokenScorer, backward, rows_of
from modelyard.engines.torch.training.trainable import TrainableWeights, Weights
from modelyard.errors import TrainingError
from modelyard.trainers import loop
from modelyard.trainers.losses import Loss

MOMENTS_FILE = "optimizer.safetensors"
PASS_TOKENS = "pass_tokens"  # noqa: S105 - a number stored with the moments, as sums depend on it

BETAS, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.99), 0.1, 1.0
"""The usual settings of AdamW for RL of language models."""


class LocalLearner:
    """Trains the parameters `trained` of the network of `scorer`, on rows of up to `context_length` tokens."""

    def __init__(
        self,
        chat: ChatTokenizer,
        scorer: TokenScorer,
        trained: TrainableWeights,
        room: MemoryBudget,
        context_length: int,
    ) -> None:
        self._chat, self._scorer, self._trained, self._room = chat, scorer, trained, room
        self._context_length = context_length
        self._optimizer = _optimizer(trained.parameters)

    # ---- data

    def sft_turns(self, example: Example, which: AssistantTurns) -> Sequence[TokenRow]:
        """Return the example as a row. Raises `InvalidInput` or `TrainingError`."""
        return self._checked(example_rows(self._chat, example, which))

    def sampled(self, trajectory: Trajectory, without_logprobs: bool) -> loop.TrainableTurns:
        """Return the trajectory as rows. Raises `InvalidInput` or `TrainingError`."""
        rows = self._checked(trajectory_rows(self._chat, trajectory, without_logprobs))
        return loop.TrainableTurns(rows, sum(len(row.ids) for row in rows))

    def _checked(self, rows: Sequence[TokenRow]) -> list[TokenRow]:
        return [self._known(row) if len(row.ids) <= self._context_length else LEFT_OUT for row in rows]

    def _known(self, row: TokenRow) -> TokenRow:
        if max(row.ids) >= self._scorer.vocabulary:
            raise TrainingError(
                f"token {max(row.ids)} is not one of this model's {self._scorer.vocabulary}: the trajectories were "
                "sampled from another model; leave token_ids and prompt_token_ids out to train on their text"
            )
        self._room.admit(len(row.ids))
        return row

    # ---- learning

    def scores(self, model: object, turns: Sequence[loop.Turn]) -> loop.Rows:
        """Return log-probabilities under the weights `model`."""
        with self._trained.replaced(cast(Weights, model)):
            return self._scored(turns)

    def step(self, turns: Sequence[loop.Turn], loss: loop.Objective, learning_rate: float, number: int) -> loop.Metrics:
        """Make one step of AdamW.

        Rows go through the network once if one pass holds them all or the loss is linear; otherwise derivatives need
        all log-probabilities first, and rows go through it twice.
        """
        self._optimizer.zero_grad(set_to_none=True)
        found, entropy = self._gradient(turns, loss)
        norm = self._descend(learning_rate, number, found)
        tokens = sum(len(turn.logprobs) for turn in turns)
        return {**found.metrics, "grad_norm": norm, "entropy": entropy / max(tokens, 1)}

    def _gradient(self, turns: Sequence[loop.Turn], loss: loop.Objective) -> tuple[Loss, float]:
        """Leave the gradient in the parameters; return the loss, and the sum of the entropies."""
        passes = list(self._room.passes(cast(Sequence[TokenRow], turns)))
        found = None if len(passes) == 1 else self._foreseen(turns, loss)
        known, entropy = [], 0.0
        for one in passes:
            flat, entropies = self._scorer.logprobs(one.rows, one.recomputed)
            known.append((one, rows_of(flat, one.rows)))
            found = found or loss.of(placed(len(turns), known))
            backward(flat, [found.derivatives[number] for number in one.numbers])
            entropy += float(entropies.sum())
        if found is None or (loss.linear and len(passes) > 1):
            found = loss.of(placed(len(turns), known))
        return found, entropy

    def _foreseen(self, turns: Sequence[loop.Turn], loss: loop.Objective) -> Loss:
        """Return the loss before the first derivatives are needed; the value of a linear one is not known yet."""
        if loss.linear:
            return loss.of([(0.0,) * len(turn.logprobs) for turn in turns])
        return loss.of(self._scored(turns))

    def _descend(self, learning_rate: float, number: int, found: Loss) -> float:
        norm = float(nn.utils.clip_grad_norm_(self._trained.parameters, MAX_GRAD_NORM))
        if not math.isfinite(norm) or not math.isfinite(found.value):
            raise TrainingError(
                f"training diverged at step {number}: the loss is {found.value:g} and its gradient {norm:g}; try a "
                f"learning rate far below {learning_rate:g}, or resume from an earlier checkpoint"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return norm

    # ---- the network

    def _scored(self, turns: Sequence[loop.Turn]) -> loop.Rows:
        """Return log-probabilities without derivatives."""
        passes = self._room.passes(cast(Sequence[TokenRow], turns))
        with torch.no_grad():
            return placed(len(turns), [(one, rows_of(self._scorer.logprobs(one.rows)[0], one.rows)) for one in passes])

    # ---- files

    def files(self) -> loop.Files:
        """Return a plain adapter folder, as peft and vLLM load it, or all weights."""
        return self._trained.files()

    def state(self) -> loop.Files:
        """Return the files of a checkpoint, and the moments of the optimizer."""
        return {**self.files(), MOMENTS_FILE: [tensor_bytes(self._moments())]}

    def _moments(self) -> dict[str, Tensor]:
        states = (self._optimizer.state[parameter] for parameter in self._trained.parameters)
        moments = {
            f"{number:06d}.{kind}": torch.as_tensor(value)
            for number, state in enumerate(states)
            for kind, value in state.items()
        }
        return {**moments, PASS_TOKENS: torch.tensor(self._room.tokens)}

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the moments of a saved state."""
        for number, parameter in enumerate(self._trained.parameters):
            prefix = f"{number:06d}."
            kinds = [name for name in tensors if name.startswith(prefix)]
            state = {name.removeprefix(prefix): tensors[name].to(parameter.device) for name in kinds}
            if state:
                self._optimizer.state[parameter] = state
        self._room.tokens = int(tensors[PASS_TOKENS])


def _optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    """Create the optimizer: weights of matrices decay, those of norms and biases do not."""
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)


def placed(count: int, found: Iterable[tuple[Pass, Sequence[Sequence[float]]]]) -> loop.Rows:
    """Put the results of passes into the order of the step."""
    ordered: list[Sequence[float]] = [()] * count
    for one, rows in found:
        for number, row in zip(one.numbers, rows, strict=True):
            ordered[number] = row
    return ordered


_learns: type[loop.Learner] = LocalLearner
