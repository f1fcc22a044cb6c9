"""Sequences that each have a cache of their own, for networks that keep something else than keys in rows. They are
read one after the other, and gone on with side by side where the network allows that: slower than in rows, and right
for every network.
"""

from collections.abc import Sequence as Many

import torch

from modelyard.engines.torch.hf_cache import OwnCache
from modelyard.engines.torch.lora import AdapterBank
from modelyard.engines.torch.network import Network
from modelyard.engines.torch.serving.sequence import Sequence

_SAMPLE = 32


class SeparateCaches:
    """Up to `most` running sequences, whose caches take up to `memory` bytes, as `Rows`; and passes, as `Passes`."""

    def __init__(self, network: Network, bank: AdapterBank, most: int, memory: int) -> None:
        self._network, self._bank, self._most, self._memory = network, bank, most, memory
        self._fixed, self._each = self._sizes()
        self.whole = self._taken(network.context_length)
        self.longest = network.context_length
        if self.whole > memory:
            self.longest = max(1, (memory - self._fixed) // self._each) if self._each else 1
        self.running: list[Sequence] = []
        self._caches: dict[Sequence, OwnCache] = {}

    # ---- room

    def admit(self, sequence: Sequence) -> bool:
        """Let it run, if there is room. Returns whether there was."""
        if len(self.running) >= self._most or not self._fit([*self.running, sequence]):
            return False
        self.running.append(sequence)
        return True

    def crowded(self) -> list[Sequence]:
        """The last ones, for whom there is no memory when each is to have a token more."""
        staying = list(self.running)
        while not self._fit(staying):
            staying.pop()
        return self.running[len(staying) :]

    def lengthen(self) -> None:
        """Caches grow by themselves."""

    def unread(self, sequence: Sequence) -> int:
        """All of it: nothing is kept of others."""
        return sequence.length

    def drop(self, sequence: Sequence, *, failed: bool = False) -> None:
        """Forget it."""
        self.running.remove(sequence)
        self._caches.pop(sequence, None)

    def clear(self) -> None:
        """Forget everything."""
        self.running.clear()
        self._caches.clear()

    def forget(self, slot: int) -> None:
        """Another adapter is put into this slot, of which nothing is kept."""

    def _fit(self, sequences: Many[Sequence]) -> bool:
        """Whether each of them can get a token more. One alone always can: it is bounded by what there is."""
        return len(sequences) < 2 or sum(self._taken(one.length + 1) for one in sequences) <= self._memory

    def _taken(self, tokens: int) -> int:
        return self._fixed + tokens * self._each

    def _sizes(self) -> tuple[int, int]:
        """Bytes that a cache takes, and for each token more: by two that are tried out."""
        tokens = max(1, min(_SAMPLE, self._network.context_length // 2))
        few, many = self._size(tokens), self._size(2 * tokens)
        each = -(-(many - few) // tokens)
        return max(0, few - each * tokens), each

    def _size(self, tokens: int) -> int:
        cache = self._network.own_cache()
        with torch.inference_mode():
            cache.read(torch.zeros((1, tokens), dtype=torch.long, device=self._network.device))
        return cache.nbytes

    # ---- passes

    def read(self, sequences: Many[Sequence]) -> torch.Tensor:
        """The logits (sequences x vocabulary) behind the last token of each, when all that is unread has been read.
        Where one fails, all are read from their beginning when they are asked for again.
        """
        try:
            logits = self._network.logits(self._last_states(sequences))
        except BaseException:
            for one in sequences:
                self._caches.pop(one, None)
            raise
        for one in sequences:
            one.cached = one.length
        return logits

    decode = read

    def _last_states(self, sequences: Many[Sequence]) -> torch.Tensor:
        caches = [self._caches.get(one) for one in sequences]
        ready = [cache for cache, one in zip(caches, sequences, strict=True) if cache and cache.seen == one.length - 1]
        if self._network.joins and len(ready) == len(sequences) > 1:
            return self._joint_states(sequences, ready)
        return torch.stack([self._last_state(one) for one in sequences])

    def _joint_states(self, sequences: Many[Sequence], caches: Many[OwnCache]) -> torch.Tensor:
        ids = torch.tensor([[one.answer[-1]] for one in sequences], device=self._network.device)
        self._bank.select([one.slot for one in sequences])
        return self._network.read_jointly(caches, ids)[:, -1]

    def _last_state(self, sequence: Sequence) -> torch.Tensor:
        cache = self._caches.get(sequence) or self._same(sequence) or self._network.own_cache()
        self._caches[sequence] = cache
        if cache.last is None or cache.seen < sequence.length:
            self._bank.select([sequence.slot])
            cache.read(torch.tensor([sequence.tokens[cache.seen :]], device=self._network.device))
        assert cache.last is not None
        return cache.last

    def _same(self, sequence: Sequence) -> OwnCache | None:
        """A copy of the cache of a sequence that says the same so far."""
        for other, cache in self._caches.items():
            if other.slot == sequence.slot and other.tokens[: cache.seen] == sequence.tokens:
                return cache.copy()
        return None
