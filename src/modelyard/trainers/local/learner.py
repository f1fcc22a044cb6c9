"""A base model with an adapter in training: forward passes where tokens are trained, exact derivatives, AdamW."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import cast

import attrs
import torch
from torch import Tensor

from modelyard.causal_lm.chat import Chat
from modelyard.causal_lm.lora import CONFIG_FILE, WEIGHTS_FILE
from modelyard.causal_lm.network import Network
from modelyard.causal_lm.tensors import tensor_bytes
from modelyard.domain.training import Example, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.errors import TrainingError
from modelyard.trainers import loop
from modelyard.trainers.local.lora import TrainedAdapter
from modelyard.trainers.local.rows import Row, example_row, trajectory_rows
from modelyard.trainers.losses import Loss

MOMENTS_FILE = "optimizer.safetensors"

BETAS, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.99), 0.1, 1.0
"""AdamW as RL of language models usually sets it."""

PASS_TOKENS = 8192
"""Tokens, padding included, that go through the network at a time."""


@attrs.frozen
class _Pass:
    """Some rows of a step, padded on the right, and where in the step each of them is."""

    numbers: Sequence[int]
    rows: Sequence[Row]


class LocalLearner:
    """Trains `adapter` on `network`, which it belongs to."""

    def __init__(self, chat: Chat, network: Network, adapter: TrainedAdapter, base_model: str) -> None:
        self._chat, self._network, self._adapter, self._base_model = chat, network, adapter, base_model
        self._optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.0, betas=BETAS, weight_decay=WEIGHT_DECAY)

    # ---- data

    def imitated(self, example: Example, which: AssistantTurns) -> Sequence[Row]:
        """The example as a row. Raises `InvalidInput`."""
        row = example_row(self._chat, example, which)
        return [row] if row.places else []

    def sampled(self, trajectory: Trajectory, without_logprobs: bool) -> loop.Sampled:
        """The trajectory as rows. Raises `InvalidInput`."""
        rows = trajectory_rows(self._chat, trajectory, without_logprobs)
        return loop.Sampled(rows, sum(len(row.ids) for row in rows))

    # ---- learning

    def scores(self, model: object, turns: Sequence[loop.Turn]) -> loop.Rows:
        """Under the weights that `model`, a context manager, puts in place for as long as it is entered."""
        with cast(AbstractContextManager[None], model), torch.no_grad():
            return self._in_order(turns, lambda one: self._logprobs(one.rows)[0])

    def step(
        self, turns: Sequence[loop.Turn], loss: Callable[[loop.Rows], Loss], learning_rate: float, number: int
    ) -> loop.Metrics:
        """One step of AdamW. Where one pass holds all rows they go through the network once; else the derivatives need
        all log-probabilities first, and they go twice.
        """
        passes = list(_passes(cast(Sequence[Row], turns)))
        self._optimizer.zero_grad(set_to_none=True)
        found, entropy = self._only(passes, turns, loss) if len(passes) == 1 else self._twice(passes, turns, loss)
        norm = self._descend(learning_rate, number, found)
        return {**found.metrics, "grad_norm": norm, "entropy": entropy}

    def _only(
        self, passes: Sequence[_Pass], turns: Sequence[loop.Turn], loss: Callable[[loop.Rows], Loss]
    ) -> tuple[Loss, float]:
        flat, entropy = self._flat_logprobs(passes[0].rows)
        found = loss(_placed(len(turns), [(passes[0], _rows(flat, passes[0].rows))]))
        self._backward(flat, passes[0], found)
        return found, float(entropy.mean()) if len(entropy) else 0.0

    def _twice(
        self, passes: Sequence[_Pass], turns: Sequence[loop.Turn], loss: Callable[[loop.Rows], Loss]
    ) -> tuple[Loss, float]:
        with torch.no_grad():
            known = [(one, *self._logprobs(one.rows)) for one in passes]
        found = loss(_placed(len(turns), [(one, rows) for one, rows, _ in known]))
        for one in passes:
            self._backward(self._flat_logprobs(one.rows)[0], one, found)
        return found, loop.mean([value for _, _, entropies in known for value in entropies])

    def _backward(self, flat: Tensor, one: _Pass, found: Loss) -> None:
        derivatives = [value for number in one.numbers for value in found.derivatives[number]]
        flat.backward(torch.tensor(derivatives, dtype=flat.dtype, device=flat.device))

    def _descend(self, learning_rate: float, number: int, found: Loss) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self._adapter.parameters(), MAX_GRAD_NORM))
        if not math.isfinite(norm) or not math.isfinite(found.value):
            raise TrainingError(
                f"training diverged at step {number}: the loss is {found.value:g} and its gradient {norm:g}; try a "
                f"learning rate far below {learning_rate:g}, or go on from an earlier checkpoint"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return norm

    # ---- the network

    def _in_order(self, turns: Sequence[loop.Turn], score: Callable[[_Pass], list[list[float]]]) -> loop.Rows:
        return _placed(len(turns), [(one, score(one)) for one in _passes(cast(Sequence[Row], turns))])

    def _logprobs(self, rows: Sequence[Row]) -> tuple[list[list[float]], list[float]]:
        flat, entropy = self._flat_logprobs(rows)
        return _rows(flat, rows), entropy.tolist()

    def _flat_logprobs(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """The log-probability and the entropy at each trained place, row after row. Logits are computed there alone:
        with a large vocabulary they cost more than all the rest.
        """
        device, longest = self._network.device, max(len(row.ids) for row in rows)
        ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in rows], device=device)
        where = [(number, place) for number, row in enumerate(rows) for place in row.places]
        numbers, places = (torch.tensor(column, device=device) for column in zip(*where, strict=True))
        hidden = self._network.body(input_ids=ids, use_cache=False).last_hidden_state[numbers, places - 1]
        logits = self._network.logits(hidden)
        normaliser = logits.logsumexp(-1)
        logprobs = logits.gather(1, ids[numbers, places][:, None])[:, 0] - normaliser
        with torch.no_grad():
            entropy = normaliser - (logits.softmax(-1) * logits).sum(-1)
        return logprobs, entropy

    # ---- files

    def files(self) -> loop.Files:
        """A plain adapter folder, as peft and vLLM load it."""
        config = self._adapter.shape.config(self._base_model)
        return {CONFIG_FILE: [config], WEIGHTS_FILE: [tensor_bytes(self._adapter.tensors())]}

    def state(self) -> loop.Files:
        """The adapter, and the moments of the optimizer."""
        return {**self.files(), MOMENTS_FILE: [tensor_bytes(self._moments())]}

    def _moments(self) -> dict[str, Tensor]:
        states = (self._optimizer.state[parameter] for parameter in self._adapter.parameters())
        return {
            f"{number:06d}.{kind}": torch.as_tensor(value)
            for number, state in enumerate(states)
            for kind, value in state.items()
        }

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the moments of a saved state."""
        for number, parameter in enumerate(self._adapter.parameters()):
            prefix = f"{number:06d}."
            kinds = [name for name in tensors if name.startswith(prefix)]
            self._optimizer.state[parameter] = {name.removeprefix(prefix): tensors[name] for name in kinds}


def _passes(rows: Sequence[Row]) -> Iterator[_Pass]:
    """Rows of about one length together, as many as `PASS_TOKENS` hold."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
    numbers: list[int] = []
    for number in order:
        if numbers and (len(numbers) + 1) * len(rows[number].ids) > PASS_TOKENS:
            yield _Pass(numbers, [rows[one] for one in numbers])
            numbers = []
        numbers.append(number)
    if numbers:
        yield _Pass(numbers, [rows[one] for one in numbers])


def _rows(flat: Tensor, rows: Sequence[Row]) -> list[list[float]]:
    return [part.tolist() for part in flat.detach().split([len(row.places) for row in rows])]


def _placed(count: int, found: Sequence[tuple[_Pass, Sequence[Sequence[float]]]]) -> loop.Rows:
    """What passes found, in the order of the step."""
    placed: list[Sequence[float]] = [()] * count
    for one, rows in found:
        for number, row in zip(one.numbers, rows, strict=True):
            placed[number] = row
    return placed


_learns: type[loop.Learner] = LocalLearner
