"""Low-rank adapters (LoRA, arXiv 2106.09685): their files, as peft and vLLM read them, and many of them in one batch.

The bank stands in for each linear layer that an adapter may change and adds, for each row of a batch, what that row's
adapter adds: base(x) + (x A^T) B^T with A and B of all adapters stacked. Slot 0 adds nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from modelyard.errors import BackendError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
TARGETS = ("down_proj", "gate_proj", "gate_up_proj", "k_proj", "o_proj", "q_proj", "qkv_proj", "up_proj", "v_proj")
"""The projections of attention and feed-forward layers, by the names that nearly all architectures give them."""

_PASSED_OVER = {"out_proj"}
"""Mamba gives its weights to a kernel and does not ask the layer; peft refuses it."""

_ODD = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication")

PREFIX = "base_model.model."
"""What peft puts before the names of a model's layers."""


@attrs.frozen
class LoraShape:
    """The rank of an adapter, what its product is scaled with (alpha / rank), and which layers it changes: if none are
    named, those of a model that have names among `TARGETS`, or all its linear layers where none has.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()

    def around(self, model: nn.Module) -> "LoraShape":
        """This shape with the names that it has in a model: none where the model has no such layer."""
        named = {name.rpartition(".")[2] for name, _ in linear_layers(model)}
        if self.targets:
            named &= set(self.targets)
        else:
            named -= _fused_expert_names(model) | _PASSED_OVER
            named = named & set(TARGETS) or named
        return attrs.evolve(self, targets=tuple(sorted(named)))

    def layers(self, model: nn.Module) -> "list[tuple[str, nn.Linear]]":
        """The layers of a model that it changes, by their names."""
        return [(name, layer) for name, layer in linear_layers(model) if name.rpartition(".")[2] in self.targets]

    def config(self, base_model: str) -> bytes:
        """The adapter's configuration file: equal adapters give equal bytes."""
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
        """Read such a file. Raises `BackendError` for anything but a plain LoRA."""
        try:
            fields = json.loads(text)
            shape = cls(int(fields["r"]), int(fields["lora_alpha"]), tuple(sorted(fields["target_modules"])))
            if (fields["peft_type"], fields["lora_alpha"]) != ("LORA", shape.alpha) or shape.rank < 1:
                raise ValueError("peft_type must be LORA, r and lora_alpha whole numbers")
        except (ValueError, KeyError, TypeError, OverflowError) as fault:
            raise BackendError(f"{CONFIG_FILE} is no configuration of a LoRA adapter: {fault}") from None
        odd = [name for name in _ODD if fields.get(name)]
        if odd or fields.get("bias", "none") != "none":
            raise BackendError(f"{CONFIG_FILE} asks for {', '.join(odd) or 'biases'}, which is not served")
        return shape


def _fused_expert_names(model: nn.Module) -> set[str]:
    """Where experts are one stack of weights and no layers, peft takes these names of what lies beside for theirs."""
    stacked = any(
        name.endswith("experts") and any(True for _ in module.parameters(recurse=False))
        for name, module in model.named_modules()
    )
    return {"gate_proj", "up_proj", "down_proj", "gate_up_proj"} if stacked else set()


@attrs.define
class Selection:
    """Which slot each row of the pass under way uses: one for all, or those that are looked up in `rows`: one for each
    row, or one for all."""

    uniform: int = 0
    rows: Tensor | None = None


_LINEAR = (nn.Linear, Conv1D)
"""Of the two, GPT-2 has the one with its weights the other way round."""


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The layers that an adapter may change, by their names: all linear ones of what reads text, but the head."""
    reading = set(getattr(model, "get_decoder", lambda: model)().modules())
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for name, module in model.named_modules():
        if isinstance(module, _LINEAR) and module in reading and module is not head:
            yield name, module


def _sizes(layer: nn.Linear) -> tuple[int, int]:
    """How many features come in, and how many go out."""
    first, second = layer.weight.shape
    return (first, second) if isinstance(layer, Conv1D) else (second, first)


class LoraLinear(nn.Module):
    """Stands in for a linear layer. Some layers look at the weights of others."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.in_features, self.out_features = _sizes(base)

    @property
    def weight(self) -> Tensor:
        """Those of the layer itself."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """That of the layer itself."""
        return self.base.bias


def put_in(model: nn.Module, name: str, layer: LoraLinear) -> None:
    """Put a layer in the place of the one that it stands in for."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)


class BankedLinear(LoraLinear):
    """A linear layer with the adapters of every slot beside it."""

    def __init__(self, base: nn.Linear, slots: int, selection: Selection) -> None:
        super().__init__(base)
        self.selection = selection
        self.down = base.weight.new_zeros(slots, 0, self.in_features)
        self.up = base.weight.new_zeros(slots, self.out_features, 0)

    def widen(self, rank: int) -> bool:
        """Make room for adapters of this rank; those that are there stay. Returns whether there was less."""
        more = rank - self.down.shape[1]
        if more > 0:  # of both or, where there is no memory, of none
            wider = functional.pad(self.down, (0, 0, 0, more)), functional.pad(self.up, (0, more))
            self.down, self.up = wider
        return more > 0

    def forward(self, x: Tensor) -> Tensor:
        """Rows x tokens x features."""
        y, selection = self.base(x), self.selection
        if selection.rows is not None:
            inner = torch.einsum("bqi,bri->bqr", x, self.down[selection.rows])
            return y + torch.einsum("bqr,bor->bqo", inner, self.up[selection.rows])
        if selection.uniform == 0:
            return y
        inner = functional.linear(x, self.down[selection.uniform])
        return y + functional.linear(inner, self.up[selection.uniform])


class AdapterBank:
    """Room for `slots` adapters of up to `rank` in a network, which it changes in place.

    A layer takes as much memory, for every slot, as the largest adapter of it that has come: none, while none has.
    """

    def __init__(self, model: nn.Module, slots: int, rank: int) -> None:
        self.selection, self.slots, self.rank = Selection(), slots, rank
        self.version = 0
        """Grows when adapters come to lie elsewhere."""
        self._model, self._plain = model, dict(linear_layers(model))
        self._device = next(model.parameters()).device
        self._layers: dict[str, BankedLinear] = {}

    def load(self, slot: int, shape: LoraShape, weights: Mapping[str, Tensor]) -> None:
        """Put an adapter's weights into a slot that no row of a pass under way uses. Raises `BackendError`."""
        changed = self._changed(shape, weights)
        for layer in self._layers.values():
            layer.down[slot].zero_()
            layer.up[slot].zero_()
        for name, (down, up) in changed.items():
            layer = self._widened(name, shape.rank)
            layer.down[slot, : shape.rank] = down.to(layer.down)
            layer.up[slot, :, : shape.rank] = up.to(layer.up) * (shape.alpha / shape.rank)

    def _changed(self, shape: LoraShape, weights: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """The two matrices of each layer that an adapter changes. Raises `BackendError` for one that does not fit."""
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
        """The layer of this name with room for an adapter. Until there is one, a layer is left as it is."""
        layer = self._layers.get(name)
        if layer is None:
            layer = self._layers[name] = BankedLinear(self._plain[name], self.slots, self.selection)
            put_in(self._model, name, layer)
        self.version += layer.widen(rank)
        return layer

    def select(self, slots: Sequence[int]) -> None:
        """Say which slot each row of the next pass uses."""
        if len(set(slots)) == 1:
            self.selection.uniform, self.selection.rows = slots[0], None
        else:
            self.selection.rows = torch.tensor(slots, device=self._device)

    def look_up(self, slots: Tensor) -> None:
        """Say where the next pass finds them, at whatever time it is made: one for all rows, one for each, or none."""
        self.selection.uniform, self.selection.rows = 0, slots if len(slots) else None


def read_tensors(file: BinaryIO) -> Mapping[str, Tensor]:
    """All tensors of a file, on the CPU. Raises ValueError when it is no sound safetensors file."""
    try:
        return load(file.read())
    except SafetensorError as fault:
        raise ValueError(f"no safetensors file: {fault}") from None


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a file; equal tensors under equal names give equal bytes."""
    return save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})
