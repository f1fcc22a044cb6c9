"""What GGUF files say of a model and how they name and order its weights, for the families that are known here."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from modelyard.parts.torch.exports.stored_weights import refused

Floats = NDArray[np.float32]


@attrs.frozen
class GgufFamily:
    """A family of models in GGUF.

    `rotates_in_pairs` is whether GGUF wants the rows of queries and keys in another order than transformers, since it
    rotates neighbours in place of halves. `check` refuses a configuration that it has no place for.
    """

    arch: str
    rotates_in_pairs: bool
    check: Callable[[Any], None]


def _window_of_llama(config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        raise refused(f"sees {window} tokens back (sliding_window), which GGUF files of its family do not say")


def _window_of_qwen(config: Any) -> None:
    if getattr(config, "use_sliding_window", False):
        raise refused("sees a part of what was before (use_sliding_window), which GGUF files of its family do not say")


FAMILIES: Mapping[str, GgufFamily] = {
    "LlamaForCausalLM": GgufFamily("llama", True, _window_of_llama),
    "MistralForCausalLM": GgufFamily("llama", True, _window_of_llama),
    "Qwen2ForCausalLM": GgufFamily("qwen2", False, _window_of_qwen),
    "Qwen3ForCausalLM": GgufFamily("qwen3", False, _window_of_qwen),
}
"""By the class in transformers."""


def family_of(architecture: str, config: Any) -> GgufFamily:
    """Return the family of a class. Raises `InvalidInput` for one that is not known, or an odd configuration."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise refused(
            f"is a {architecture}, and GGUF files are written of {', '.join(FAMILIES)} only; export it merged, and "
            "convert that folder with llama.cpp's convert_hf_to_gguf.py"
        )
    family.check(config)
    if getattr(config, "hidden_act", "silu") != "silu":
        raise refused(f"has the activation {config.hidden_act}, which GGUF files of its family do not say")
    _rope(config)
    return family


def add_sizes(writer: Any, config: Any, architecture: str) -> None:
    """Add the sizes of a model, and how positions are rotated, to the head of a file."""
    heads = config.num_attention_heads
    size = _head_size(config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(float(_rope(config)["rope_theta"]))
    writer.add_rope_dimension_count(size)
    if architecture == "Qwen3ForCausalLM" or size * heads != config.hidden_size:
        writer.add_key_length(size)
        writer.add_value_length(size)


def added_tensors(config: Any) -> Iterator[tuple[str, Floats]]:
    """Yield the tensors that transformers computes from a configuration, and GGUF stores."""
    rope = _rope(config)
    if rope["rope_type"] == "llama3":
        yield "rope_freqs.weight", _llama3_factors(rope, _head_size(config))


def reordered(family: GgufFamily, name: str, weights: Floats, config: Any) -> Floats:
    """Return the weights of a name of transformers in the order that GGUF has."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if not family.rotates_in_pairs or heads is None:
        return weights
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rope(config: Any) -> Mapping[str, Any]:
    """Return how positions are rotated. Raises `InvalidInput` for a way that is not written."""
    found = {"rope_type": "default", **(config.rope_parameters or {})}
    if found["rope_type"] not in ("default", "llama3") or found.get("partial_rotary_factor", 1) != 1:
        raise refused(
            f"scales positions by {found['rope_type']}, which is not written to GGUF files here; export it merged"
        )
    return found


def _llama3_factors(rope: Mapping[str, Any], size: int) -> Floats:
    """Return by how much each pair turns slower than without scaling (Llama 3.1)."""
    trained, low, high = (
        float(rope[name]) for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    factors = []
    for pair in range(0, size, 2):
        length = 2 * math.pi * float(rope["rope_theta"]) ** (pair / size)
        if length < trained / high:
            factors.append(1.0)
        elif length > trained / low:
            factors.append(float(rope["factor"]))
        else:
            smooth = (trained / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / float(rope["factor"]) + smooth))
    return np.array(factors, np.float32)
