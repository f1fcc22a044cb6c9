"""Sequences with the caches of transformers, for networks with caches that do not fit into rows.

If the network allows it, prompts of about one length are read side by side, and further tokens of all sequences;
otherwise one sequence after the other: slower than rows, and correct for every network.
"""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Many

import attrs
import torch

from modelyard.parts.torch.hf_cache import JointCache
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.forward import PREFILL_TOKENS
from modelyard.parts.torch.serving.prompt_scores import score
from modelyard.parts.torch.serving.sequence import Sequence

_SAMPLE = 32


@attrs.define(eq=False)
class _Batch:
    """Sequences that are read side by side, and their cache, a row for each."""

    cache: JointCache
    sequences: list[Sequence]

    @property
    def behind(self) -> bool:
        """Whether tokens are still to be read: as many of each sequence."""
        return self.cache.last is None or self.cache.seen[0] < self.sequences[0].length


class SeparateCaches:
    """Up to `most` running sequences with caches of up to `memory` bytes.

    It has the methods of both `CacheSlots` and `ForwardPass`.
    """

    def __init__(self, network: Network, bank: AdapterBank, most: int, memory: int) -> None:
        self._network, self._bank, self._most, self._memory = network, bank, most, memory
        self.reused: int = 0
        self.evicted: int = 0
        self._fixed, self._each = self._sizes()
        self.whole: int = self._taken(network.context_length)
        self.longest: int = network.context_length
        if self.whole > memory:
            self.longest = max(1, (memory - self._fixed) // self._each) if self._each else 1
        self.running: list[Sequence] = []
        self._batches: dict[Sequence, _Batch] = {}

    # ---- room

    def admit(self, sequence: Sequence) -> bool:
        """Let it run, if there is room; return whether there was."""
        if len(self.running) >= self._most or not self._fit([*self.running, sequence]):
            return False
        self.running.append(sequence)
        return True

    def crowded(self) -> list[Sequence]:
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
        """Forget it; its row in a shared cache stays until their next pass."""
        self.running.remove(sequence)
        self._batches.pop(sequence, None)

    def clear(self) -> None:
        self.running.clear()
        self._batches.clear()

    def forget(self, slot: int) -> None:
        """Do nothing: no answers of an adapter are kept."""

    def _fit(self, sequences: Many[Sequence]) -> bool:
        """Return whether each of them can get one more token. A single one always can: its length is limited."""
        if len(sequences) < 2:
            return True
        lengths = [one.length + 1 for one in sequences]
        if self._network.can_batch:
            lengths = [max(lengths)] * len(lengths)  # shorter ones are padded
        return sum(map(self._taken, lengths)) <= self._memory

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
            states = self._last_states(sequences)
            self._bank.select_of_head([one.slot for one in sequences])
            logits = self._network.logits(states)
        except BaseException:
            for one in sequences:
                self._batches.pop(one, None)
            raise
        for one in sequences:
            one.cached = one.length
        return logits

    decode = read

    def _last_states(self, sequences: Many[Sequence]) -> torch.Tensor:
        self._begin([one for one in sequences if one not in self._batches])
        for batch in self._joined(dict.fromkeys(self._batches[one] for one in sequences)):
            self._advance(batch)
        batches = dict.fromkeys(self._batches[one] for one in sequences)
        rows = {one: row for row, one in enumerate(one for batch in batches for one in batch.sequences)}
        states = torch.cat([batch.cache.last for batch in batches if batch.cache.last is not None])
        order = [rows[one] for one in sequences]
        return states if order == [*range(len(states))] else states[order]

    def _begin(self, new: Many[Sequence]) -> None:
        """Put sequences into new batches: sequences that one pass reads share a batch."""
        together: list[Sequence] = []
        for one in new:
            known = None if one.unscored else self._copy_of_equal(one)
            if known is None and self._network.can_batch and not one.unscored:
                together.append(one)
            else:
                if known is not None:
                    one.reused = one.length
                    self.reused += one.length
                self._batches[one] = _Batch(known or self._network.new_cache(), [one])
        for part in _in_passes(together, self._network.can_pad):
            self._batches |= dict.fromkeys(part, _Batch(self._network.new_cache(len(part)), part))

    def _copy_of_equal(self, sequence: Sequence) -> JointCache | None:
        for other, batch in self._batches.items():
            if other.slot == sequence.slot and batch.cache.last is not None:
                row = batch.sequences.index(other)
                if other.tokens[: batch.cache.seen[row]] == sequence.tokens:
                    return batch.cache.copy(row)
        return None

    def _joined(self, batches: Collection[_Batch]) -> list[_Batch]:
        """Return the batches that have tokens to be read. Those that continue become one batch, if the network allows
        it.
        """
        for batch in batches:
            self._drop_gone(batch)
        due = [batch for batch in batches if batch.behind]
        continued = [batch for batch in due if batch.cache.kept]
        if len(continued) < 2 or not self._network.can_batch:
            return due
        first, *others = continued
        first.cache.join([batch.cache for batch in others])
        first.sequences = [one for batch in (first, *others) for one in batch.sequences]
        self._batches |= dict.fromkeys(first.sequences, first)
        return [batch for batch in due if batch not in others]

    def _drop_gone(self, batch: _Batch) -> None:
        rows = [row for row, one in enumerate(batch.sequences) if self._batches.get(one) is batch]
        if len(rows) < len(batch.sequences):
            batch.cache.keep(rows)
            batch.sequences = [batch.sequences[row] for row in rows]

    def _advance(self, batch: _Batch) -> None:
        start, first = batch.cache.seen[0], batch.sequences[0]
        unread = [_after(one, seen) for one, seen in zip(batch.sequences, batch.cache.seen, strict=True)]
        self._bank.select([one.slot for one in batch.sequences])
        if len({*map(len, unread)}) > 1:
            batch.cache.read_padded(unread)
            return
        states = batch.cache.read(torch.tensor(unread, device=self._network.device))
        if first.unscored:  # then it is alone
            self._bank.select_of_head([first.slot])
            score(self._network, first, states[0], start)


def _in_passes(sequences: Many[Sequence], padded: bool) -> Iterator[list[Sequence]]:
    """Yield the sequences that one pass reads: with prompts of one length or, `padded`, of at least half of the
    longest.
    """
    part: list[Sequence] = []
    for one in sorted(sequences, key=lambda one: one.length, reverse=True):
        longest = part[0].length if part else one.length
        least = (longest + 1) // 2 if padded else longest
        if part and (one.length < least or (len(part) + 1) * longest > PREFILL_TOKENS):
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _after(sequence: Sequence, seen: int) -> list[int]:
    return sequence.answer[-1:] if sequence.answer and seen == sequence.length - 1 else sequence.tokens[seen:]
