"""A checkpoint merged into its base model, as one GGUF file: written by the package `gguf`, one tensor at a time."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from modelyard.errors import MissingExtra

try:
    import gguf
    import numpy as np
except ImportError as error:
    raise MissingExtra("gguf", "gguf") from error

from modelyard.parts.torch.exports.adapter_folder import NamedBase
from modelyard.parts.torch.exports.gguf_families import Floats, add_sizes, added_tensors, family_of, reordered
from modelyard.parts.torch.exports.gguf_tokenizer import read_tokenizer
from modelyard.parts.torch.exports.merging import MergedWeights
from modelyard.parts.torch.exports.stored_weights import refused
from modelyard.parts.torch.exports.taken import TakenCheckpoint
from modelyard.parts.torch.exports.written_bytes import WrittenBytes
from modelyard.parts.torch.model_folder import Progress

_Kind = Any

KINDS: Mapping[str, tuple[_Kind, _Kind]] = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
"""The types of weights that are written: matrices have them, and vectors stay 32-bit floats."""

_MOST_16_BITS = 65504.0


@attrs.frozen
class _Written:
    """A tensor of the file: its name there, its type, its shape, and the stored name that it is made of."""

    name: str
    kind: _Kind
    shape: tuple[int, ...]
    source: str | None
    value: Floats | None = None

    @property
    def rows(self) -> tuple[int, ...]:
        """Its shape in bytes: blocks of numbers are along its rows."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return (*self.shape[:-1], self.shape[-1] // block * size)

    @property
    def size(self) -> int:
        return math.prod(self.rows)


def write_gguf(
    taken: TakenCheckpoint, file: Path, kind: str, license: str | None = None, progress: Progress | None = None
) -> None:
    """Write a file. Raises `InvalidInput` for a family, a tokenizer or numbers that it has no place for."""
    if kind not in KINDS:
        raise refused(f"is not written as {kind!r}; choose {', '.join(KINDS)}")
    weights = MergedWeights(taken)
    config = weights.layout.config
    family = family_of(taken.base.architecture, config)
    tokenizer = read_tokenizer(Path(taken.base.path), config.vocab_size)
    tensors = list(_tensors(weights, family.arch, KINDS[kind][0]))
    writer = gguf.GGUFWriter(file, family.arch)
    try:
        _add_head(writer, taken, KINDS[kind][1], license)
        add_sizes(writer, config, taken.base.architecture)
        tokenizer.add_to(writer)
        for one in tensors:
            _announce(writer, one)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        written = WrittenBytes(progress, sum(one.size for one in tensors))
        for one in tensors:
            value = one.value
            if one.source is not None:
                value = reordered(family, one.source, weights.tensor(one.source).float().numpy(), config)
            assert value is not None
            writer.write_tensor_data(_encoded(one, value))
            written.add(one.size)
    finally:
        writer.close()


def _add_head(writer: Any, taken: TakenCheckpoint, file_type: _Kind, license: str | None) -> None:
    writer.add_type("model")
    writer.add_name(f"{taken.model.name} step {taken.checkpoint.step}")
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if license is not None:
        writer.add_license(license)
    if "hub_id" in taken.base.source:
        named = NamedBase.of(taken.base).name
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, named.rpartition("/")[2])
        writer.add_base_model_organization(0, named.partition("/")[0])


def _tensors(weights: MergedWeights, arch: str, kind: _Kind) -> Iterator[_Written]:
    config = weights.layout.config
    names = gguf.get_tensor_name_map(_arch_named(arch), config.num_hidden_layers)
    repeated = _repeated_head(weights)
    for source, (_, shape) in weights.tensors.items():
        if source in repeated:
            continue
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise refused(f"has weights that GGUF has no name for: {source}")
        yield _Written(name, _kind_of(kind, shape), shape, source)
    for name, value in added_tensors(config):
        yield _Written(name, gguf.GGMLQuantizationType.F32, value.shape, None, value)


def _repeated_head(weights: MergedWeights) -> set[str]:
    """Return the stored names of weights that are the embeddings again, which readers share with the head."""
    shared = None if weights.unties_head else weights.layout.shared_with_head(weights.tensors)
    holds = weights.layout.parameters(weights.tensors)
    return set() if shared is None else {name for name, one in holds.items() if one == holds[shared]} - {shared}


def _arch_named(name: str) -> Any:
    return next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


def _kind_of(kind: _Kind, shape: tuple[int, ...]) -> _Kind:
    """Return the type of a tensor: blocks must divide its rows."""
    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return kind if shape[-1] % block == 0 else gguf.GGMLQuantizationType.F16


def _announce(writer: Any, one: _Written) -> None:
    writer.add_tensor_info(one.name, one.rows, np.dtype(np.uint8), one.size, raw_dtype=one.kind)


def _encoded(one: _Written, value: Floats) -> Any:
    """Return the bytes of a tensor. Raises `InvalidInput` for numbers that 16 bits do not hold."""
    if one.kind is gguf.GGMLQuantizationType.F16 and float(np.abs(value).max(initial=0)) > _MOST_16_BITS:
        raise refused(f"has numbers in {one.name} that are too large for f16; choose bf16 or f32")
    return gguf.quants.quantize(value, one.kind).view(np.uint8)
