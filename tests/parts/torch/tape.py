"""A recorder that needs no graphics card, as strict as CUDA graphs are.

It notes each operation on tensors with its arguments, and does the same again on the same memory: nothing of Python is
run again, so numbers, shapes and tensors that came from elsewhere are what they were when it was recorded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modelyard.parts.torch.cuda_graphs import CapturedGraph


class Tape(TorchDispatchMode):
    """The operations of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number was read from a tensor: a card would have to wait for it")
        result = func(*args, **(kwargs or {}))
        self.noted.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, before in self.noted:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorder:
    """Makes tapes, and counts them and their replays."""

    def __init__(self) -> None:
        self.made, self.replays = 0, 0

    def __call__(self, call: Callable[[], Tensor]) -> CapturedGraph:
        self.made += 1
        with Tape() as tape:
            states = call()
        states.fill_(torch.nan)  # a card computes nothing while it records

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return CapturedGraph(replay, states)
