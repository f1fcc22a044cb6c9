"""Trainable parameters: an adapter on a frozen network (arXiv 2106.09685), or all of the network's weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelyard.errors import TrainingError
from modelyard.parts.torch.lora import CONFIG_FILE, PREFIX, WEIGHTS_FILE, LoraLinear, LoraShape, put_in, tensor_bytes
from modelyard.parts.torch.network import FULL_FILE

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
        return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def load(self, weights: Weights) -> None:
        self.check(weights)
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(weights[name])

    def check(self, weights: Weights) -> None:
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
        other_files = {name: [content] for name, content in self.other_files.items()}
        return {**other_files, self.file: [tensor_bytes(self.named)]}


# ---- all weights -------------------------------------------------------------------------------------------------


def all_weights(model: nn.Module) -> TrainableWeights:
    """Train all weights of a network; weights that layers share are stored once."""
    model.requires_grad_(True)
    return TrainableWeights(dict(model.named_parameters()), FULL_FILE, {})


# ---- an adapter --------------------------------------------------------------------------------------------------


class RowsUnknown(Exception):
    """A layer is not given rows x tokens x features, so that it is unknown which adapter is whose."""


@attrs.frozen(eq=False)
class Matrices:
    """The A and B of an adapter in one layer."""

    down: nn.Parameter
    up: nn.Parameter
    scale: float

    def added(self, x: Tensor) -> Tensor:
        same = x.dtype is self.down.dtype
        inner = functional.linear(x, self.down) if same else _Inner.apply(x, self.down)
        return functional.linear(inner, self.up) * self.scale


class TrainedLinear(LoraLinear):
    """base(x) + scale x (x A^T) B^T with the A and B that are in use; without any, base(x).

    Several adapters may be in use at a time, each for so many rows, one after the other. The weights of the one that is
    used alone are among the network's parameters, as its memory is measured by them.
    """

    down: nn.Parameter | None
    up: nn.Parameter | None

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.use(None)

    def use(self, used: Matrices | None) -> None:
        self.down, self.up = (None, None) if used is None else (used.down, used.up)
        self._used = used
        self._each: Sequence[Matrices | None] = ()
        self._rows: list[int] = []

    def use_each(self, used: Sequence[Matrices | None], rows: Sequence[int]) -> None:
        self.use(None)
        self._each, self._rows = used, list(rows)

    def added(self, x: Tensor) -> Tensor | None:
        if not self._each:
            return None if self._used is None else self._used.added(x)
        if x.ndim != 3 or len(x) != sum(self._rows):
            raise RowsUnknown
        parts = zip(self._each, x.split(self._rows), strict=True)
        return torch.cat(
            [
                part.new_zeros(*part.shape[:-1], self.out_features) if one is None else one.added(part)
                for one, part in parts
            ]
        )


class _Inner(torch.autograd.Function):
    """x A^T in the precision of A, which differs from the precision of x.

    Derivatives keep x itself, which several projections share: a copy for each would be a third of the memory that a
    network of 16 bits keeps.
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


@attrs.frozen(eq=False)
class AdapterWeights(TrainableWeights):
    """The parameters of an adapter, and the layers to which they belong."""

    layers: Mapping[str, TrainedLinear]
    shape: LoraShape

    def select(self, used: bool = True) -> None:
        for name, layer in self.layers.items():
            layer.use(self.matrices(name) if used else None)

    def add_gradients(self, gradients: Weights) -> None:
        for name, gradient in gradients.items():
            parameter = self.named[name]
            if parameter.grad is None:
                parameter.grad = gradient.contiguous()
            else:
                parameter.grad += gradient

    def matrices(self, layer: str) -> Matrices | None:
        """Return those of a layer; None if the adapter does not change it."""
        if layer not in self.layers:
            return None
        down, up = (self.named[one] for one in names_of(layer))
        return Matrices(down, up, self.shape.alpha / self.shape.rank)


def names_of(layer: str) -> tuple[str, str]:
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def attach_adapter(model: nn.Module, shape: LoraShape, seed: int, base_model: str) -> AdapterWeights:
    """Make an adapter and have the network's projections use it; they are replaced in place, once.

    The seed initialises A, and B starts at 0, so that nothing changes at first. The weights have the names that peft
    and vLLM know. Raises `TrainingError` if the network has no such projections.
    """
    found = shape.resolve(model)
    if not found.targets and not (shape.targets and _names(model)):
        raise TrainingError(
            "this base model has no linear layer, so an adapter has no place; add it again under another id with "
            "tuning='full', if it is small"
        )
    if missing := sorted(set(shape.targets) - set(found.targets)):
        raise TrainingError(f"this base model has no linear layer named {missing[0]}; it has {_names(model)}")
    generator = torch.Generator().manual_seed(seed)
    named: dict[str, nn.Parameter] = {}
    layers: dict[str, TrainedLinear] = {}
    for name, _ in found.layers(model):
        layer = layers[name] = _trained_linear(model, name)
        named |= zip(names_of(name), _first_weights(layer, found.rank, generator), strict=True)
    adapter = AdapterWeights(named, WEIGHTS_FILE, {CONFIG_FILE: found.config(base_model)}, layers, found)
    adapter.select()
    return adapter


def _names(model: nn.Module) -> str:
    return ", ".join(LoraShape().resolve(model).targets)


def _trained_linear(model: nn.Module, name: str) -> TrainedLinear:
    layer: Any = model.get_submodule(name)
    if not isinstance(layer, TrainedLinear):
        layer = TrainedLinear(layer)
        put_in(model, name, layer)
    return layer


def _first_weights(layer: TrainedLinear, rank: int, generator: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    bound = 1 / math.sqrt(layer.in_features)
    drawn = torch.rand(rank, layer.in_features, generator=generator) * 2 * bound - bound
    device = layer.weight.device
    return nn.Parameter(drawn.to(device)), nn.Parameter(torch.zeros(layer.out_features, rank, device=device))
