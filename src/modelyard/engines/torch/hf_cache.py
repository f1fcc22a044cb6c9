"""Caches of single sequences, in the form that transformers has for them.

They are for layers that `RowCache` does not suit: layers that keep a state instead of keys, compress keys, or weigh
them by their distance. Prompts are read one sequence at a time; further tokens are read for many sequences at once,
through one cache that combines theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from modelyard.engines.torch.kv_cache import Mask, hiding, mask_of, windows

_OF_ATTENTION = "past_key_values"
_CACHES = (_OF_ATTENTION, "cache_params", "state")
"""The names under which model bodies return and accept their caches."""

_DEEPEST = 8


class SequenceCache:
    """The cache of one sequence.

    If `keeps` is false or the network has no cache, nothing is stored, and all tokens are read again each time.
    """

    def __init__(self, body: Any, keeps: bool = True) -> None:
        self._body, self._keeps = body, keeps
        self.kept: dict[str, Any] = {}
        """What the body returned, by the name under which it accepts it."""
        self.seen: int = 0
        """The number of tokens that need not be read again."""
        self.last: Tensor | None = None
        """The hidden state (size) of the last token that was read."""

    def copy(self) -> "SequenceCache":
        """Return an independent copy."""
        other = SequenceCache(self._body, self._keeps)
        other.kept, other.seen, other.last = deepcopy(self.kept), self.seen, self.last
        return other

    def read(self, ids: Tensor) -> Tensor:
        """Return the hidden states (1 x tokens x size) of the tokens that are new.

        The first call reads all tokens at once, later ones one token at a time, which every kind of cache supports.
        """
        output = self._body(input_ids=ids, use_cache=self._keeps, **self.kept)
        self.kept = {name: output[name] for name in _CACHES if self._keeps and output.get(name) is not None}
        self.seen = self.seen + ids.shape[1] if self.kept else 0
        states: Tensor = output.last_hidden_state
        self.last = states[0, -1].clone()  # a copy, so that it does not keep the whole tensor alive
        return states

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        storages = [tensor.untyped_storage() for tensor in _tensors(self.kept, _DEEPEST)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class BatchCache:
    """The caches of many sequences as that of one batch, for a pass of one token each. Keys are left-padded."""

    def __init__(self, caches: Sequence[Any], lengths: Sequence[int]) -> None:
        self._caches, self._lengths = caches, lengths
        self._lent: dict[tuple[str, int, int], tuple[Tensor, list[Tensor]]] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *more: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Store the new keys and values (rows x heads x 1 x size) by sequence; return those of all, padded."""
        rows = zip(self._caches, keys.split(1), values.split(1), strict=True)
        found = [cache.update(key, value, layer_idx, *more, **options) for cache, key, value in rows]
        all_keys, all_values = zip(*found, strict=True)
        return _padded(all_keys), _padded(all_values)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """Return the last inputs of a convolution, which the layer may change in place."""
        return self._lend("conv", layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """Return the state that a layer has instead of keys, which it may change in place."""
        return self._lend("recurrent", layer_idx, state_idx)

    def update_conv_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **options: Any) -> Tensor:
        """Store new inputs of a convolution."""
        return self._replace("conv", states, layer_idx, state_idx, options)

    def update_recurrent_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **options: Any) -> Tensor:
        """Store a new state."""
        return self._replace("recurrent", states, layer_idx, state_idx, options)

    def get_seq_length(self, *_: Any) -> int:
        """Return the length of the longest sequence."""
        return max(self._lengths)

    def finish(self) -> None:
        """Write what the layers have changed in place back to the caches of the sequences."""
        for joint, own in self._lent.values():
            for state, row in zip(own, joint.split(1), strict=True):
                state.copy_(row)

    def mask(self, config: Any, dtype: torch.dtype, device: torch.device) -> Mask:
        """Return the attention mask that hides padding; a window shows only its last tokens."""
        kept = {
            kind: [min(size + 1, most or size + 1) for size in self._lengths] for kind, most in windows(config).items()
        }
        return mask_of(kept, lambda counts: _padding_mask(counts, dtype, device))

    def __getattr__(self, name: str) -> Any:
        """Take other attributes from the first cache; the check at loading detects a network for which they differ."""
        return getattr(self._caches[0], name)

    def _lend(self, kind: str, layer: int, state: int) -> Tensor:
        own = [getattr(cache, f"get_{kind}_state")(layer, state) for cache in self._caches]
        self._lent[kind, layer, state] = joint, _ = torch.cat(own), own
        return joint

    def _replace(self, kind: str, states: Tensor, layer: int, state: int, options: Any) -> Tensor:
        self._lent.pop((kind, layer, state), None)
        rows = zip(self._caches, states.split(1), strict=True)
        return torch.cat([getattr(cache, f"update_{kind}_state")(row, layer, state, **options) for cache, row in rows])


def read_batch(body: Any, config: Any, caches: Sequence[SequenceCache], ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the hidden states (rows x 1 x size) of one further token (rows x 1) for each of the caches."""
    (name,) = caches[0].kept
    lengths = [cache.seen for cache in caches]
    joint = BatchCache([cache.kept[name] for cache in caches], lengths)
    given: dict[str, Any] = {name: joint}
    if name == _OF_ATTENTION:
        given["position_ids"] = torch.tensor(lengths, device=ids.device)[:, None]
        given["attention_mask"] = joint.mask(config, dtype, ids.device)
    states: Tensor = body(input_ids=ids, use_cache=True, **given).last_hidden_state
    joint.finish()
    for cache, row in zip(caches, states, strict=True):
        cache.seen, cache.last = cache.seen + 1, row[-1]
    return states


def _padded(rows: Sequence[Tensor]) -> Tensor:
    longest = max(row.shape[2] for row in rows)
    return torch.cat([functional.pad(row, (0, 0, longest - row.shape[2], 0)) for row in rows])


def _padding_mask(counts: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 0 for the last `counts` keys of each row (rows x 1 x 1 x keys)."""
    longest = max(counts)
    hidden = torch.arange(longest, device=device) < torch.tensor([[longest - count] for count in counts], device=device)
    return hiding(hidden, dtype)[:, None, None]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    """Yield the tensors in a cache, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in (*parts, *getattr(value, "__dict__", {}).values()):
            yield from _tensors(part, depth - 1)
