"""Keys and values of the tokens seen so far, one row for each sequence that is being answered.

It stands in for a transformers cache: attention layers call `update` and see the keys of the rows of this step. Rows in
use are always the first ones, so that a step works on views and copies nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class RowCache(Cache):
    """`rows` x `length` tokens; `resize` makes room for longer ones."""

    def __init__(self, config: Any, rows: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers: list[Any] = []  # what transformers looks at in caches of its own
        shape = (rows, config.num_key_value_heads, length, head_size(config))
        make = lambda: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        self.keys = [make() for _ in range(config.num_hidden_layers)]
        self.values = [make() for _ in range(config.num_hidden_layers)]
        self._rows, self._width, self._seen = slice(0, 0), 0, 0
        self._places: tuple[Any, ...] = ()

    @property
    def length(self) -> int:
        """How many tokens a row can hold."""
        return self.keys[0].shape[2]

    def begin(self, first: int, starts: Sequence[int], width: int) -> tuple[Tensor, Tensor | None]:
        """Say what the next pass is about: rows from `first` on get `width` tokens each, behind their first `starts`.

        Returns the tokens' positions (rows x tokens) and the mask for attention (rows x 1 x tokens x keys): None where
        all rows begin at the same place, for then the model's own is right, and mostly it needs none.
        Positions beyond the end of a row are padding, put at its end.
        """
        device, most = self.keys[0].device, self.length
        self._rows, self._width = slice(first, first + len(starts)), width
        self._seen = min(max(starts) + width, most)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        if len(set(starts)) == 1:
            self._places = (self._rows, slice(None), slice(starts[0], self._seen))
            return positions, None
        positions = positions.clamp(max=most - 1)
        rows = torch.arange(first, first + len(starts), device=device)
        self._places = (rows[:, None], slice(None), positions)
        return positions, _causal(positions, self._seen, self.keys[0].dtype)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Keep the new keys and values (rows x heads x tokens x size); returns all that the rows see."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        aligned = isinstance(self._places[0], slice)
        keys[self._places] = key_states if aligned else key_states.transpose(1, 2)
        values[self._places] = value_states if aligned else value_states.transpose(1, 2)
        return keys[self._rows, :, : self._seen], values[self._rows, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens were there before this pass, where all rows begin at the same place."""
        return self._seen - self._width

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """How many keys there are, and where they begin."""
        return self._seen, 0

    @property
    def is_compileable(self) -> bool:
        """Not by transformers."""
        return False

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of a row to another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :tokens] = tensor[source, :, :tokens]

    def resize(self, rows: int, length: int, kept: int) -> None:
        """Make this many rows of this length; what the first `kept` rows hold stays as far as there is room.

        Layer by layer, so that little more than the larger of the two is needed meanwhile. When that is not to be had,
        everything is as it was.
        """
        before = self.keys[0].shape[0], self.length
        try:
            self._reshape(rows, length, kept)
        except Exception:
            self._reshape(*before, kept)
            raise

    def _reshape(self, rows: int, length: int, kept: int) -> None:
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                if (old.shape[0], old.shape[2]) != (rows, length):
                    new = old.new_zeros((rows, old.shape[1], length, old.shape[3]))
                    width = min(length, old.shape[2])
                    new[:kept, :, :width] = old[:kept, :, :width]
                    tensors[layer] = new


def _causal(positions: Tensor, seen: int, dtype: torch.dtype) -> Tensor:
    """What attention adds: 0 for the keys that a token may look at. Rows x 1 x tokens x keys."""
    keys = torch.arange(seen, device=positions.device)
    return torch.where(keys <= positions[:, None, :, None], 0.0, -torch.inf).to(dtype)


def head_size(config: Any) -> int:
    """The size of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """What a token of a sequence takes in a cache."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_size(config) * dtype.itemsize
