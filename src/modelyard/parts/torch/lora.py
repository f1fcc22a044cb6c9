"""Low-rank adapters (LoRA, arXiv 2106.09685): their files, as peft and vLLM read them, and many of them in one batch.

The bank replaces each linear layer that an adapter may change and adds, for each row of a batch, what that row's
adapter adds: base(x) + (x A^T) B^T with A and B of all adapters stacked. Slot 0 adds nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import attrs

from modelyard.errors import BackendError, MissingExtra

try:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load, save
    from torch import Tensor, nn
    from torch.nn import functional
    from transformers.pytorch_utils import Conv1D
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
TARGETS = ("down_proj", "gate_proj", "gate_up_proj", "k_proj", "o_proj", "q_proj", "qkv_proj", "up_proj", "v_proj")
"""The projections of attention and feed-forward layers, under the names of nearly all architectures."""

_PASSED_OVER = {"out_proj"}
"""Mamba passes these weights to a kernel instead of calling the layer; peft refuses them."""

_ODD = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication")
"""Settings of adapters that are not served."""

PREFIX = "base_model.model."
"""The prefix that peft adds to the names of a model's layers."""


@attrs.frozen
class LoraShape:
    """The rank of an adapter, the numerator of its scale (alpha / rank), and the layers it changes.

    If no layers are named: those with names in `TARGETS`, or all linear layers if the model has none of these. The head
    is changed only if it is named.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()

    def resolve(self, model: nn.Module) -> "LoraShape":
        named = {_leaf(name) for name, _ in linear_layers(model)}
        if self.targets:
            named = (named | {_leaf(name) for name, _ in head_layer(model)}) & set(self.targets)
        else:
            named -= _fused_expert_names(model) | _PASSED_OVER
            named = named & set(TARGETS) or named
        return attrs.evolve(self, targets=tuple(sorted(named)))

    def layers(self, model: nn.Module) -> "list[tuple[str, nn.Linear]]":
        every = [*linear_layers(model), *head_layer(model)]
        return [(name, layer) for name, layer in every if _leaf(name) in self.targets]

    def config(self, base_model: str) -> bytes:
        """Return the adapter's configuration file: equal adapters give equal bytes."""
        fields = {
            "base_model_name_or_path": base_model,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": sorted(self.targets),
            "task_type": "CAUSAL_LM",
            "use_dora": False,
            "use_rslora": False,
        }
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_config(cls, text: bytes) -> "LoraShape":
        """Parse a configuration file. Raises `BackendError` for anything but a plain LoRA."""
        try:
            fields = json.loads(text)
            shape = cls(int(fields["r"]), int(fields["lora_alpha"]), tuple(sorted(fields["target_modules"])))
            if (fields["peft_type"], fields["lora_alpha"]) != ("LORA", shape.alpha) or shape.rank < 1:
                raise ValueError("peft_type must be LORA, r and lora_alpha whole numbers")
        except (ValueError, KeyError, TypeError, OverflowError) as fault:
            raise BackendError(f"{CONFIG_FILE} is not the configuration of a LoRA adapter: {fault}") from None
        odd = [name for name in _ODD if fields.get(name)]
        if odd or fields.get("bias", "none") != "none":
            raise BackendError(f"{CONFIG_FILE} asks for {', '.join(odd) or 'biases'}, which is not served")
        return shape


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _fused_expert_names(model: nn.Module) -> set[str]:
    """Return module names to skip: peft would wrongly match them if experts are stacked in one weight."""
    stacked = any(
        name.endswith("experts") and any(True for _ in module.parameters(recurse=False))
        for name, module in model.named_modules()
    )
    return {"gate_proj", "up_proj", "down_proj", "gate_up_proj"} if stacked else set()


@attrs.define
class SlotSelection:
    """The adapter slot of each row of the current pass: one for all rows, or looked up in `rows`.

    `rows` holds one slot for each row, or one for all.
    """

    uniform: int = 0
    rows: Tensor | None = None


_LINEAR = (nn.Linear, Conv1D)
"""The kinds of linear layers; that of GPT-2 has its weights transposed."""


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers that an adapter may change, with their names: all linear layers of the text model except the
    head.

    They are the layers of the base model, even if LoRA versions have replaced them.
    """
    reading = set(getattr(model, "get_decoder", lambda: model)().modules())
    head, inner = _head(model), set()
    for name, module in model.named_modules():
        plain = _plain(module)
        if isinstance(plain, _LINEAR) and module in reading and plain is not head and module not in inner:
            inner.add(plain)
            yield name, plain


def head_layer(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Return the layer that makes logits, with its name; an empty list if it is not a linear layer of the model's."""
    head = _head(model)
    found = [name for name, module in model.named_modules() if head is not None and _plain(module) is head]
    return [(found[0], head)] if isinstance(head, nn.Linear) and found else []


def _head(model: nn.Module) -> nn.Module | None:
    head: nn.Module | None = getattr(model, "get_output_embeddings", lambda: None)()
    return None if head is None else _plain(head)


def _plain(module: nn.Module) -> nn.Module:
    return module.base if isinstance(module, LoraLinear) else module


def _sizes(layer: nn.Linear) -> tuple[int, int]:
    """Return the number of inputs and of outputs."""
    if isinstance(layer, Conv1D):
        first, second = layer.weight.shape
        return first, second
    return layer.in_features, layer.out_features


class LoraLinear(nn.Module):
    """Replaces a linear layer, and adds what `added` returns to its results.

    It shows that layer's weights, as some layers read the weights of others.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.in_features: int
        self.out_features: int
        self.in_features, self.out_features = _sizes(base)

    def added(self, x: Tensor) -> Tensor | None:
        """Return what to add to the layer's results, or None for nothing."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to rows x tokens x features, or tokens x features."""
        found, more = self.base(x), self.added(x)
        return found if more is None else found + more.to(found.dtype)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias


def put_in(model: nn.Module, name: str, layer: LoraLinear) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)


class BankedLinear(LoraLinear):
    """A linear layer with the adapters of every slot."""

    def __init__(self, base: nn.Linear, slots: int, selection: SlotSelection) -> None:
        super().__init__(base)
        self.selection = selection
        self.down: Tensor = base.weight.new_zeros(slots, 0, self.in_features)
        self.up: Tensor = base.weight.new_zeros(slots, self.out_features, 0)

    def widen(self, rank: int) -> bool:
        """Make room for adapters of this rank, keeping those that are loaded; return whether there was less room."""
        more = rank - self.down.shape[1]
        if more > 0:  # allocate both or, without memory, none
            wider = functional.pad(self.down, (0, 0, 0, more)), functional.pad(self.up, (0, more))
            self.down, self.up = wider
        return more > 0

    def added(self, x: Tensor) -> Tensor | None:
        """Return what each row's adapter adds; a row may be one token."""
        selection = self.selection
        if selection.rows is not None:
            each = x[:, None] if x.ndim == 2 else x
            inner = torch.einsum("bqi,bri->bqr", each, self.down[selection.rows])
            return torch.einsum("bqr,bor->bqo", inner, self.up[selection.rows]).reshape(*x.shape[:-1], -1)
        if selection.uniform == 0:
            return None
        inner = functional.linear(x, self.down[selection.uniform])
        return functional.linear(inner, self.up[selection.uniform])


class AdapterBank:
    """Room for `slots` adapters of up to `rank` in a network, which it changes in place.

    For every slot, a layer takes as much memory as its largest adapter so far: none before the first one.
    """

    def __init__(self, model: nn.Module, slots: int, rank: int) -> None:
        self.selection: SlotSelection = SlotSelection()
        self.slots: int = slots
        self.rank: int = rank
        self.version: int = 0
        """Incremented when adapters move to other addresses."""
        self._model, self._plain = model, dict([*linear_layers(model), *head_layer(model)])
        self._head, self._of_head = {name for name, _ in head_layer(model)}, SlotSelection()
        self._device = next(model.parameters()).device
        self._layers: dict[str, BankedLinear] = {}

    def load(self, slot: int, shape: LoraShape, weights: Mapping[str, Tensor]) -> None:
        """Put an adapter's weights into a slot that no running row uses. Raises `BackendError`."""
        changed = self._changed(shape, weights)
        for layer in self._layers.values():
            layer.down[slot].zero_()
            layer.up[slot].zero_()
        for name, (down, up) in changed.items():
            layer = self._widened(name, shape.rank)
            layer.down[slot, : shape.rank] = down.to(layer.down)
            layer.up[slot, :, : shape.rank] = up.to(layer.up) * (shape.alpha / shape.rank)

    def _changed(self, shape: LoraShape, weights: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the two matrices of each layer that an adapter changes. Raises `BackendError` if they do not fit."""
        if shape.rank > self.rank:
            raise BackendError(f"an adapter of rank {shape.rank} does not fit; the host's Room takes up to {self.rank}")
        left, changed = dict(weights), {}
        for name, layer in self._plain.items():
            names = f"{PREFIX}{name}.lora_A.weight", f"{PREFIX}{name}.lora_B.weight"
            if all(one in left for one in names):
                down, up = changed[name] = left.pop(names[0]), left.pop(names[1])
                inner, outer = _sizes(layer)
                if (*down.shape, *up.shape) != (shape.rank, inner, outer, shape.rank):
                    raise BackendError("the adapter was trained on another base model: its shapes do not fit this one")
        if left:
            raise BackendError(f"the adapter changes {min(left)!r}, which this base model does not have")
        return changed

    def _widened(self, name: str, rank: int) -> BankedLinear:
        """Return the layer of this name with room for an adapter; layers without adapters are not replaced."""
        layer = self._layers.get(name)
        if layer is None:
            selection = self._of_head if name in self._head else self.selection
            layer = self._layers[name] = BankedLinear(self._plain[name], self.slots, selection)
            put_in(self._model, name, layer)
        self.version += layer.widen(rank)
        return layer

    def select(self, slots: Sequence[int]) -> None:
        self._select(self.selection, slots)

    def select_of_head(self, slots: Sequence[int]) -> None:
        if not self._head.isdisjoint(self._layers):
            self._select(self._of_head, slots)

    def _select(self, selection: SlotSelection, slots: Sequence[int]) -> None:
        if len(set(slots)) == 1:
            selection.uniform, selection.rows = slots[0], None
        else:
            selection.rows = torch.tensor(slots, device=self._device)

    def look_up(self, slots: Tensor) -> None:
        self.selection.uniform, self.selection.rows = 0, slots if len(slots) else None


def read_tensors(file: BinaryIO) -> Mapping[str, Tensor]:
    try:
        return load(file.read())
    except SafetensorError as fault:
        raise ValueError(f"not a safetensors file: {fault}") from None


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a safetensors file; equal tensors under equal names give equal bytes."""
    return save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})
