"""Weights in the order in which a processor multiplies them, as oneDNN stores them: of linear layers of 32-bit floats.

Passes of some tokens take about two thirds of the time that plain weights take. Values stay, to the last bit.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from modelyard.parts.torch.mapped_weights import is_mapped, page_out

LONE = 4
"""Copies of a lone token that are multiplied together: this takes four fifths of the time of one, as weights that are
packed for a block of tokens are read at the same speed.
"""


class PackedLinear(nn.Linear):
    """A linear layer that answers: without derivatives, and with packed weights alone."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = layer.weight.shape
        self.bias = layer.bias
        self.packed: Any = torch.ops.mkldnn._reorder_linear_weight(layer.weight.data, None)

    @property
    def weight(self) -> Tensor:
        """The weights in their usual order, made anew each time: for layers that read the weights of others."""
        found: Tensor = self.packed.to_dense()
        return found

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() != self.in_features:
            return self._product(x)
        return self._product(x.reshape(1, -1).expand(LONE, -1).contiguous())[:1].view(*x.shape[:-1], -1)

    def _product(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return found


def pack(model: Any) -> bool:
    """Pack the weights of a model's linear layers, in place, and have memory of the plain ones given back.

    Weights that are embeddings, too, stay in memory as such: they are packed besides if they are mapped from a file.
    Returns whether all packed weights can be read from a file again.
    """
    embeddings = model.get_input_embeddings().weight
    made: dict[nn.Module, nn.Module] = {}
    mapped = True
    for layer in model.modules():
        if type(layer) is nn.Linear and layer not in made:
            there = is_mapped(layer.weight.data)
            if there or layer.weight is not embeddings:
                made[layer], mapped = PackedLinear(layer), mapped and there
                page_out(layer.weight.data)
    for module in list(model.modules()):
        for name, inner in list(module.named_children()):
            if inner in made:
                setattr(module, name, made[inner])
    return mapped


@cache
def can_pack() -> bool:
    """Return whether this build of torch packs weights, and multiplies with them as with plain ones."""
    draw = torch.Generator().manual_seed(0)
    layer, x = nn.Linear(96, 40), torch.rand(3, 96, generator=draw)
    try:
        with torch.inference_mode():
            packed = PackedLinear(layer)
            same = torch.equal(packed.weight, layer.weight)
            return same and all(torch.allclose(packed(some), layer(some), atol=1e-5) for some in (x, x[:1]))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
