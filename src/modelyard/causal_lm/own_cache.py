"""What a network keeps of a sequence, in the cache that transformers has for it: for layers that `RowCache` does not
suit, as they keep a state in the place of keys, compress them, or weigh them by their distance.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

_CACHES = ("past_key_values", "cache_params", "state")
"""The names by which bodies give their caches and take them."""

_DEEPEST = 8


class OwnCache:
    """The cache of one sequence; or of none, where `keeps` is false or the network has none: then all of it is unseen
    each time.
    """

    def __init__(self, body: Any, keeps: bool = True) -> None:
        self._body, self._keeps = body, keeps
        self._kept: dict[str, Any] = {}
        self.seen = 0
        """How many tokens need not be read again."""

    def read(self, ids: Tensor) -> Tensor:
        """Hidden states (1 x tokens x size) of the tokens behind those seen: of all at first, then of one at a time,
        which is what every cache can do.
        """
        output = self._body(input_ids=ids, use_cache=self._keeps, **self._kept)
        self._kept = {name: output[name] for name in _CACHES if self._keeps and output.get(name) is not None}
        self.seen = self.seen + ids.shape[1] if self._kept else 0
        states: Tensor = output.last_hidden_state
        return states

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        storages = [tensor.untyped_storage() for tensor in _tensors(self._kept, _DEEPEST)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    """Those that a cache holds, wherever it does."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in (*parts, *getattr(value, "__dict__", {}).values()):
            yield from _tensors(part, depth - 1)
