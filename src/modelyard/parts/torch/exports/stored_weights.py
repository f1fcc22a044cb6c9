"""The weights of a base model as its files store them, one tensor at a time, and the layers they are of."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from modelyard.errors import InvalidInput, MissingExtra
from modelyard.formats.safetensors import read_shapes
from modelyard.parts.torch.loading import LOADING
from modelyard.parts.torch.lora import PREFIX, head_layer, linear_layers
from modelyard.parts.torch.model_folder import WEIGHTS, WEIGHTS_INDEX

try:
    import torch
    from safetensors import safe_open
    from torch import Tensor, nn
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The number formats of weights, by safetensors' words for them."""


@attrs.frozen
class StoredTensor:
    """What the head of a file says of a tensor."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class StoredWeights:
    """The tensors in the safetensors files of a folder. Each is read when it is asked for, and not kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tensors: Mapping[str, StoredTensor] = dict(self._listed())

    def _listed(self) -> Iterator[tuple[str, StoredTensor]]:
        for name in weight_files(self._folder):
            with (self._folder / name).open("rb") as file:
                for tensor, (dtype, shape) in read_shapes(file).items():
                    yield tensor, StoredTensor(name, DTYPES[dtype], shape)

    def tensor(self, name: str) -> Tensor:
        with safe_open(self._folder / self.tensors[name].file, "pt") as file:
            found: Tensor = file.get_tensor(name)
            return found


def weight_files(folder: Path) -> list[str]:
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    return sorted({*json.loads((folder / WEIGHTS_INDEX).read_bytes())["weight_map"].values()})


class Layout:
    """The network of a folder without its weights: its layers, and under which names its files store them."""

    def __init__(self, folder: Path) -> None:
        with LOADING:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            with torch.device("meta"):
                self._model: Any = AutoModelForCausalLM.from_config(config)
        self.config: Any = self._model.config.get_text_config(decoder=True)
        self.layers: Mapping[str, nn.Linear] = dict([*linear_layers(self._model), *head_layer(self._model)])
        self._named = {name: id(one) for name, one in self._model.named_parameters(remove_duplicate=False)}
        self._first: dict[int, str] = {id(one): name for name, one in self._model.named_parameters()}

    @property
    def head(self) -> str | None:
        """The name of the layer that makes logits."""
        return next((name for name, _ in head_layer(self._model)), None)

    def shared_with_head(self, names: Mapping[str, object]) -> str | None:
        """Return the stored name of the embeddings if their weights are those of the head, too."""
        embeddings, head = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        if head is None or head.weight is not embeddings.weight:
            return None
        return self.stored_as(self._first[id(embeddings.weight)], names)

    def is_transposed(self, layer: str) -> bool:
        return isinstance(self.layers[layer], Conv1D)

    def adapter_shapes(self, layers: Iterable[str], rank: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of an adapter's weights, by their names; none of layers that are not here."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in layers:
            if layer in self.layers:
                outer, inner = self.layers[layer].weight.shape
                outer, inner = (inner, outer) if self.is_transposed(layer) else (outer, inner)
                shapes |= zip(names_of(layer), ((rank, inner), (outer, rank)), strict=True)
        return shapes

    def stored_as(self, parameter: str, names: Mapping[str, object]) -> str | None:
        """Return which of the names is that of a parameter of the network; None if there is none."""
        prefix = f"{self._model.base_model_prefix}."
        tries = (
            parameter,
            parameter.removeprefix(prefix),
            prefix + parameter,
            f"language_model.{parameter}",
            parameter.replace("model.", "model.language_model.", 1),
        )
        return next((name for name in tries if name in names), None)

    def parameters(self, names: Mapping[str, object]) -> Mapping[str, str]:
        """Return which parameter of the network each stored name holds; for shared ones, by its first name."""
        found = {self.stored_as(name, names): self._first[one] for name, one in self._named.items()}
        return {stored: name for stored, name in found.items() if stored is not None}


def names_of(layer: str) -> tuple[str, str]:
    """Return the names of the two matrices of a layer in an adapter's file."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def refused(msg: str) -> InvalidInput:
    return InvalidInput.at("model", msg=msg)
