"""Keys and values of the tokens read so far, one row for each sequence that is being answered.

It replaces a transformers cache: attention layers call `update` and get the keys of the rows of this step. Rows in use
are always the first ones, so that a step works on views and copies nothing.
"""

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache

T = TypeVar("T")

Mask: TypeAlias = Tensor | Mapping[str, Tensor] | None
"""What attention adds to the score of each key (rows x 1 x tokens x keys): one for all layers, one for each kind of
layer, or None if the model's own mask is right."""


class RowCache(Cache):
    """`rows` x `length` tokens, in memory for `most` tokens (by default these) at a fixed address.

    A processor's memory is taken when a token is first written there. `resize` changes the layout.
    """

    def __init__(
        self, config: Any, rows: int, length: int, dtype: torch.dtype, device: torch.device, most: int | None = None
    ) -> None:
        self.layers: list[Any] = []  # transformers reads this attribute of its own caches
        self._heads, self._size = key_heads(config), head_size(config)
        self._windows = windows(config)
        count = (rows * length if most is None else most) * self._heads * self._size
        layers = range(config.num_hidden_layers)
        self._memory = [[_reserved(count, dtype, device) for _ in layers] for _ in ("keys", "values")]
        self.keys: list[Tensor]
        self.values: list[Tensor]
        self.keys, self.values = self._laid_out(rows, length)
        self.version: int = 0
        """Incremented when keys and values move to other addresses."""
        self._rows, self._width, self._seen = slice(0, 0), 0, 0
        self._places: tuple[Any, ...] = ()

    @property
    def length(self) -> int:
        """The number of tokens that a row can hold."""
        return self.keys[0].shape[2]

    def begin(self, first: int, starts: Sequence[int], width: int) -> tuple[Tensor, Mask]:
        """Prepare a pass in which rows from `first` on get `width` tokens each, after their first `starts`.

        Returns the tokens' positions (rows x tokens) and the attention mask. The mask is None if all rows begin at the
        same place: then the model's own is right, and mostly none is needed. Positions beyond the end of a row are
        padding, moved to its end.
        """
        device, seen = self.keys[0].device, min(max(starts) + width, self.length)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        if len(set(starts)) == 1:
            self._rows, self._width, self._seen = slice(first, first + len(starts)), width, seen
            self._places = (self._rows, slice(None), slice(starts[0], seen))
            return positions, None
        positions = positions.clamp(max=self.length - 1)
        return positions, self.begin_at(first, positions, seen)

    def begin_at(self, first: int, positions: Tensor, seen: int) -> Mask:
        """Prepare a pass in which rows from `first` on get tokens at these positions (rows x tokens), all before
        `seen`.

        Returns the mask. Its operations do not depend on the positions, so that a pass can be recorded.
        """
        (count, self._width), self._seen = positions.shape, seen
        self._rows = slice(first, first + count)
        rows = torch.arange(first, first + count, device=positions.device)
        self._places = (rows[:, None], slice(None), positions)
        return mask_of(self._windows, lambda window: causal(positions, seen, window, self.keys[0].dtype))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the new keys and values (rows x heads x tokens x size); return all that the rows see."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        aligned = isinstance(self._places[0], slice)
        keys[self._places] = key_states if aligned else key_states.transpose(1, 2)
        values[self._places] = value_states if aligned else value_states.transpose(1, 2)
        return keys[self._rows, :, : self._seen], values[self._rows, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._seen - self._width

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._seen, 0

    @property
    def is_compileable(self) -> bool:
        """False: transformers must not compile it."""
        return False

    def copy(self, source: int, target: int, tokens: int) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :tokens] = tensor[source, :, :tokens]

    def swap(self, row: int, tokens: int, other: int, other_tokens: int) -> None:
        """Exchange the first tokens of two rows; needs memory for a copy of one layer of the first row."""
        for tensor in (*self.keys, *self.values):
            moved = tensor[row, :, :tokens].clone()
            tensor[row, :, :other_tokens] = tensor[other, :, :other_tokens]
            tensor[other, :, :tokens] = moved

    def clear(self, row: int, first: int = 0) -> None:
        """Set the row to 0 from token `first` on."""
        for tensor in (*self.keys, *self.values):
            tensor[row, :, first:].zero_()

    def resize(self, rows: int, length: int, kept: int) -> None:
        """Change the layout to this many rows of this length, keeping the first `kept` rows as far as they fit.

        Needs memory for a copy of one row; without that memory nothing is changed.
        """
        before, width = (self.keys, self.values), min(length, self.length)
        order = range(kept) if length < self.length else reversed(range(kept))  # none is overwritten before it is moved
        spare = self.keys[0].new_empty((self._heads, width, self._size))
        self.keys, self.values = self._laid_out(rows, length)
        self.version += 1
        moves = list(zip([*before[0], *before[1]], [*self.keys, *self.values], strict=True))
        for row in order:
            for old, new in moves:
                new[row, :, :width] = spare.copy_(old[row, :, :width])

    def _laid_out(self, rows: int, length: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return views on the keys and values of each layer: rows x heads x tokens x size."""
        shape = (rows, self._heads, length, self._size)
        laid_out = [[memory[: math.prod(shape)].view(shape) for memory in memories] for memories in self._memory]
        return laid_out[0], laid_out[1]


def _reserved(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros, in a processor's memory pages of which none is taken before it is written.

    Raises MemoryError or `torch.OutOfMemoryError`.
    """
    if device.type != "cpu" or not count or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(count, dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as fault:
        raise MemoryError(f"{count * dtype.itemsize} bytes for keys and values: {fault}") from None
    return torch.frombuffer(pages, dtype=dtype)


def causal(positions: Tensor, seen: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return a mask (rows x 1 x tokens x `seen`) that shows tokens at these positions (rows x tokens) the keys up to
    their own; a window shows only the last of them.
    """
    keys, own = torch.arange(seen, device=positions.device), positions[:, None, :, None]
    hidden = keys > own
    if window is not None:
        hidden |= keys <= own - window
    return hiding(hidden, dtype)


def hiding(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def mask_of(seen: Mapping[str, T], made: Callable[[T], Tensor]) -> Mask:
    """Return the masks for what each kind of layer sees: one for all if they see the same."""
    first, *others = seen.values()
    return {kind: made(one) for kind, one in seen.items()} if any(one != first for one in others) else made(first)


_FULL, _SLIDING = "full_attention", "sliding_attention"

_OTHERWISE = (
    "kv_lora_rank",  # compressed keys (MLA)
    "keep_window_size",
    "attention_chunk_size",
    *("state_size", "mamba_d_state", "mamba_n_heads", "ssm_state_size", "attn_layer_period", "block_types"),
)
"""Settings of models whose layers store something other than plain keys and values."""


def suits(config: Any) -> bool:
    """Return whether every layer stores plain keys and values per token, as far as the configuration shows."""
    kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())}
    otherwise = [name for name in _OTHERWISE if getattr(config, name, None) is not None]
    return kinds <= {_FULL, _SLIDING, "global"} and not otherwise and not getattr(config, "alibi", False)


def narrower(config: Any) -> int | None:
    """Return the attention window of a model, if it is narrower than the longest sequence."""
    window: int | None = getattr(config, "sliding_window", None)
    return None if window is None or window >= getattr(config, "max_position_embeddings", math.inf) else window


def windows(config: Any) -> Mapping[str, int | None]:
    """Return, for each kind of layer, how many tokens up to its own a token sees; None for all of them."""
    window = narrower(config)
    kinds = getattr(config, "layer_types", None) or [_FULL if window is None else _SLIDING]
    return {kind: window if kind == _SLIDING else None for kind in sorted(set(kinds))}


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def key_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    return 2 * config.num_hidden_layers * key_heads(config) * head_size(config) * dtype.itemsize
