"""Loading of base models: by one thread of the process at a time, and unchanged weights once.

While a network is made, the libraries change settings of the whole process: the default type of numbers, and how
weights are initialised. Two threads that load at a time each get the other's.
"""

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from modelyard.errors import MissingExtra

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

LOADING = threading.RLock()
"""Held while a network or a tokenizer is loaded, in any thread of this process."""

_Key = tuple[str, str, torch.dtype, tuple[tuple[str, int, int], ...]]
_LOADED: "WeakValueDictionary[_Key, nn.Module]" = WeakValueDictionary()


def with_shared_weights(folder: Path, device: str, dtype: torch.dtype, load: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a network of the base model in a folder, and what to hold for as long as it is used.

    Networks of the same files share the memory of their weights, which none may change. Each has layers of its own, so
    that an adapter is part of one of them.
    """
    key = (str(folder.resolve()), str(torch.device(device)), dtype, _stamps(folder))
    with LOADING:
        loaded = _LOADED.get(key)
        if loaded is None:
            loaded = _LOADED[key] = load()
        own: dict[int, Any] = {id(one): one.clone() for one in _tensors(loaded)}
        own |= {id(one): nn.Parameter(one.data, one.requires_grad) for one in loaded.parameters()}
        return copy.deepcopy(loaded, own), loaded


def _tensors(network: nn.Module) -> Iterator[torch.Tensor]:
    """Yield what a network has besides its weights, such as the angles of positions."""
    for module in network.modules():
        for one in (*module.buffers(recurse=False), *vars(module).values()):
            if isinstance(one, torch.Tensor) and not isinstance(one, nn.Parameter):
                yield one


def _stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the names, sizes and times of the files in a folder, which change with them."""
    found = sorted((path.name, path.stat()) for path in folder.iterdir() if path.is_file())
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
