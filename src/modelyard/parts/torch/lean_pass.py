"""Tokens through a model of the Llama kind, with a third fewer operations than its modules and few calls of them.

On a processor an operation on one token takes less time than the calls around it. Answers are those of the modules but
for the rounding of the last digits; `network_checks.py` compares them when a network is loaded.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from modelyard.parts.torch.kv_cache import RowCache, causal, head_size, key_heads, windows
from modelyard.parts.torch.packed_weights import joint_product

KINDS = ("llama", "mistral", "qwen2", "qwen3")
"""The `model_type` of models whose layers are read here, if each of them sees all tokens."""


class LeanPass:
    """Reads with the modules and weights that `body` has at the time of a pass, so adapters are applied.

    For 32-bit floats, without derivatives.
    """

    def __init__(self, body: Any, config: Any) -> None:
        self._body = body
        self._size, self._heads, self._key_heads = head_size(config), config.num_attention_heads, key_heads(config)
        self._epsilon = torch.tensor([config.rms_norm_eps], dtype=torch.float32)

    @staticmethod
    def suits(config: Any) -> bool:
        return config.model_type in KINDS and all(window is None for window in windows(config).values())

    def states(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: RowCache) -> Tensor:
        """Return the hidden states (rows x tokens x hidden size) of new tokens at these positions.

        `positions` and `mask` are those that `cache` returned when the pass began.
        """
        x = self._body.embed_tokens(ids)
        cosines, sines = self._body.rotary_emb(x, positions)
        half = self._size // 2
        turn = cosines[:, :, None], torch.cat((-sines[..., :half], sines[..., half:]), -1)[:, :, None]
        if mask is None and (start := cache.get_seq_length()) and ids.shape[1] > 1:
            mask = causal(positions, start + ids.shape[1], None, x.dtype)
        for at, layer in enumerate(self._body.layers):
            attention, feed = layer.self_attn, layer.mlp
            heads = self._attended(attention, self._norm(layer.input_layernorm, x), at, turn, mask, cache)
            x += attention.o_proj(heads)
            normed = self._norm(layer.post_attention_layernorm, x)
            gate, up = joint_product((feed.gate_proj, feed.up_proj), normed).chunk(2, -1)
            x += feed.down_proj(feed.act_fn(gate).mul_(up))
        return self._norm(self._body.norm, x)

    def _attended(
        self, layer: Any, x: Tensor, at: int, turn: tuple[Tensor, Tensor], mask: Tensor | None, cache: RowCache
    ) -> Tensor:
        """Return what the attention heads see: rows x tokens x heads * size."""
        (rows, width, _), heads, key_heads = x.shape, self._heads, self._key_heads
        found = joint_product((layer.q_proj, layer.k_proj, layer.v_proj), x).view(rows, width, -1, self._size)
        both = found[:, :, : heads + key_heads]
        if hasattr(layer, "q_norm"):
            both = self._unit(both)
            both[:, :, :heads].mul_(layer.q_norm.weight)
            both[:, :, heads:].mul_(layer.k_norm.weight)
        cosines, sines = turn
        both = torch.addcmul(both * cosines, both.roll(self._size // 2, -1), sines)
        new = both[:, :, heads:].transpose(1, 2), found[:, :, heads + key_heads :].transpose(1, 2)
        keys, values = cache.update(*new, at)
        queries, scale = both[:, :, :heads], layer.scaling
        if width == 1:  # the queries of one key head are read as its tokens
            queries = queries.view(rows, key_heads, -1, self._size)
            seen = functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
        else:
            queries, first = queries.transpose(1, 2), mask is None
            if heads > key_heads and not _reads_groups():
                keys, values = (one.repeat_interleave(heads // key_heads, 1) for one in (keys, values))
            seen = functional.scaled_dot_product_attention(
                queries, keys, values, mask, is_causal=first, scale=scale, enable_gqa=True
            ).transpose(1, 2)
        return seen.reshape(rows, width, -1)

    def _norm(self, layer: nn.Module, x: Tensor) -> Tensor:
        return self._unit(x).mul_(layer.weight)

    def _unit(self, x: Tensor) -> Tensor:
        """Divide by the root of the mean square (RMSNorm, arXiv 1910.07467), in a new tensor."""
        squares = x.square().sum(-1, keepdim=True)  # a norm adds up many numbers less exactly
        return x * torch.add(self._epsilon, squares, alpha=1 / x.shape[-1]).rsqrt_()


@cache
def _reads_groups() -> bool:
    """Return whether this build of torch attends to keys that heads share as they lie: others store all scores."""
    shared = torch.zeros(1, 1, 2, 8, dtype=torch.float32)
    chosen: int = torch._fused_sdp_choice(shared.expand(-1, 2, -1, -1), shared, shared, enable_gqa=True)
    return chosen != SDPBackend.MATH.value
