"""Weights of a base model with what a checkpoint has learned: one tensor at a time, so that no more is in memory."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from modelyard.parts.torch.exports.stored_weights import Layout, StoredWeights, refused
from modelyard.parts.torch.exports.taken import TakenCheckpoint
from modelyard.parts.torch.lora import CONFIG_FILE, PREFIX, WEIGHTS_FILE, LoraShape, read_tensors
from modelyard.parts.torch.network import FULL_FILE


class MergedWeights:
    """The weights of a checkpoint, merged into those of its base model.

    `tensors` has the type and shape of each. Sums are in 32-bit floats, and then rounded to `dtype`, by default to the
    one in which the base stores the tensor. Raises `InvalidInput` for a family that stores weights in another form.
    """

    def __init__(self, taken: TakenCheckpoint, dtype: torch.dtype | None = None) -> None:
        folder = Path(taken.base.path)
        self.layout = Layout(folder)
        self.unties_head: bool = False
        """Whether the head has weights of its own now, and those of the base model's are its embeddings."""
        self._architecture = taken.base.architecture
        self._stored = StoredWeights(folder)
        self._sources: dict[str, str] = {name: name for name in self._stored.tensors}
        self._learned: dict[str, Tensor] = {}
        self._added: dict[str, tuple[Tensor, Tensor, float]] = {}
        if FULL_FILE in taken.files:
            self._read_all(taken)
        elif taken.files:
            self._read_adapter(taken)
        self.tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] = {
            name: self._form(source, dtype) for name, source in self._sources.items()
        }

    def _form(self, source: str, dtype: torch.dtype | None) -> tuple[torch.dtype, tuple[int, ...]]:
        stored = self._stored.tensors[source]
        return (dtype if dtype is not None and stored.dtype.is_floating_point else stored.dtype), stored.shape

    def _read_all(self, taken: TakenCheckpoint) -> None:
        with taken.open_file(FULL_FILE) as file:
            weights = dict(read_tensors(file))
        holds = self.layout.parameters(self._stored.tensors)
        self._learned = {stored: weights[name] for stored, name in holds.items() if name in weights}
        for name in sorted(weights.keys() - holds.values()):
            raise self._in_another_form(name)

    def _read_adapter(self, taken: TakenCheckpoint) -> None:
        with taken.open_file(CONFIG_FILE) as file:
            shape = LoraShape.from_config(file.read())
        with taken.open_file(WEIGHTS_FILE) as file:
            weights = read_tensors(file)
        for layer in sorted({name.removeprefix(PREFIX).partition(".lora_")[0] for name in weights}):
            down, up = (weights[f"{PREFIX}{layer}.lora_{side}.weight"] for side in "AB")
            self._added[self._place_of(layer)] = (down.float(), up.float(), shape.alpha / shape.rank)

    def _place_of(self, layer: str) -> str:
        """Return the tensor that an adapter's layer is added to."""
        if layer not in self.layout.layers:
            raise self._in_another_form(layer)
        embeddings = self.layout.shared_with_head(self._stored.tensors) if layer == self.layout.head else None
        if embeddings is not None:
            self.unties_head = True
            self._sources[f"{layer}.weight"] = embeddings
            return f"{layer}.weight"
        found = self.layout.stored_as(f"{layer}.weight", self._stored.tensors)
        if found is None:
            raise self._in_another_form(layer)
        return found

    def _in_another_form(self, name: str) -> Exception:
        return refused(
            f"{self._architecture} stores {name} in another form than it is trained in, and is not merged: export the "
            "adapter, and merge it with peft"
        )

    def tensor(self, name: str) -> Tensor:
        """Compute a tensor. Raises `InvalidInput` if it has numbers that its type has not."""
        dtype, _ = self.tensors[name]
        found = self._learned[name] if name in self._learned else self._stored.tensor(self._sources[name])
        if name in self._added:
            down, up, scale = self._added[name]
            more = (up @ down) * scale
            found = found.float() + (more.T if self._is_transposed(name) else more)
        rounded = found.to(dtype)
        if rounded.is_floating_point() and not bool(rounded.isfinite().all()) and bool(found.isfinite().all()):
            raise refused(
                f"{name} has numbers beyond those of {str(dtype).removeprefix('torch.')}; choose another type"
            )
        return rounded.contiguous()

    def _is_transposed(self, name: str) -> bool:
        return any(
            self.layout.stored_as(f"{layer}.weight", {name: None})
            for layer in self.layout.layers
            if self.layout.is_transposed(layer)
        )
