"""Sequences with separate caches, for networks whose caches do not fit into rows.

Prompts are read one after the other, and further tokens as a batch if the network allows it: slower than rows, and
correct for every network.
"""

from collections.abc import Sequence as Many

import torch

from modelyard.engines.torch.hf_cache import SequenceCache
from modelyard.engines.torch.lora import AdapterBank
from modelyard.engines.torch.network import Network
from modelyard.engines.torch.serving.prompt_scores import score
from modelyard.engines.torch.serving.sequence import Sequence

_SAMPLE = 32


class SeparateCaches:
    """Up to `most` running sequences with caches of up to `memory` bytes.

    It has the methods of both `CacheSlots` and `ForwardPass`.
    """

    def __init__(self, network: Network, bank: AdapterBank, most: int, memory: int) -> None:
        self._network, self._bank, self._most, self._memory = network, bank, most, memory
        self._fixed, self._each = self._sizes()
        self.whole: int = self._taken(network.context_length)
        self.longest: int = network.context_length
        if self.whole > memory:
            self.longest = max(1, (memory - self._fixed) // self._each) if self._each else 1
        self.running: list[Sequence] = []
        self._caches: dict[Sequence, SequenceCache] = {}

    # ---- room

    def admit(self, sequence: Sequence) -> bool:
        """Let it run, if there is room; return whether there was."""
        if len(self.running) >= self._most or not self._fit([*self.running, sequence]):
            return False
        self.running.append(sequence)
        return True

    def crowded(self) -> list[Sequence]:
        """Return the last sequences that do not fit if each gets one more token."""
        staying = list(self.running)
        while not self._fit(staying):
            staying.pop()
        return self.running[len(staying) :]

    def lengthen(self) -> None:
        """Do nothing: caches grow by themselves."""

    def unread(self, sequence: Sequence) -> int:
        """Return its length: nothing is kept of other sequences."""
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
        """Do nothing: no answers of an adapter are kept."""

    def _fit(self, sequences: Many[Sequence]) -> bool:
        """Return whether each of them can get one more token. A single one always can: its length is limited."""
        return len(sequences) < 2 or sum(self._taken(one.length + 1) for one in sequences) <= self._memory

    def _taken(self, tokens: int) -> int:
        return self._fixed + tokens * self._each

    def _sizes(self) -> tuple[int, int]:
        """Measure the bytes of a cache, and those of each further token, with two examples."""
        tokens = max(1, min(_SAMPLE, self._network.context_length // 2))
        few, many = self._size(tokens), self._size(2 * tokens)
        each = -(-(many - few) // tokens)
        return max(0, few - each * tokens), each

    def _size(self, tokens: int) -> int:
        cache = self._network.new_cache()
        with torch.inference_mode():
            cache.read(torch.zeros((1, tokens), dtype=torch.long, device=self._network.device))
        return cache.nbytes

    # ---- passes

    def read(self, sequences: Many[Sequence]) -> torch.Tensor:
        """Read all that is unread; return the logits (sequences x vocabulary) after the last token of each.

        If one fails, all are read from their beginning the next time.
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
        if self._network.can_batch and len(ready) == len(sequences) > 1:
            return self._batch_states(sequences, ready)
        return torch.stack([self._last_state(one) for one in sequences])

    def _batch_states(self, sequences: Many[Sequence], caches: Many[SequenceCache]) -> torch.Tensor:
        ids = torch.tensor([[one.answer[-1]] for one in sequences], device=self._network.device)
        self._bank.select([one.slot for one in sequences])
        return self._network.read_batch(caches, ids)[:, -1]

    def _last_state(self, sequence: Sequence) -> torch.Tensor:
        known = self._caches.get(sequence) or (None if sequence.unscored else self._copy_of_equal(sequence))
        self._caches[sequence] = cache = known or self._network.new_cache()
        if cache.last is None or cache.seen < sequence.length:
            self._bank.select([sequence.slot])
            start = cache.seen
            states = cache.read(torch.tensor([sequence.tokens[start:]], device=self._network.device))
            if sequence.unscored:
                score(self._network, sequence, states[0], start)
        assert cache.last is not None
        return cache.last

    def _copy_of_equal(self, sequence: Sequence) -> SequenceCache | None:
        """Return a copy of the cache of a sequence with the same tokens so far."""
        for other, cache in self._caches.items():
            if other.slot == sequence.slot and other.tokens[: cache.seen] == sequence.tokens:
                return cache.copy()
        return None
