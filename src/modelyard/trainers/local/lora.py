"""The adapter that is being trained: two small matrices beside each projection (arXiv 2106.09685)."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelyard.causal_lm.lora import PREFIX, LoraShape
from modelyard.errors import TrainingError


class TrainedLinear(nn.Module):
    """base(x) + scale x (x A^T) B^T, in which A and B learn. B begins at 0, so that nothing is changed at first."""

    def __init__(self, base: nn.Linear, shape: LoraShape, generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, shape.alpha / shape.rank
        bound = 1 / math.sqrt(base.in_features)
        drawn = torch.rand(shape.rank, base.in_features, generator=generator) * 2 * bound - bound
        device = base.weight.device
        self.down = nn.Parameter(drawn.to(device))
        self.up = nn.Parameter(torch.zeros(base.out_features, shape.rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Rows x tokens x features. The adapter computes in 32-bit floats, whatever the base is."""
        inner = functional.linear(x.to(self.down.dtype), self.down)
        return self.base(x) + (functional.linear(inner, self.up) * self.scale).to(x.dtype)


class TrainedAdapter:
    """An adapter around a network's projections, which are replaced in place. The seed decides how it begins."""

    def __init__(self, model: nn.Module, shape: LoraShape, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.layers = dict(_put_around(model, shape, generator))

    def parameters(self) -> list[nn.Parameter]:
        """All that learns, in an order that is always the same."""
        return [parameter for layer in self.layers.values() for parameter in (layer.down, layer.up)]

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the names that peft and vLLM know."""
        return {
            f"{PREFIX}{name}.lora_{side}.weight": parameter.detach()
            for name, layer in self.layers.items()
            for side, parameter in (("A", layer.down), ("B", layer.up))
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights of another adapter of the same shape. Raises `TrainingError`."""
        own = self.tensors()
        if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
            raise TrainingError("the parent's adapter is of another base model or shape; train a new model")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])


def _put_around(model: nn.Module, shape: LoraShape, generator: torch.Generator) -> Iterator[tuple[str, TrainedLinear]]:
    for name, module in list(model.named_modules()):
        parent, _, leaf = name.rpartition(".")
        if isinstance(module, nn.Linear) and leaf in shape.targets:
            layer = TrainedLinear(module, shape, generator)
            setattr(model.get_submodule(parent), leaf, layer)
            yield name, layer
