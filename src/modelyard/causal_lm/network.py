"""The network of a base model, loaded from its folder and never changed: adapters and caches are put beside it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from modelyard.causal_lm.cache import RowCache, causal
from modelyard.errors import BackendError


class Network:
    """A transformers model in memory, without gradients.

    `body` maps tokens to hidden states, `head` is the output embedding. Shapes: rows x tokens x hidden size.
    """

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        transformers_logging.disable_progress_bar()
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, dtype=dtype or _usual_dtype(device)
            )
        except (OSError, ValueError, KeyError, ImportError) as fault:
            raise BackendError(f"the base model in {folder} cannot be loaded: {fault}") from fault
        self.model = model.eval().requires_grad_(False).to(device)
        self.config = self.model.config
        self.device, self.dtype = self.model.device, self.model.dtype
        self._check()

    @property
    def body(self) -> Any:
        """What maps tokens to hidden states."""
        return getattr(self.model, self.model.base_model_prefix)

    def hidden(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Hidden states of new tokens (rows x tokens) at these positions.

        `mask` (rows x 1 x tokens x keys) says which of the keys that `cache` holds each token may look at.
        """
        states = self.body(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
        )
        return states.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in 32-bit floats, whatever the weights are: softmax over a large vocabulary needs them."""
        return self.model.get_output_embeddings()(hidden).float()

    def _check(self) -> None:
        """Whether hidden states, cache and head, each used for itself, make what the whole model does: some
        architectures cap or scale their logits, or attend in ways of their own. Raises `BackendError`.
        """
        ids = torch.arange(4, device=self.device)[None]
        try:
            with torch.inference_mode():
                found, whole = self._in_two_passes(ids), self.model(ids).logits.float()
        except Exception as fault:
            raise BackendError(f"{type(self.model).__name__} cannot be run here: {fault}") from fault
        tolerance = 1e-3 if self.dtype is torch.float32 else 5e-2
        if float((found - whole).abs().max()) > tolerance * max(1.0, float(whole.abs().max())):
            raise BackendError(f"{type(self.model).__name__} makes its logits in a way of its own, which is not served")

    def _in_two_passes(self, ids: Tensor) -> Tensor:
        """Logits of one row, as serving computes them: the last token when the others are in the cache."""
        cache = RowCache(self.config, 1, ids.shape[1], self.dtype, self.device)
        places, found = torch.arange(ids.shape[1], device=self.device)[None], []
        for part in (slice(None, -1), slice(-1, None)):
            positions = places[:, part]
            seen = int(positions.max()) + 1
            cache.begin(0, positions, seen)
            found.append(self.logits(self.hidden(ids[:, part], positions, causal(positions, seen), cache)))
        return torch.cat(found, 1)


def _usual_dtype(device: str) -> torch.dtype:
    """Processors compute 32-bit floats about as fast as 16-bit ones, graphics cards twice to ten times slower."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
