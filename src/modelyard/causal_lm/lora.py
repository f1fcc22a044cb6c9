"""Low-rank adapters (LoRA, arXiv 2106.09685): their files, as peft and vLLM read them, and many of them in one batch.

The bank stands in for each linear layer that an adapter may change and adds, for each row of a batch, what that row's
adapter adds: base(x) + (x A^T) B^T with A and B of all adapters stacked. Slot 0 adds nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelyard.errors import BackendError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
TARGETS = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
"""The projections of attention and feed-forward layers, by the names that nearly all architectures give them."""

_ODD = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication")

PREFIX = "base_model.model."
"""What peft puts before the names of a model's layers."""


@attrs.frozen
class LoraShape:
    """The rank of an adapter, what its product is scaled with (alpha / rank), and which projections it changes."""

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = TARGETS

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


@attrs.define
class Selection:
    """Which slot each row of the pass under way uses: one for all, or those that are looked up in `rows`: one for each
    row, or one for all."""

    uniform: int = 0
    rows: Tensor | None = None


class BankedLinear(nn.Module):
    """A linear layer with the adapters of every slot beside it."""

    def __init__(self, base: nn.Linear, slots: int, selection: Selection) -> None:
        super().__init__()
        self.base, self.selection = base, selection
        self.down = base.weight.new_zeros(slots, 0, base.in_features)
        self.up = base.weight.new_zeros(slots, base.out_features, 0)

    def widen(self, more: int) -> None:
        """Make room for adapters of so much higher a rank; those that are there stay."""
        self.down = functional.pad(self.down, (0, 0, 0, more))
        self.up = functional.pad(self.up, (0, more))

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

    Every slot takes as much memory as the largest adapter that has come: none, while none has.
    """

    def __init__(self, model: nn.Module, slots: int, rank: int, targets: Sequence[str] = TARGETS) -> None:
        self.selection, self.slots, self.rank = Selection(), slots, rank
        self.version = 0
        """Grows when adapters come to lie elsewhere."""
        self._wide = 0
        self.layers = dict(_put_in(model, slots, targets, self.selection))

    def load(self, slot: int, shape: LoraShape, weights: Mapping[str, Tensor]) -> None:
        """Put an adapter's weights into a slot that no row of a pass under way uses. Raises `BackendError`."""
        if shape.rank > self.rank:
            raise BackendError(f"an adapter of rank {shape.rank} does not fit; the host's Room takes up to {self.rank}")
        left = set(weights)
        self._widen(shape.rank)
        for name, layer in self.layers.items():
            pair = [f"{PREFIX}{name}.lora_{side}.weight" for side in "AB"]
            layer.down[slot].zero_()
            layer.up[slot].zero_()
            if pair[0] in weights and pair[1] in weights:
                _copy(layer, slot, weights[pair[0]], weights[pair[1]], shape)
                left -= set(pair)
        if left:
            raise BackendError(f"the adapter changes {sorted(left)[0]!r}, which this base model does not have")

    def _widen(self, rank: int) -> None:
        if rank > self._wide:
            self.version += 1
            for layer in self.layers.values():
                layer.widen(rank - layer.down.shape[1])
            self._wide = rank

    def select(self, slots: Sequence[int]) -> None:
        """Say which slot each row of the next pass uses."""
        if len(set(slots)) == 1:
            self.selection.uniform, self.selection.rows = slots[0], None
        else:
            device = next(iter(self.layers.values())).down.device
            self.selection.rows = torch.tensor(slots, device=device)

    def look_up(self, slots: Tensor) -> None:
        """Say where the next pass finds them, at whatever time it is made: one for all rows, one for each, or none."""
        self.selection.uniform, self.selection.rows = 0, slots if len(slots) else None


def _put_in(
    model: nn.Module, slots: int, targets: Sequence[str], selection: Selection
) -> Iterator[tuple[str, BankedLinear]]:
    for name, module in list(model.named_modules()):
        parent, _, leaf = name.rpartition(".")
        if isinstance(module, nn.Linear) and leaf in targets:
            layer = BankedLinear(module, slots, selection)
            setattr(model.get_submodule(parent), leaf, layer)
            yield name, layer


def _copy(layer: BankedLinear, slot: int, down: Tensor, up: Tensor, shape: LoraShape) -> None:
    rank, features = down.shape
    if (rank, features) != (shape.rank, layer.base.in_features) or up.shape != (layer.base.out_features, rank):
        raise BackendError("the adapter was trained on another base model: its shapes do not fit this one")
    layer.down[slot, :rank] = down.to(layer.down)
    layer.up[slot, :, :rank] = up.to(layer.up) * (shape.alpha / shape.rank)
