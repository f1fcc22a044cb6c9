"""A base model that many adapters are trained on side by side: its weights are in memory once.

Each run has its own parameters, gradients and moments. The parameters of one run at a time are in the network's layers:
runs take turns, one pass over rows each, in the order in which they ask.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs

from modelyard.domain.training_run import AdapterConfig
from modelyard.parts.torch.lora import LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.training.adapter_layers import shape_of
from modelyard.parts.torch.training.memory_plan import MemoryBudget, need_of
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import AdapterWeights, attach_adapter

T = TypeVar("T")


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


class SharedBase:
    """The network of a base model, and the adapters on it, which may take `limit` bytes in all, weights included."""

    def __init__(self, network: Network, limit: int | None) -> None:
        self._network, self._limit = network, limit
        self.scorer: TokenScorer = TokenScorer(network)
        self._turns, self._lock = Turns(), threading.Lock()
        self._selected: AdapterWeights | None = None
        self._taken: dict[AdapterWeights, int] = {}

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

    @contextmanager
    def turn(self, adapter: AdapterWeights) -> Iterator[None]:
        """Have the network compute with this adapter, and for no other run, within the context."""
        with self._turns.one():
            if self._selected is not adapter:
                self._select(adapter)
            yield

    def _select(self, adapter: AdapterWeights | None) -> None:
        if self._selected is not None:
            self._selected.select(False)
        if adapter is not None:
            adapter.select()
        self._selected = adapter


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
