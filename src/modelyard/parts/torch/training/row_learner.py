"""Training of any network: passes over rows that fit into memory, gradients, AdamW, and states."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from modelyard.domain.training_run import Loss, Objective, Rows
from modelyard.parts.torch.lora import tensor_bytes
from modelyard.parts.torch.training.memory_plan import MemoryBudget, Pass
from modelyard.parts.torch.training.token_logprobs import ScoredRow, TokenScorer, backward, rows_of
from modelyard.parts.torch.training.trainable import TrainableWeights
from modelyard.trainers import loop

MOMENTS_FILE = "optimizer.safetensors"
PASS_TOKENS = "pass_tokens"  # noqa: S105 - a number stored with the moments, as sums depend on it

BETAS, WEIGHT_DECAY = (0.9, 0.99), 0.1
"""The usual settings of AdamW for RL of language models."""


Then: TypeAlias = Callable[[Tensor, Tensor], Rows | None]
"""Takes the log-probabilities and entropies of a pass, and returns the derivatives of the former, None for none."""

Compute: TypeAlias = Callable[[Pass, bool, Then], None]
"""Computes a pass, with derivatives if the second argument says so."""


def compute_alone(scorer: TokenScorer, one: Pass, learns: bool, then: Then) -> None:
    with torch.set_grad_enabled(learns):
        flat, entropies = scorer.logprobs(one.rows, one.recomputed and learns, one.packed)
        derivatives = then(flat, entropies)
        if derivatives is not None:
            backward(flat, derivatives)


class RowLearner:
    """Trains the parameters `trained` of the network of `scorer`. Each pass is computed by `compute`, or alone."""

    def __init__(
        self, scorer: TokenScorer, trained: TrainableWeights, room: MemoryBudget, compute: Compute | None = None
    ) -> None:
        self._scorer, self._trained, self._room = scorer, trained, room
        self._compute: Compute = compute or partial(compute_alone, scorer)
        self._optimizer = _optimizer(trained.parameters)

    # ---- the network

    def _scored(self, rows: Sequence[ScoredRow]) -> Rows:
        return placed(len(rows), [(one, self._pass_scores(one)) for one in self._room.passes(rows)])

    def _pass_scores(self, one: Pass) -> list[list[float]]:
        found: list[list[float]] = []

        def then(flat: Tensor, _: Tensor) -> None:
            found.extend(rows_of(flat, one.rows))

        self._compute(one, False, then)
        return found

    def _gradient(self, rows: Sequence[ScoredRow], loss: Objective) -> tuple[Rows, Loss, float]:
        """Add to the gradients; return the scores, the loss, and the sum of the entropies.

        Rows go through the network once if one pass holds them all or the loss is linear; otherwise derivatives need
        all log-probabilities first, and rows go through it twice.
        """
        passes = list(self._room.passes(rows))
        found = None if len(passes) == 1 else self._foreseen(rows, loss)
        known: list[tuple[Pass, list[list[float]]]] = []
        entropy = 0.0

        def then(one: Pass, flat: Tensor, entropies: Tensor) -> Rows:
            nonlocal found, entropy
            known.append((one, rows_of(flat, one.rows)))
            entropy += float(entropies.sum())
            found = found or loss.of(placed(len(rows), known))
            return [found.derivatives[number] for number in one.numbers]

        for one in passes:
            self._compute(one, True, partial(then, one))
        scores = placed(len(rows), known)
        if found is None or (loss.linear and len(passes) > 1):
            found = loss.of(scores)
        return scores, found, entropy

    def _foreseen(self, rows: Sequence[ScoredRow], loss: Objective) -> Loss:
        """Return the loss before the first derivatives are needed; the value of a linear loss is not known yet."""
        if loss.linear:
            return loss.of([(0.0,) * sum(map(len, row.targets)) for row in rows])
        return loss.of(self._scored(rows))

    def _norm(self, most: float | None) -> float:
        """Return the norm of the gradients, and limit them to the norm `most` if it is given."""
        parameters = self._trained.parameters
        norm = nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
        if most is not None:
            nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return float(norm)

    # ---- files

    def files(self) -> loop.Files:
        """Return a plain adapter folder, as peft and vLLM load it, or all weights."""
        return self._trained.files()

    def state(self) -> loop.Files:
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


def placed(count: int, found: Iterable[tuple[Pass, Sequence[Sequence[float]]]]) -> Rows:
    ordered: list[Sequence[float]] = [()] * count
    for one, rows in found:
        for number, row in zip(one.numbers, rows, strict=True):
            ordered[number] = row
    return ordered
