"""The head of a network: from hidden states to logits, in 32-bit floats whatever the weights are.

16 bits would tell logits around 20 apart in steps of 1/8, and log-probabilities no finer. Products of two 16-bit floats
are exact in 32 bits; so it is enough that their sums are not rounded.
"""

from typing import Any

import torch
from torch import Tensor, nn

_SUMS_IN_32_BITS = "dtype" in torch.ops.aten.mm.overloads()


def logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """Logits (... x vocabulary) of hidden states (... x size). Weights that are trained themselves are to have 32 bits:
    others are used as they are, and their sums rounded."""
    weight = head.weight if type(head) is nn.Linear else None
    if weight is None or weight.dtype is torch.float32 or weight.requires_grad:
        return head(hidden).float()
    found = _Logits.apply(hidden.flatten(0, -2), weight).unflatten(0, hidden.shape[:-1])
    return found if head.bias is None else found + head.bias.float()


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(weight)
        if hidden.is_cuda and _SUMS_IN_32_BITS:
            return torch.mm(hidden, weight.T, out_dtype=torch.float32)
        return hidden.float() @ weight.float().T

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weight,) = context.saved_tensors
        return gradient.to(weight.dtype) @ weight, None
