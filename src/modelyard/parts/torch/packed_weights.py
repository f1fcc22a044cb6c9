"""32-bit weights of linear layers as a processor multiplies them fastest.

oneDNN packs them for blocks of tokens. Layers that are given the same are one product: the query, key and value of an
attention layer, for one. Values stay, to the last bit, and what a packed layer gives for a token does not depend on the
tokens beside it, as it does with plain weights in the last digit.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelyard.parts.torch.mapped_weights import page_out, trim

BLOCK = 6
"""Copies of a lone token that are multiplied, as many as one block has: reading the weights takes all of the time. So a
token alone also gives what it gives among others."""

SMALLEST = 2**17
"""Fewer weights are multiplied sooner than oneDNN is called: such layers stay plain."""

FEW = 8
"""So many tokens, at most, are multiplied faster as W x^T than as x W^T, with plain weights."""


class PackedWeights:
    """Weights of layers that are given the same, one below the other."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._inputs, self._outputs = layers[0].in_features, [layer.out_features for layer in layers]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat([one.weight.data for one in layers]), None)
        biases = [one.bias.data if one.bias is not None else torch.zeros(one.out_features) for one in layers]
        self._bias = torch.cat(biases) if any(one.bias is not None for one in layers) else None
        self._left: tuple[Tensor | None, Sequence[Tensor]] = None, ()

    def plain(self, at: int) -> Tensor:
        """Return the weights of a layer in their usual order, made anew."""
        every: Tensor = self._packed.to_dense()
        return every.split(self._outputs)[at]

    def product(self, x: Tensor, at: int) -> Tensor:
        """Return what the layer `at` gives. What the others give of the same tensor waits until the last is asked."""
        known, found = self._left
        if known is not x:
            found = self._product(x).split(self._outputs, -1)
        self._left = (x, found) if at + 1 < len(self._outputs) else (None, ())
        return found[at]

    def _product(self, x: Tensor) -> Tensor:
        found: Tensor
        if x.numel() != self._inputs:
            found = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return found
        copies = x.reshape(1, -1).expand(BLOCK, -1)
        found = torch.ops.mkldnn._linear_pointwise(copies, self._packed, self._bias, "none", [], "")
        return found[0].view(*x.shape[:-1], -1)


class PackedLinear(nn.Linear):
    """A linear layer without weights of its own. What has derivatives is computed as usual."""

    packed: PackedWeights
    at: int

    @property
    def weight(self) -> Tensor:
        """The weights in their usual order, made anew each time: for layers that read the weights of others."""
        return self.packed.plain(self.at)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return functional.linear(x, self.weight, self.bias)
        return self.packed.product(x, self.at)


class TiedHead(nn.Linear):
    """A head whose weights are the embeddings: they stay by rows, as they are looked up, and are in memory once."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        if x.requires_grad or not 1 <= len(flat) <= FEW:
            return super().forward(x)
        columns = functional.pad(flat, (0, 0, 0, 1)) if len(flat) == 1 else flat  # one alone takes twice as long
        found = torch.mm(self.weight, columns.T)[:, : len(flat)].T.contiguous()
        return (found if self.bias is None else found + self.bias).view(*x.shape[:-1], -1)


def pack_layers(layers: Sequence[nn.Linear]) -> None:
    """Pack layers that are given the same, in place, so that whoever has them, as adapters do, has them packed.

    The memory of mapped weights is given back.
    """
    packed = PackedWeights(layers)
    for at, layer in enumerate(layers):
        page_out(layer.weight.data)
        del layer.weight
        layer.__class__ = PackedLinear
        layer.packed, layer.at = packed, at


def pack(model: nn.Module, embeddings: Tensor, read: Callable[[], object]) -> None:
    """Pack the weights of a model's large linear layers. A head whose weights are the embeddings keeps them.

    `read` has the model read something, which shows what layers are given the same.
    """
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    for together in _given_the_same(model, layers, read):
        if sum(layer.weight.numel() for layer in together) < SMALLEST:
            continue
        if any(layer.weight is embeddings for layer in together):
            together[0].__class__ = TiedHead
        else:
            pack_layers(together)
    trim()


def _given_the_same(model: nn.Module, layers: Sequence[nn.Linear], read: Callable[[], object]) -> list[list[nn.Linear]]:
    """Return the layers in groups: those of one module that are called with one tensor, one after the other."""
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    calls: list[tuple[nn.Linear, Tensor]] = []
    hooks = [one.register_forward_pre_hook(lambda layer, given: calls.append((layer, given[0]))) for one in layers]
    try:
        read()
    finally:
        for hook in hooks:
            hook.remove()
    groups: list[list[nn.Linear]] = []
    given, left = None, dict.fromkeys(layers)
    for layer, x in calls:
        if layer not in left:
            continue
        del left[layer]
        if x is given and parents[layer] is parents[groups[-1][0]]:
            groups[-1].append(layer)
        else:
            groups.append([layer])
        given = x
    return [*groups, *([layer] for layer in left)]


@cache
def can_pack() -> bool:
    """Return whether this build of torch packs weights, and multiplies with them as with plain ones, a token alone as
    among others.
    """
    draw = torch.Generator().manual_seed(0)
    plain, packed, x = nn.Linear(96, 40), nn.Linear(96, 40), torch.rand(3, 96, generator=draw)
    try:
        with torch.inference_mode():
            packed.load_state_dict(plain.state_dict())
            pack_layers([packed])
            found = packed(x)
            same = torch.equal(packed.weight, plain.weight) and torch.allclose(found, plain(x), atol=1e-5)
            return same and all(torch.equal(packed(x[row : row + 1])[0], found[row]) for row in range(len(x)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
