"""A base model that many adapters are trained on side by side: its weights are in memory once.

Each run has its own parameters, gradients and moments. Runs take turns, in the order in which they ask. Passes of
several runs that wait at a time are computed as one if their rows fit together: each row with the adapter of its run.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from modelyard.domain.training_run import AdapterConfig, Rows
from modelyard.parts.torch.lora import LoraShape, head_layer
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.training.adapter_layers import shape_of
from modelyard.parts.torch.training.memory_plan import MemoryBudget, Pass, need_of
from modelyard.parts.torch.training.row_learner import Then, compute_alone
from modelyard.parts.torch.training.token_logprobs import TokenScorer, backward_of
from modelyard.parts.torch.training.trainable import (
    AdapterWeights,
    Matrices,
    NotTogether,
    TrainedLinear,
    attach_adapter,
)

T = TypeVar("T")

FILLED = 0.75
"""The least share of tokens that are no padding in passes that are computed together."""


class Turns:
    """A lock that is handed on in the order of requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = self._served = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._changed:
            mine = self._asked
            self._asked += 1
            self._changed.wait_for(lambda: self._served == mine)
        try:
            yield
        finally:
            with self._changed:
                self._served += 1
                self._changed.notify_all()


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

    @property
    def longest(self) -> int:
        return max(len(row.ids) for row in self.one.rows)

    def derivatives(self, flat: Tensor, entropies: Tensor) -> Rows | None:
        """Return the derivatives; None if the run does not learn or if its loss has failed."""
        try:
            return self.then(flat, entropies)
        except Exception as fault:  # noqa: BLE001 - the run of this pass alone gets it
            self.fault = fault
            return None


class SharedBase:
    """The network of a base model, and the adapters on it, which may take `limit` bytes in all, weights included."""

    def __init__(self, network: Network, limit: int | None) -> None:
        self._network, self._limit = network, limit
        self.scorer: TokenScorer = TokenScorer(network)
        self._turns, self._lock = Turns(), threading.Lock()
        self._selected: AdapterWeights | None = None
        self._taken: dict[AdapterWeights, int] = {}
        self._head = {name for name, _ in head_layer(network.model)}
        self._waiting: list[WaitingPass] = []
        self._together = True

    @property
    def unused(self) -> bool:
        return not self._taken

    def resolve(self, config: AdapterConfig) -> LoraShape:
        return shape_of(config, self._network.model)

    def add(self, shape: LoraShape, seed: int, base_model: str) -> tuple[AdapterWeights, MemoryBudget]:
        """Make an adapter. Raises `TrainingError` if there is no memory for it, or no place."""
        with self._turns.one():
            adapter = attach_adapter(self._network.model, shape, seed, base_model)
            self._select(adapter)
            need = need_of(self._network, self.scorer, adapter.parameters, copies=0)
        with self._lock:
            room = MemoryBudget(attrs.evolve(need, moments=need.moments + sum(self._taken.values())), self._limit)
            room.admit(1)
            self._taken[adapter] = need.moments + sum(one.nbytes for one in adapter.parameters)
        return adapter, room

    def remove(self, adapter: AdapterWeights) -> None:
        with self._turns.one():
            if self._selected is adapter:
                self._select(None)
        with self._lock:
            self._taken.pop(adapter, None)

    # ---- passes

    def compute(self, adapter: AdapterWeights, room: MemoryBudget, one: Pass, learns: bool, then: Then) -> None:
        """Compute a pass of a run, with those of others that wait. Raises what makes this one fail."""
        mine = WaitingPass(adapter, room, one, learns, then)
        with self._lock:
            self._waiting.append(mine)
        with self._turns.one():
            if not mine.done:
                self._computed(self._fitting(mine))
        if mine.fault is not None:
            raise mine.fault

    def _fitting(self, first: WaitingPass) -> list[WaitingPass]:
        """Take a pass, and those that can be computed with it: of other runs, at most one of each."""
        with self._lock:
            found = [first]
            for asked in self._waiting if self._together else ():
                if asked is not first and _fit([*found, asked]):
                    found.append(asked)
            self._waiting = [asked for asked in self._waiting if asked not in found]
        return found

    def _computed(self, group: Sequence[WaitingPass]) -> None:
        """Compute passes as one, or each alone if that is not possible."""
        if len(group) > 1:
            try:
                self._compute_each(group)
            except (NotTogether, RuntimeError, MemoryError) as fault:
                self._together = self._together and not isinstance(fault, NotTogether)
            finally:
                self._leave(group)
        for asked in group:
            if not asked.done:
                self._select(asked.adapter)
                try:
                    compute_alone(self.scorer, asked.one, asked.learns, asked.then)
                except Exception as fault:  # noqa: BLE001 - who waits for this pass gets it
                    asked.fault = fault
                asked.done = True

    def _compute_each(self, group: Sequence[WaitingPass]) -> None:
        """Compute passes as one. An error before their derivatives leaves all of them to be computed."""
        self._select(None)
        rows = [len(asked.one.rows) for asked in group]
        for name, layer in _layers(group).items():
            if name not in self._head:
                layer.use_each([_matrices(asked, name) for asked in group], rows)
        with torch.set_grad_enabled(group[0].learns):
            heads = [partial(self._use_head, group, asked) for asked in group]
            found = self.scorer.of_each([asked.one.rows for asked in group], heads)
            for asked in group:
                asked.done = True
            given = [(pair[0], asked.derivatives(*pair)) for asked, pair in zip(group, found, strict=True)]
            learned = [(flat, rows) for flat, rows in given if rows is not None]
            try:
                backward_of([flat for flat, _ in learned], [rows for _, rows in learned])
            except Exception as fault:  # noqa: BLE001 - gradients of all of them are unknown
                for asked in group:
                    asked.fault = asked.fault or fault

    def _use_head(self, group: Sequence[WaitingPass], mine: WaitingPass) -> None:
        for name, layer in _layers(group).items():
            if name in self._head:
                layer.use(_matrices(mine, name))

    def _leave(self, group: Sequence[WaitingPass]) -> None:
        for layer in _layers(group).values():
            layer.use(None)

    def _select(self, adapter: AdapterWeights | None) -> None:
        if self._selected is adapter:
            return
        if self._selected is not None:
            self._selected.select(False)
        if adapter is not None:
            adapter.select()
        self._selected = adapter


def _fit(group: Sequence[WaitingPass]) -> bool:
    """Return whether passes of several runs can be computed as one: within the memory of each, with little padding."""
    rows, longest = sum(len(asked.one.rows) for asked in group), max(asked.longest for asked in group)
    tokens = sum(len(row.ids) for asked in group for row in asked.one.rows)
    return (
        len({id(asked.adapter) for asked in group}) == len(group)
        and len({asked.learns for asked in group}) == 1
        and not any(asked.one.packed or asked.one.recomputed for asked in group)
        and tokens >= FILLED * rows * longest
        and all(asked.room.takes(rows, longest) for asked in group)
    )


def _layers(group: Sequence[WaitingPass]) -> dict[str, TrainedLinear]:
    return {name: layer for asked in group for name, layer in asked.adapter.layers.items()}


def _matrices(asked: WaitingPass, name: str) -> Matrices | None:
    return asked.adapter.matrices(name) if name in asked.adapter.layers else None


class SharedBases:
    """The base models of runs, by id, each in memory once.

    A base model without runs is kept for `seconds`, as a run is often opened again, or until other work asks for its
    memory.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._bases: dict[str, SharedBase] = {}
        self._ending: dict[str, threading.Timer] = {}

    def use(self, id: str, load: Callable[[], SharedBase], make: Callable[[SharedBase], T]) -> T:
        """Return the run that `make` makes on a base model. It is loaded if needed, after others are freed."""
        with self._lock:
            if id not in self._bases:
                self._free()
                self._bases[id] = load()
            elif id in self._ending:
                self._ending.pop(id).cancel()
            try:
                return make(self._bases[id])
            finally:
                self._keep_for_a_while(id)

    def ended(self, id: str) -> None:
        with self._lock:
            self._keep_for_a_while(id)

    def free(self) -> None:
        with self._lock:
            self._free()

    def _free(self) -> None:
        for unused in [known for known, shared in self._bases.items() if shared.unused]:
            del self._bases[unused]
            if unused in self._ending:
                self._ending.pop(unused).cancel()

    def _keep_for_a_while(self, id: str) -> None:
        shared = self._bases.get(id)
        if shared is None or not shared.unused:
            return
        if not self._seconds:
            del self._bases[id]
        elif id not in self._ending:
            timer = self._ending[id] = threading.Timer(self._seconds, self._end, (id, shared))
            timer.daemon = True
            timer.start()

    def _end(self, id: str, shared: SharedBase) -> None:
        with self._lock:
            if self._bases.get(id) is shared and shared.unused and id in self._ending:
                del self._bases[id], self._ending[id]
