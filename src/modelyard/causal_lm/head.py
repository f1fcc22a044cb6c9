"""The head of a network: from hidden states to logits, in 32-bit floats whatever the weights are.

16 bits would tell logits around 20 apart in steps of 1/8, and log-probabilities no finer. Products of two 16-bit floats
are exact in 32 bits; so it is enough that their sums are not rounded.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast

_SUMS_IN_32_BITS = "dtype" in torch.ops.aten.mm.overloads()


def logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """Logits (... x vocabulary) of hidden states (... x size). Weights that are trained themselves are to have 32 bits:
    others are used as they are, and their sums rounded."""
    weight = head.weight if type(head) is nn.Linear else None
    if weight is None or weight.dtype is torch.float32 or weight.requires_grad:
        return head(hidden).float()
    found = _Logits.apply(hidden.flatten(0, -2).to(weight.dtype), weight).unflatten(0, hidden.shape[:-1])
    return found if head.bias is None else found + head.bias.float()


def body_name(model: Any) -> str:
    """Under which name a model has its body: some families do not keep to what they say."""
    prefix: str = model.base_model_prefix
    return prefix if prefix in model._modules else "model"


class OwnHead(nn.Module):
    """All that a model does behind its body, where that is more than to apply its head: it scales logits, or caps them.

    It is the model itself, with a body that takes hidden states for what they are.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        head, own = model.get_output_embeddings(), copy.copy(model)
        wide = {name: _Wide(head) for name, module in model._modules.items() if module is head}
        own._modules = {**model._modules, **wide, body_name(model): _Given()}
        self.model = own

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (... x vocabulary) of hidden states (... x size)."""
        found = self.model(inputs_embeds=hidden.flatten(0, -2)[None], use_cache=False).logits[0]
        return found.float().unflatten(0, hidden.shape[:-1])


class _Given(nn.Module):
    """A body that is given its hidden states."""

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


class _Wide(nn.Module):
    """A head in 32-bit floats."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        return logits(self.head, hidden)


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
