"""A pass over rows of several runs: each row is computed with the adapter of its run.

A run whose loss fails, or whose numbers are not finite, changes nothing of the others: no operation mixes rows, and the
weights that runs share have no gradients.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

import attrs
import torch
from torch import Tensor

from modelyard.domain.training_run import Rows
from modelyard.parts.torch.training.memory_plan import MemoryBudget, Pass
from modelyard.parts.torch.training.row_learner import Then
from modelyard.parts.torch.training.token_logprobs import TokenScorer, as_slopes
from modelyard.parts.torch.training.trainable import AdapterWeights, TrainedLinear, names_of

FILLED = 0.75
"""The least share of tokens that are no padding in a pass over rows of several runs."""

Layers = Mapping[str, TrainedLinear]


@attrs.define(eq=False)
class WaitingPass:
    """A pass of a run that waits to be computed; then it is `done`, or has failed with `fault`."""

    adapter: AdapterWeights
    room: MemoryBudget
    one: Pass
    learns: bool
    then: Then
    done: bool = False
    fault: Exception | None = None
    _asked: bool = False
    _derivatives: Rows | None = None

    @property
    def longest(self) -> int:
        return max(len(row.ids) for row in self.one.rows)

    def fail(self, fault: Exception) -> None:
        self.fault, self.done = fault, True

    def derivatives(self, flat: Tensor, entropies: Tensor) -> Rows | None:
        """Ask the run, once: a pass that has to be computed again has the same."""
        if not self._asked:
            self._asked = True
            self._derivatives = self.then(flat, entropies)
        return self._derivatives


@attrs.frozen(eq=False)
class _Learned:
    """The derivatives of what the body gave for a pass (positions x features), and the gradients of the head."""

    waiting: WaitingPass
    states: Tensor
    slope: Tensor
    of_head: Mapping[str, Tensor]


def fit_together(group: Sequence[WaitingPass]) -> bool:
    """Return whether passes can be computed as one: of several runs, in their memory, and with little padding."""
    rows, longest = sum(len(waiting.one.rows) for waiting in group), max(waiting.longest for waiting in group)
    tokens = sum(len(row.ids) for waiting in group for row in waiting.one.rows)
    return (
        len({id(waiting.adapter) for waiting in group}) == len(group)
        and len({waiting.learns for waiting in group}) == 1
        and not any(waiting.one.packed or waiting.one.recomputed for waiting in group)
        and tokens >= FILLED * rows * longest
        and group[0].room.shares([(waiting.room, len(waiting.one.rows)) for waiting in group], longest)
    )


def compute_as_one(scorer: TokenScorer, group: Sequence[WaitingPass], head: Collection[str]) -> None:
    """Compute passes as one, in a network whose layers use no adapter. `head` are the names of its head's layers.

    Gradients are added when all of them are known. An error before leaves those passes to be computed that are not
    done.
    """
    rows = [waiting.one.rows for waiting in group]
    with torch.set_grad_enabled(group[0].learns), _used_each(group, head):
        states = scorer.states(rows)
        found = [_through_head(scorer, *pair, head) for pair in zip(group, states, strict=True)]
        learned = [one for one in found if one is not None]
        gradients = _through_body(learned, head)
    for one, of_body in zip(learned, gradients, strict=True):
        one.waiting.adapter.add_gradients({**one.of_head, **of_body})
        one.waiting.done = True


@contextmanager
def _used_each(group: Sequence[WaitingPass], head: Collection[str]) -> Iterator[None]:
    """Have the layers of the body use the adapter of each row's run."""
    counts = [len(waiting.one.rows) for waiting in group]
    every = {name: layer for waiting in group for name, layer in waiting.adapter.layers.items() if name not in head}
    try:
        for name, layer in every.items():
            layer.use_each([waiting.adapter.matrices(name) for waiting in group], counts)
        yield
    finally:
        for layer in every.values():
            layer.use(None)


def _through_head(scorer: TokenScorer, waiting: WaitingPass, states: Tensor, head: Collection[str]) -> _Learned | None:
    """Compute the head, and its derivatives, for one run, so that its logits are not kept.

    Returns None for a run that learns nothing, or whose loss fails: its pass is done.
    """
    layers = {name: layer for name, layer in waiting.adapter.layers.items() if name in head}
    before = states.detach().requires_grad_(waiting.learns)
    try:
        for name, layer in layers.items():
            layer.use(waiting.adapter.matrices(name))
        flat, entropies = scorer.of_states(waiting.one.rows, before)
        try:
            derivatives = waiting.derivatives(flat, entropies)
        except Exception as fault:  # noqa: BLE001 - the run of this pass alone gets it
            waiting.fail(fault)
            return None
        if derivatives is None:
            waiting.done = True
            return None
        names = [name for layer in layers for name in names_of(layer)]
        trained = [waiting.adapter.named[name] for name in names]
        slope, *slopes = torch.autograd.grad(flat, [before, *trained], as_slopes(flat, derivatives))
        return _Learned(waiting, states, slope, dict(zip(names, slopes, strict=True)))
    finally:
        for layer in layers.values():
            layer.use(None)


def _through_body(learned: Sequence[_Learned], head: Collection[str]) -> list[dict[str, Tensor]]:
    """Return the gradients of each run's weights in the body, by name, if they have any."""
    names = [
        [name for layer in one.waiting.adapter.layers if layer not in head for name in names_of(layer)]
        for one in learned
    ]
    parts = [one for one, some in zip(learned, names, strict=True) if some]
    if not parts:
        return [{} for _ in learned]
    weights = [one.waiting.adapter.named[name] for one, some in zip(learned, names, strict=True) for name in some]
    states, slopes = [one.states for one in parts], [one.slope for one in parts]
    found = iter(torch.autograd.grad(states, weights, slopes, allow_unused=True))
    each = [dict(zip(some, islice(found, len(some)), strict=True)) for some in names]
    return [{name: one for name, one in some.items() if one is not None} for some in each]
