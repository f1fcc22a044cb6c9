"""Caches in the form that transformers has for them, of one sequence or of several that are read side by side.

They are for layers that `RowCache` does not suit: layers that keep a state instead of keys, compress keys, or weigh
them by their distance. Caches of sequences can be joined, so that a further token of all of them is one pass, which
the layers do as for any batch, until a sequence comes or goes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from modelyard.parts.torch.kv_cache import Mask, hiding, mask_of, windows

_OF_ATTENTION = ("cache", "past_key_values")
"""Of transformers from 5.24 on, and before."""

_CACHES = (*_OF_ATTENTION, "cache_params", "state")
"""The names under which model bodies return and accept their caches."""

_OF_TOKENS = ("keys", "values")
"""The attributes of layers that have an entry for each token (rows x heads x tokens x size): they are left-padded."""

_DEEPEST = 8
"""How many levels of objects, lists and mappings are searched for tensors."""


class JointCache:
    """The cache of `rows` sequences of equal length, of padded ones, or of joined ones.

    If `keeps` is false or the network has no cache, nothing is stored, and all tokens are read again each time.
    """

    def __init__(self, body: Any, config: Any, rows: int = 1, keeps: bool = True) -> None:
        self._body, self._config, self._keeps = body, config, keeps
        self._aligned = True  # all rows have had the same length so far: then the model's own positions are right
        self.kept: dict[str, Any] = {}
        """What the body returned, by the name under which it accepts it."""
        self.seen: list[int] = [0] * rows
        """The number of tokens of each sequence that need not be read again."""
        self.last: Tensor | None = None
        """The hidden states (rows x size) of the last tokens that were read."""

    def read(self, ids: Tensor) -> Tensor:
        """Return the hidden states (rows x tokens x size) of the tokens that are new.

        The first call reads all tokens at once, later ones one token at a time, which every kind of cache supports.
        """
        states = self._pass(ids, **self.kept, **self._places(ids.device))
        self.seen = [seen + ids.shape[1] if self.kept else 0 for seen in self.seen]
        return states

    def read_padded(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read prompts of different lengths at once, left-padded, as the first tokens of all rows.

        Returns the hidden states of the last tokens (rows x size).
        """
        device, lengths = self._body.device, [*map(len, prompts)]
        longest = max(lengths)
        ids = torch.tensor([[*[0] * (longest - len(prompt)), *prompt] for prompt in prompts], device=device)
        padding = torch.tensor([longest - length for length in lengths], device=device)[:, None]
        places = torch.arange(longest, device=device) - padding
        more = {"position_ids": places.clamp(min=0)} if self._takes("position_ids") else {}
        states = self._pass(ids, attention_mask=(places >= 0).long(), **more)
        self.seen, self._aligned = lengths, len({*lengths}) == 1
        return states[:, -1]

    def _takes(self, name: str) -> bool:
        return name in signature(self._body.forward).parameters

    def _pass(self, ids: Tensor, **given: Any) -> Tensor:
        """Read tokens, and keep what the body returns for the next ones; return their hidden states."""
        output = self._body(input_ids=ids, use_cache=self._keeps, **given)
        self.kept = {name: value for name, value in output.items() if self._keeps and name in _CACHES}
        states: Tensor = output.last_hidden_state
        self.last = states[:, -1].clone()  # a copy, so that it does not keep the whole tensor alive
        return states

    def join(self, others: Sequence["JointCache"]) -> None:
        """Append the rows of the others, which are used up; each has read at least a token."""
        caches = [self, *others]
        self._aligned = all(cache._aligned for cache in caches) and len({cache.seen[0] for cache in caches}) == 1
        self.kept = _changed([cache.kept for cache in caches], _joined, _DEEPEST)
        self.seen = [seen for cache in caches for seen in cache.seen]
        self.last = torch.cat([cache.last for cache in caches if cache.last is not None])

    def keep(self, rows: list[int]) -> None:
        self.seen = [self.seen[row] for row in rows]
        longest = max(self.seen)

        def kept(name: str, values: Sequence[Tensor]) -> Tensor:
            own = values[0][:, :, -longest:] if name in _OF_TOKENS else values[0]
            return own[rows]

        self.kept = _changed([self.kept], kept, _DEEPEST)
        self.last = None if self.last is None else self.last[rows]

    def copy(self, row: int) -> "JointCache":
        other = JointCache(self._body, self._config, keeps=self._keeps)
        alone = len(self.seen) == 1
        shared = {} if alone else {id(tensor): tensor for tensor in _tensors(self.kept, _DEEPEST)}
        other.kept, other.seen, other.last = deepcopy(self.kept, shared), [*self.seen], self.last
        other._aligned = self._aligned
        if not alone:
            other.keep([row])
        return other

    @property
    def nbytes(self) -> int:
        storages = [tensor.untyped_storage() for tensor in _tensors(self.kept, _DEEPEST)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _places(self, device: torch.device) -> dict[str, Any]:
        """Return the positions and the mask of one more token, if the model's own are not right."""
        if self._aligned or not (self.kept.keys() & set(_OF_ATTENTION) and self._takes("position_ids")):
            return {}
        positions = torch.tensor(self.seen, device=device)[:, None]
        return {"position_ids": positions, "attention_mask": self._mask(device)}

    def _mask(self, device: torch.device) -> Mask:
        """Return the mask that hides padding; a window shows only its last tokens."""
        counts = {
            kind: [min(seen + 1, window or seen + 1) for seen in self.seen]
            for kind, window in windows(self._config).items()
        }
        return mask_of(counts, lambda counted: _padding_mask(counted, self._body.dtype, device))


def cache_name(body: Any) -> str:
    """Return the name under which a body accepts the keys and values of earlier tokens."""
    accepted = signature(body.forward).parameters
    return next((name for name in _OF_ATTENTION if name in accepted), _OF_ATTENTION[-1])


Change = Callable[[str, Sequence[Tensor]], Tensor]


def _changed(values: Sequence[Any], change: Change, depth: int, name: str = "") -> Any:
    """Return the first of several values of equal structure, with new tensors.

    `change` makes each of the tensors that stand at its place in the values, and of the name of their attribute. Lists,
    mappings and objects are changed in place, and each old tensor is dropped at once: only one is in memory twice.
    """
    first = values[0]
    if isinstance(first, Tensor):
        return change(name, values) if first.ndim else first
    if isinstance(first, tuple):
        return tuple(_changed(parts, change, depth - 1, name) for parts in zip(*values, strict=True))
    fields = [_fields(value) for value in values]
    if not depth or not fields[0] or any(value is first for value in values[1:]):
        return first
    for key in range(len(first)) if isinstance(first, list) else [*fields[0]]:
        parts = [field[key] for field in fields]
        for field in fields:
            field[key] = None
        fields[0][key] = _changed(parts, change, depth - 1, str(key))
        del parts
    return first


def _fields(value: Any) -> Any:
    if isinstance(value, list | dict):
        return value
    return None if isinstance(value, type) or callable(value) else getattr(value, "__dict__", None)


def _joined(name: str, values: Sequence[Tensor]) -> Tensor:
    if name in _OF_TOKENS:
        longest = max(value.shape[2] for value in values)
        values = [functional.pad(value, (0, 0, longest - value.shape[2], 0)) for value in values]
    return torch.cat([*values])


def _padding_mask(counts: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 0 for the last `counts` keys of each row (rows x 1 x 1 x keys)."""
    longest = max(counts)
    hidden = torch.arange(longest, device=device) < torch.tensor([[longest - count] for count in counts], device=device)
    return hiding(hidden, dtype)[:, None, None]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in (*parts, *getattr(value, "__dict__", {}).values()):
            yield from _tensors(part, depth - 1)
