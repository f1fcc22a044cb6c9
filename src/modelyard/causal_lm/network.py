"""The network of a base model, loaded from its folder and never changed: adapters and caches are put beside it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

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


def _usual_dtype(device: str) -> torch.dtype:
    """Processors compute 32-bit floats about as fast as 16-bit ones, graphics cards twice to ten times slower."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
