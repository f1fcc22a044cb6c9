"""A base model that many adapters are trained on side by side: its weights are in memory once.

Each run has its own parameters, gradients and moments. Runs take turns, one pass over rows each, in the order in which
they ask. A pass takes small ones of other runs that wait along: each row is computed with the adapter of its run. A
pass that finds no other waiting is computed as if its run were alone, to the last bit.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from modelyard.domain.training_run import AdapterConfig
from modelyard.errors import TrainingError
from modelyard.parts.torch.lora import LoraShape, head_layer
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.training.adapter_layers import shape_of
from modelyard.parts.torch.training.memory_plan import MemoryBudget, Pass, need_of
from modelyard.parts.torch.training.row_learner import Then, compute_alone
from modelyard.parts.torch.training.shared_pass import WaitingPass, compute_as_one, fit_together
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import AdapterWeights, RowsUnknown, attach_adapter

T = TypeVar("T")


def _never() -> bool:
    return False


class Turns:
    """A lock that is handed on in the order of requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = self._served = 0
        self._ended: set[int] = set()

    @contextmanager
    def one(self, unless: Callable[[], bool] = _never) -> Iterator[None]:
        """Wait for a turn, or until `unless` holds as another turn ends."""
        with self._changed:
            mine = self._asked
            self._asked += 1
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._served == mine or unless())
            yield
        finally:
            with self._changed:
                self._ended.add(mine)
                while self._served in self._ended:
                    self._ended.remove(self._served)
                    self._served += 1
                self._changed.notify_all()


class SharedBase:
    """The network of a base model, and the adapters on it, which may take `limit` bytes in all, weights included."""

    def __init__(self, network: Network, limit: int | None) -> None:
        self._network, self._limit = network, limit
        self.scorer: TokenScorer = TokenScorer(network)
        self._turns, self._lock = Turns(), threading.RLock()
        self._selected: AdapterWeights | None = None
        self._taken: dict[AdapterWeights, tuple[int, MemoryBudget]] = {}
        self._head = {name for name, _ in head_layer(network.model)}
        self._waiting: list[WaitingPass] = []
        self._shares = True

    @property
    def unused(self) -> bool:
        return not self._taken

    def resolve(self, config: AdapterConfig) -> LoraShape:
        return shape_of(config, self._network.model)

    def add(self, shape: LoraShape, seed: int, base_model: str) -> tuple[AdapterWeights, MemoryBudget]:
        """Make an adapter. Raises `TrainingError` if it has no place, or if there is no memory for it: each run that is
        open keeps what its longest row so far needs.
        """
        with self._turns.one():
            adapter = attach_adapter(self._network.model, shape, seed, base_model)
            self._select(adapter)
            need = need_of(self._network, self.scorer, adapter.parameters, copies=0)
        with self._lock:
            room = MemoryBudget(need, self._limit, others=partial(self._others, adapter))
            self._taken[adapter] = need.moments + sum(one.nbytes for one in adapter.parameters), room
            try:
                for _, other in self._taken.values():
                    other.admit(other.longest)
            except TrainingError:
                del self._taken[adapter]
                raise
        return adapter, room

    def _others(self, adapter: AdapterWeights) -> int:
        """Return the bytes of all other adapters, with their gradients and moments."""
        with self._lock:
            return sum(taken for one, (taken, _) in self._taken.items() if one is not adapter)

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
        try:
            with self._turns.one(unless=lambda: mine.done):
                if not mine.done:
                    self._compute(self._group(mine))
        finally:
            self._taken_up([mine])
        if mine.fault is not None:
            raise mine.fault

    def _group(self, first: WaitingPass) -> list[WaitingPass]:
        """Take a pass up, and those that can be computed with it, in the order in which they came."""
        with self._lock:
            first.one, found = first.room.now(first.one), [first]
            for waiting in self._waiting if self._shares else ():
                if waiting is not first and fit_together([*found, waiting]):
                    found.append(waiting)
            self._taken_up(found)
        return found

    def _taken_up(self, group: Sequence[WaitingPass]) -> None:
        with self._lock:
            self._waiting = [waiting for waiting in self._waiting if waiting not in group]

    def _compute(self, group: Sequence[WaitingPass]) -> None:
        """Compute passes as one, and each alone that could not be."""
        if len(group) > 1:
            self._select(None)
            try:
                compute_as_one(self.scorer, group, self._head)
            except Exception as fault:  # noqa: BLE001 - whose it is shows when each is computed alone
                self._shares = self._shares and not isinstance(fault, RowsUnknown)
        for waiting in group:
            if not waiting.done:
                self._compute_alone(waiting)

    def _compute_alone(self, waiting: WaitingPass) -> None:
        self._select(waiting.adapter)
        try:
            compute_alone(self.scorer, waiting.one, waiting.learns, waiting.derivatives)
            waiting.done = True
        except Exception as fault:  # noqa: BLE001 - who waits for this pass gets it
            waiting.fail(fault)

    def _select(self, adapter: AdapterWeights | None) -> None:
        if self._selected is adapter:
            return
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
