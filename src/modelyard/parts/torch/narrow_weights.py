"""Weights that are stored in fewer bits than are computed with: 16-bit floats, or 8-bit numbers with a scale for each
output.

They are widened a block at a time, in memory that a processor's cache holds, and never as a whole. Derivatives pass
through the widened weights to what a layer was given; the weights themselves are never trained.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from modelyard.parts.torch.lora import linear_layers
from modelyard.parts.torch.mapped_weights import page_out
from modelyard.parts.torch.records import WeightFormat

_BLOCK = 2**18
"""Numbers that are widened at a time: 1 MiB of 32-bit floats."""

_MOST = 127

_PRODUCTS = nn.Linear.forward, Conv1D.forward
"""Layers that do more than multiply stay as they are: a router of experts, for one, is a linear layer that chooses."""


class NarrowLinear(nn.Linear):
    """A linear layer whose weights (outputs x inputs) are stored as `stored`: 16-bit floats by their bits, or 8-bit
    numbers that are multiplied by the `scale` of their output.

    It computes with floats of the type that it is given.
    """

    stored: nn.Parameter
    scale: Tensor | None

    def __init__(self, stored: nn.Parameter, scale: Tensor | None, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = stored.shape
        self.stored, self.bias = stored, bias
        self.register_buffer("scale", scale, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The weights as 32-bit floats, widened anew each time: for layers that read the weights of others."""
        wide = _numbers(self.stored).float()
        return wide if self.scale is None else wide * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        found: Tensor = _Product.apply(flat, self.stored, self.scale)
        found = found.view(*x.shape[:-1], -1)
        return found if self.bias is None else found + self.bias.to(found.dtype)


class NarrowEmbedding(nn.Embedding):
    """Embeddings that are stored as 16-bit floats and returned as 32-bit floats."""

    stored: nn.Parameter

    def __init__(self, stored: nn.Parameter, padding_idx: int | None) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = stored.shape
        self.stored, self.padding_idx = stored, padding_idx

    @property
    def weight(self) -> Tensor:
        return _numbers(self.stored)

    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(input, self.weight).float()


class _Product(torch.autograd.Function):
    """x W^T, with x of tokens x inputs."""

    @staticmethod
    def forward(context: Any, x: Tensor, stored: Tensor, scale: Tensor | None) -> Tensor:
        context.stored, context.scale = stored, scale
        found = x.new_empty(len(x), len(stored))
        for place, weight in _widened(stored, x.dtype):
            torch.mm(x, weight.T, out=found[:, place])
        return found if scale is None else found.mul_(scale)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        scaled = gradient if context.scale is None else (gradient * context.scale).to(gradient.dtype)
        found = gradient.new_zeros(len(gradient), context.stored.shape[1])
        for place, weight in _widened(context.stored, gradient.dtype):
            found.addmm_(scaled[:, place], weight)
        return found, None, None


def _widened(stored: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Yield the rows of each block, and their numbers in this type, which are overwritten by those of the next."""
    numbers = _numbers(stored)
    step = max(1, _BLOCK // stored.shape[1])
    wide = torch.empty(min(step, len(stored)), stored.shape[1], dtype=dtype, device=stored.device)
    for start in range(0, len(stored), step):
        block = numbers[start : start + step]
        yield slice(start, start + len(block)), wide[: len(block)].copy_(block)


def _numbers(stored: Tensor) -> Tensor:
    return stored.data.view(torch.bfloat16) if stored.dtype is torch.int16 else stored.data


# ---- making them -------------------------------------------------------------------------------------------------


def narrow(model: Any, weights: WeightFormat, dtype: torch.dtype) -> None:
    """Store the weights of the text model's linear layers in this format, in place, and compute with floats of `dtype`.

    If these have 32 bits, the embeddings and the head are stored as 16-bit floats, unless they do more than look up or
    multiply. All others are stored as `dtype`. Raises ValueError for weights that are not numbers.
    """
    made: dict[nn.Module, nn.Module] = {}
    for name, layer in list(linear_layers(model)):
        if type(layer).forward not in _PRODUCTS:
            continue
        plain = layer.weight.data if isinstance(layer, nn.Linear) else layer.weight.data.T
        made[layer] = NarrowLinear(*_stored(name, plain, weights), layer.bias)
        page_out(layer.weight.data)
    if not made:
        raise ValueError(f"it has no linear layers that could be stored as {weights}; add it without weights")
    if dtype is torch.float32:
        made |= _narrow_ends(model)
    for module in list(model.modules()):
        for name, inner in list(module.named_children()):
            if inner in made:
                setattr(module, name, made[inner])
    _compute_with(model, dtype)


def _stored(name: str, weight: Tensor, weights: WeightFormat) -> tuple[nn.Parameter, Tensor | None]:
    if weights is not WeightFormat.INT8:
        return _bits(name, weight), None
    scale = _checked(name, weight.abs().amax(1).float()) / _MOST
    scale[scale == 0] = 1
    return _fixed((weight.float() / scale[:, None]).round_().to(torch.int8)), scale


def _bits(name: str, weight: Tensor) -> nn.Parameter:
    return _fixed(_checked(name, weight.to(torch.bfloat16)).contiguous().view(torch.int16))


def _fixed(stored: Tensor) -> nn.Parameter:
    return nn.Parameter(stored, requires_grad=False)


def _checked(name: str, numbers: Tensor) -> Tensor:
    if not are_numbers(numbers):
        raise ValueError(f"its weights are not all numbers, or too large (for one, {name}.weight)")
    return numbers


def are_numbers(weights: Tensor) -> bool:
    """Return whether no weight is NaN or infinite. Their sum is ten times as fast as a look at each, and a number only
    if all are; of very large ones it may be none.
    """
    return bool(weights.sum().isfinite()) or bool(weights.isfinite().all())


def _narrow_ends(model: Any) -> dict[nn.Module, nn.Module]:
    """Return the narrow embeddings and the narrow head; they share what they shared before."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = type(embeddings) is nn.Embedding, type(head) is nn.Linear
    tied = head is not None and head.weight is embeddings.weight
    if tied and not all(plain):
        return {}
    made: dict[nn.Module, nn.Module] = {}
    stored = None
    if plain[0]:
        stored = _bits("the embeddings", embeddings.weight.data)
        made[embeddings] = NarrowEmbedding(stored, embeddings.padding_idx)
        page_out(embeddings.weight.data)
    if plain[1]:
        own = stored if tied and stored is not None else _bits("the head", head.weight.data)
        made[head] = NarrowLinear(own, None, head.bias)
        page_out(head.weight.data)
    return made


def _compute_with(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert what is not narrow; tables of 32 bits stay, also where 16 are computed with."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for buffer in model.buffers():
        if buffer.dtype in (torch.bfloat16, torch.float16):
            buffer.data = buffer.data.to(dtype)
