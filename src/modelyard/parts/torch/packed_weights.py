"""32-bit weights of linear layers as a processor multiplies them fastest.

oneDNN packs them for blocks of tokens. Layers that are given the same are one product: the query, key and value of an
attention layer, for one. Values stay, to the last bit, and what a packed layer gives for a token does not depend on the
tokens beside it, as it does with plain weights in the last digit.
"""

from collections.abc import Callable, Sequence
from functools import cache
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelyard.parts.torch.lora import LoraLinear, head_layer, linear_layers
from modelyard.parts.torch.mapped_weights import page_out, trim, use_huge_pages

BLOCK = 6
"""Copies of a lone token that are multiplied, as many as one block has: reading the weights takes all of the time. So a
token alone also gives what it gives among others."""

SMALLEST = 2**17
"""Fewer weights are multiplied sooner than oneDNN is called: such layers stay plain."""

FEW = 8
"""So many tokens, at most, are multiplied faster as W x^T than as x W^T, with plain weights."""


class PackedWeights:
    """Weights of layers that are given the same, one below the other; `held` is what those of one model hold."""

    def __init__(self, layers: Sequence[nn.Linear], held: object = None) -> None:
        self._inputs, self._outputs = layers[0].in_features, [layer.out_features for layer in layers]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat([one.weight.data for one in layers]), None)
        biases = [one.weight.new_zeros(one.out_features) if one.bias is None else one.bias.data for one in layers]
        self._bias = torch.cat(biases) if any(one.bias is not None for one in layers) else None
        self._left: tuple[Tensor | None, Sequence[Tensor]] = None, ()
        self._held = held

    @property
    def block(self) -> tuple[int, int]:
        """The address and the size of its memory, in bytes."""
        return torch.ops.mkldnn.data_ptr(self._packed), torch.ops.mkldnn._nbytes(self._packed)

    def holds(self, layers: Sequence[nn.Module]) -> bool:
        """Whether these are all of its layers, in their order."""
        return len(layers) == len(self._outputs) and all(
            isinstance(layer, PackedLinear) and layer.packed is self and layer.at == at
            for at, layer in enumerate(layers)
        )

    def plain(self, at: int) -> Tensor:
        """Return the weights of a layer in their usual order, made anew."""
        every: Tensor = self._packed.to_dense()
        return every.split(self._outputs)[at]

    def product(self, x: Tensor, at: int) -> Tensor:
        """Return what the layer `at` gives. What the others give of the same tensor waits until the last is asked.

        The first is computed anew each time: the tensor may have other numbers by then.
        """
        if len(self._outputs) == 1:
            return self.joint(x)
        known, found = self._left
        if known is not x or at == 0:
            found = self.joint(x).split(self._outputs, -1)
        self._left = (x, found) if at + 1 < len(self._outputs) else (None, ())
        return found[at]

    def joint(self, x: Tensor) -> Tensor:
        """Return what all layers give of `x` (... x inputs), side by side."""
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

    def forward(self, input: Tensor) -> Tensor:
        if input.requires_grad:
            return functional.linear(input, self.weight, self.bias)
        return self.packed.product(input, self.at)


class TiedHead(nn.Linear):
    """A head whose weights are the embeddings: they stay by rows, as they are looked up, and are in memory once."""

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(-1, self.in_features)
        if input.requires_grad or not 1 <= len(flat) <= FEW:
            return super().forward(input)
        columns = functional.pad(flat, (0, 0, 0, 1)) if len(flat) == 1 else flat  # one alone takes twice as long
        found = torch.mm(self.weight, columns.T)[:, : len(flat)].T.contiguous()
        return (found if self.bias is None else found + self.bias).view(*input.shape[:-1], -1)


def joint_product(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return what linear layers give of `x` (rows x tokens x inputs), side by side, with what adapters add.

    It is one product if they are packed together. Without derivatives.
    """
    plain = [layer.base if isinstance(layer, LoraLinear) else layer for layer in layers]
    first = plain[0]
    if isinstance(first, PackedLinear) and first.packed.holds(plain):
        found = first.packed.joint(x)
    else:
        found = torch.cat([layer(x) for layer in plain], -1)
    start = 0
    for layer in layers:
        end = start + layer.out_features
        if isinstance(layer, LoraLinear) and (more := layer.added(x)) is not None:
            found[..., start:end] += more
        start = end
    return found


def pack_layers(layers: Sequence[nn.Linear], packed: PackedWeights | None = None) -> None:
    """Pack layers that are given the same, in place, so that whoever has them, as adapters do, has them packed.

    `packed` are their weights, if known. The memory of mapped weights is given back.
    """
    packed = packed or PackedWeights(layers)
    for at, layer in enumerate(layers):
        page_out(layer.weight.data)
        del layer.weight
        layer.__class__ = PackedLinear
        layer.packed, layer.at = packed, at


def pack(model: nn.Module, embeddings: Tensor, read: Callable[[], object]) -> None:
    """Pack the weights of the large linear layers that an adapter may change; those that layers share are packed once.

    A head whose weights are the embeddings keeps them, and so do layers whose weights the model reads instead of
    calling them. `read` has the model read two tokens, which shows what layers are given the same. The memory of the
    packed weights is given back with the model.
    """
    layers = [layer for _, layer in (*linear_layers(model), *head_layer(model)) if type(layer) is nn.Linear]
    known: dict[tuple[int, ...], PackedWeights] = {}  # by the ids of what the model has before: no two are the same
    held = set[object]()
    finalize(held, trim).atexit = False
    for together in _given_the_same(model, [layer for layer in layers if layer.weight is not embeddings], read):
        if sum(layer.weight.numel() for layer in together) >= SMALLEST:
            key = tuple(id(one) for layer in together for one in (layer.weight, layer.bias))
            if key not in known:
                known[key] = PackedWeights(together, held)
            pack_layers(together, known[key])
    for layer in layers:
        if type(layer) is nn.Linear and layer.weight is embeddings and embeddings.numel() >= SMALLEST:
            layer.__class__ = TiedHead
    trim()
    if hasattr(torch.ops.mkldnn, "data_ptr"):
        use_huge_pages(one.block for one in known.values())


def _given_the_same(model: nn.Module, layers: Sequence[nn.Linear], read: Callable[[], object]) -> list[list[nn.Linear]]:
    """Return the layers in groups: those of one module that are called with one tensor, one after the other.

    Those whose weights are read are left out. Each is alone if the model cannot go on with a part of a product.
    """
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []
    read_from = set[nn.Linear]()
    watched = _watched(calls, read_from)
    for layer in layers:
        layer.__class__ = watched
    made: Sequence[tuple[nn.Linear, Tensor, Tensor]] = ()
    try:
        read()
        made = tuple(calls)
    except RuntimeError:
        pass
    finally:
        left = dict.fromkeys(layer for layer in layers if layer not in read_from)
        for layer in layers:
            layer.__class__ = nn.Linear
        calls.clear()  # a class is in a cycle: what it notes would be in memory until garbage is collected
        read_from.clear()
    groups: list[list[nn.Linear]] = []
    given, numbers = None, torch.empty(0)
    for layer, x, copy in made:
        if layer not in left:
            continue
        del left[layer]
        if x is given and torch.equal(copy, numbers) and parents[layer] is parents[groups[-1][0]]:
            groups[-1].append(layer)
        else:
            groups.append([layer])
        given, numbers = x, copy
    return [*groups, *([layer] for layer in left)]


def _watched(calls: list[tuple[nn.Linear, Tensor, Tensor]], read: set[nn.Linear]) -> type[nn.Linear]:
    """Return a kind of linear layers that note what they are called with, its numbers, and whose weights are read.

    What they return lies apart, as parts of a product do.
    """

    class Watched(nn.Linear):
        @property
        def weight(self) -> Tensor:
            read.add(self)
            return self._parameters["weight"]

        def forward(self, input: Tensor) -> Tensor:
            calls.append((self, input, input.clone()))
            found = functional.linear(input, self._parameters["weight"], self.bias)
            return torch.cat((found, found), -1)[..., : self.out_features]

    return Watched


@cache
def can_pack() -> bool:
    """Return whether this build of torch packs weights, and multiplies with them as with plain ones, a token alone as
    among others.
    """
    draw = torch.Generator().manual_seed(0)
    weight, x = (torch.rand(rows, 96, generator=draw, dtype=torch.float32) for rows in (40, 3))
    layer = nn.Linear(96, 40, bias=False, device="meta")  # which draws nothing of the program's
    layer.weight = nn.Parameter(weight)
    try:
        with torch.inference_mode():
            pack_layers([layer])
            found = layer(x)
            same = torch.equal(layer.weight, weight) and torch.allclose(found, x @ weight.T, atol=1e-5)
            return same and all(torch.equal(layer(x[row : row + 1])[0], found[row]) for row in range(len(x)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
