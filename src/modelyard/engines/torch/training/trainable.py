"""Trainable parameters: an adapter on a frozen network (arXiv 2106.09685), or all of the network's weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelyard.engines.torch.lora import CONFIG_FILE, PREFIX, WEIGHTS_FILE, LoraLinear, LoraShape, put_in, tensor_bytes
from modelyard.engines.torch.network import FULL_FILE
from modelyard.errors import TrainingError

Weights = Mapping[str, Tensor]


@attrs.frozen(eq=False)
class TrainableWeights:
    """Parameters by their names in the checkpoint's file, and the other files of a checkpoint."""

    named: Mapping[str, nn.Parameter]
    file: str
    other_files: Mapping[str, bytes]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, in a fixed order."""
        return list(self.named.values())

    def copy(self) -> Weights:
        """Return a copy of the current weights."""
        return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def load(self, weights: Weights) -> None:
        """Load these weights. Raises `TrainingError` if they do not fit."""
        self.check(weights)
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(weights[name])

    def check(self, weights: Weights) -> None:
        """Raise `TrainingError` if these weights do not fit."""
        odd = self.named.keys() ^ weights.keys()
        odd |= {name for name in self.named.keys() & weights if self.named[name].shape != weights[name].shape}
        if odd:
            raise TrainingError(
                f"the checkpoint's {self.file} does not fit this base model (for one, {min(odd)}): it was trained on "
                "another base model or shape; train a new model"
            )

    @contextmanager
    def replaced(self, weights: Weights) -> Iterator[None]:
        """Use these weights, of the same device, instead of the trained ones within the context."""
        kept = {name: parameter.data for name, parameter in self.named.items()}
        try:
            self._point_at(weights)
            yield
        finally:
            self._point_at(kept)

    def _point_at(self, weights: Weights) -> None:
        for name, parameter in self.named.items():
            parameter.data = weights[name]

    def files(self) -> dict[str, list[bytes]]:
        """Return the files of a checkpoint."""
        other_files = {name: [content] for name, content in self.other_files.items()}
        return {**other_files, self.file: [tensor_bytes(self.named)]}


# ---- all weights -------------------------------------------------------------------------------------------------


def all_weights(model: nn.Module) -> TrainableWeights:
    """Train all weights of a network; weights that layers share are stored once."""
    model.requires_grad_(True)
    return TrainableWeights(dict(model.named_parameters()), FULL_FILE, {})


# ---- an adapter --------------------------------------------------------------------------------------------------


class TrainedLinear(LoraLinear):
    """base(x) + scale x (x A^T) B^T, in which A and B are trained. B starts at 0, so that nothing changes at first."""

    def __init__(self, base: nn.Linear, shape: LoraShape, generator: torch.Generator) -> None:
        super().__init__(base)
        self.scale: float = shape.alpha / shape.rank
        bound = 1 / math.sqrt(self.in_features)
        drawn = torch.rand(shape.rank, self.in_features, generator=generator) * 2 * bound - bound
        device = base.weight.device
        self.down: nn.Parameter = nn.Parameter(drawn.to(device))
        self.up: nn.Parameter = nn.Parameter(torch.zeros(self.out_features, shape.rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to rows x tokens x features. The adapter always computes in 32-bit floats."""
        same = x.dtype is self.down.dtype
        inner = functional.linear(x, self.down) if same else _Inner.apply(x, self.down)
        return self.base(x) + (functional.linear(inner, self.up) * self.scale).to(x.dtype)


class _Inner(torch.autograd.Function):
    """x A^T in the precision of A, which is not that of x.

    Derivatives keep x itself, which several projections share: a copy for each would be a third of all that a network
    of 16 bits keeps.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, down: Tensor) -> Tensor:
        context.save_for_backward(x, down)
        return functional.linear(x.to(down.dtype), down)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, down = context.saved_tensors
        of_down = gradient.flatten(0, -2).T @ x.flatten(0, -2).to(down.dtype)
        return (gradient @ down).to(x.dtype), of_down


def attach_adapter(model: nn.Module, shape: LoraShape, seed: int, base_model: str) -> TrainableWeights:
    """Add an adapter to a network's projections, which are replaced in place. The seed initialises it.

    The weights have the names that peft and vLLM know. Raises `TrainingError` if the network has no such projections.
    """
    found = shape.resolve(model)
    if not found.targets:
        raise TrainingError(
            f"this base model has no linear layer{' named ' if shape.targets else ''}{', '.join(shape.targets)}, so an "
            "adapter has no place; add it again under another id with tuning='full', if it is small"
        )
    generator = torch.Generator().manual_seed(seed)
    named: dict[str, nn.Parameter] = {}
    for name, layer in found.layers(model):
        around = TrainedLinear(layer, found, generator)
        put_in(model, name, around)
        named[f"{PREFIX}{name}.lora_A.weight"], named[f"{PREFIX}{name}.lora_B.weight"] = around.down, around.up
    return TrainableWeights(named, WEIGHTS_FILE, {CONFIG_FILE: found.config(base_model)})
