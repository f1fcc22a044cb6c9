"""Which ways of running a network are right: each reads a short text, and is compared with the whole model.

A way is tried when a network is loaded, so that an unknown architecture is served in the fastest way that is right.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from modelyard.parts.torch.hf_cache import JointCache
from modelyard.parts.torch.kv_cache import RowCache, narrower

if TYPE_CHECKING:
    from modelyard.parts.torch.network import Network

T = TypeVar("T")

ROUNDING = 1e-4
"""How far logits may differ, as a part of the greatest, if only the order of 32-bit sums does."""


class WayChecks:
    """Tries ways to read the text `ids` (1 x tokens) with caches.

    A way is right if it gives the logits of the whole model, `whole` (tokens x vocabulary), at the places it reads.
    """

    def __init__(self, network: "Network", ids: Tensor, whole: Tensor) -> None:
        self._network, self._ids, self._whole = network, ids, whole

    def close(self, found: Tensor, whole: Tensor, tolerance: float | None = None) -> bool:
        """Compare logits. With 16 bits, deep networks and near ties between experts differ by hundredths; errors by
        more.
        """
        tolerance = tolerance or (1e-3 if self._network.dtype is torch.float32 else 0.15)
        return float((found - whole).abs().max()) <= tolerance * max(1.0, float(whole.abs().max()))

    def in_rows(self, tolerance: float | None = None) -> bool:
        """Whether sequences can share the rows of one cache."""
        return self._is_right(self._in_rows, tolerance)

    def in_separate_cache(self) -> bool:
        """Whether each sequence can have a separate cache."""
        return self._is_right(self._in_separate_cache)

    def as_batch(self) -> bool:
        """Whether further tokens of sequences of any lengths can be read at once."""
        return self._is_right(self._as_batch)

    def padded(self) -> bool:
        """Whether prompts of different lengths can be read at once."""
        return self._is_right(self._padded)

    def _is_right(self, way: Callable[[Tensor], tuple[Tensor, list[int]]], tolerance: float | None = None) -> bool:
        """Return whether a way gives the logits of the whole model, at the places it returns."""
        found = tried(way, self._ids)
        return found is not None and self.close(found[0], self._whole[found[1]], tolerance)

    def _in_rows(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Read the first and the last token of a row as serving does.

        The last token is read with the others in the cache, of which some were read before the rest, next to a row that
        begins.
        """
        network, last = self._network, ids.shape[1] - 1
        cache = RowCache(network.config, 2, ids.shape[1], network.dtype, network.device)
        for start, end in pairwise(sorted({0, last // 2, last})):
            network.hidden(ids[:, start:end], *cache.begin(0, [start], end - start), cache)
        ends = ids[:, [-1, 0]].T
        return network.logits(network.hidden(ends, *cache.begin(0, [last, 0], 1), cache))[:, 0], [-1, 0]

    def _in_separate_cache(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Read the same two tokens with a cache of one sequence, the last by itself."""
        cache = JointCache(self._network.body, self._network.config)
        first = cache.read(ids[:, :-1])[0, :1]
        return self._network.logits(torch.cat([first, cache.read(ids[:, cache.seen[0] :])[0, -1:]])), [0, -1]

    def _as_batch(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Read two further tokens of prefixes as a batch, and leave the longest out of the second pass.

        Two are of one length and are read together; in the first pass they are neither the longest nor the shortest.
        """
        middle, longest, shortest = ids.shape[1] // 2, ids.shape[1] - 1, 3
        cache, *others = [self._network.new_cache(rows) for rows in (2, 1, 1)]
        cache.read(ids[:, : middle - 1].expand(2, -1))
        for other, place in zip(others, (longest, shortest), strict=True):
            other.read(ids[:, : place - 1])
        cache.join(others)
        places = [middle, middle, longest, shortest]
        first = cache.read(ids[0, [place - 1 for place in places]][:, None])
        cache.keep([0, 1, 3])
        remaining = [middle, middle, shortest]
        second = cache.read(ids[0, remaining][:, None])
        return self._network.logits(torch.cat([first, second]))[:, 0], [*(place - 1 for place in places), *remaining]

    def _padded(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Read prefixes of three lengths at once, down to a single token, and then a further token of each."""
        lengths = [ids.shape[1] // 2, ids.shape[1] - 1, 1]
        cache = self._network.new_cache(len(lengths))
        first = cache.read_padded([ids[0, :length].tolist() for length in lengths])
        second = cache.read(ids[0, lengths][:, None])[:, 0]
        return self._network.logits(torch.cat([first, second])), [*(length - 1 for length in lengths), *lengths]


def tried(way: Callable[[Tensor], T], given: Tensor) -> T | None:
    """Return the result, or None if the way does not work for this model."""
    try:
        return way(given)
    except Exception as fault:
        if out_of_memory(fault):
            raise
        return None


@contextmanager
def narrowed(config: Any, window: int) -> Iterator[None]:
    """Narrow an attention window, if there is one, so that it takes effect in a short text."""
    own = narrower(config)
    if own is None:
        yield
        return
    config.sliding_window = min(own, max(1, window))
    try:
        yield
    finally:
        config.sliding_window = own


def out_of_memory(fault: BaseException) -> bool:
    """Return whether an error means that memory is exhausted, on a graphics card or on the host."""
    return isinstance(fault, torch.OutOfMemoryError | MemoryError) or any(said in str(fault) for said in _NO_MEMORY)


_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory")
"""What torch says, with the class of any other error: of memory that it takes itself, and of a file that it maps."""
