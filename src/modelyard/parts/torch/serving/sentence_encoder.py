"""Embeddings by a sentence encoder: its hidden states, pooled as its folder says."""

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from modelyard.domain.embedding import EmbeddedBatch, EmbeddingInput, EmbeddingRequest, check_lengths
from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.torch.loading import LOADING
from modelyard.parts.torch.model_config import CONFIG
from modelyard.parts.torch.model_folder import check_unchanged
from modelyard.parts.torch.network import failure_of, first_line
from modelyard.parts.torch.records import BaseModel
from modelyard.parts.torch.sentence_folder import SentencePooling, read_settings
from modelyard.parts.torch.serving.forward import side_by_side
from modelyard.parts.torch.threads import serving_threads, torch_threads
from modelyard.parts.torch.tokenizer import ANY_LENGTH


class SentenceEncoder:
    """A sentence encoder in memory, in 32-bit floats. Thread-safe. Raises `BackendError` if it cannot be loaded."""

    def __init__(self, base: BaseModel, device: str) -> None:
        check_unchanged(base)
        folder = Path(base.path)
        self._settings = read_settings(folder, json.loads((folder / CONFIG).read_bytes()))
        self._threads = serving_threads(base) if device == "cpu" else None
        try:
            with LOADING:
                self._tokenizer, self._model = _loaded(folder, device)
        except Exception as fault:
            raise BackendError(f"the model in {folder.name!r} cannot be loaded: {first_line(fault)}") from fault

    def embed(self, request: EmbeddingRequest) -> Iterator[EmbeddedBatch]:
        """Yield the embeddings of a request, in order. Raises `InvalidInput`, `BackendError`, `Overloaded`."""
        tokens = [self._tokens(at, one) for at, one in enumerate(request.inputs)]
        check_lengths([*map(len, tokens)], self._settings.longest)
        for batch in _batches(tokens):
            try:
                with torch.inference_mode(), torch_threads(self._threads):
                    vectors = self._vectors(batch)
            except Exception as fault:
                raise failure_of(fault) from fault
            if not bool(torch.isfinite(vectors).all()):
                raise BackendError("the model's output is not a number: its weights are broken")
            yield EmbeddedBatch(tuple(array("f", one) for one in vectors.tolist()), sum(map(len, batch)))

    def _tokens(self, at: int, given: EmbeddingInput) -> Sequence[int]:
        if isinstance(given, str):
            text = self._settings.prompt + given
            found: list[int] = self._tokenizer(text.lower() if self._settings.lowered else text)["input_ids"]
            return found
        known = self._model.config.vocab_size
        if max(given) >= known:
            raise InvalidInput.at("input", at, msg=f"holds token {max(given)}; this model has {known}")
        return given

    def _vectors(self, batch: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return one vector of length 1 for each sequence of tokens."""
        longest, filled = max(map(len, batch)), self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[*one, *[filled] * (longest - len(one))] for one in batch], device=self._model.device)
        there = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in batch], device=ids.device)
        states = self._model(input_ids=ids, attention_mask=there).last_hidden_state.float()
        if self._settings.pooling is SentencePooling.CLS:
            pooled = states[:, 0]
        else:
            pooled = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        return torch.nn.functional.normalize(pooled, dim=-1).cpu()


def _batches(sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for one in sequences:
        if batch and not side_by_side(len(batch) + 1, max(len(one), *map(len, batch))):
            yield batch
            batch = []
        batch.append(one)
    yield batch


def _loaded(folder: Path, device: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model. Raises ValueError for weights that are missing, but those of a pooler."""
    transformers_logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    model, loading = AutoModel.from_pretrained(
        folder, use_safetensors=True, output_loading_info=True, dtype=torch.float32, **options
    )
    missing = sorted(name for name in loading["missing_keys"] if not name.startswith("pooler."))
    if odd := [*missing, *(name for name, *_ in loading["mismatched_keys"])]:
        raise ValueError(f"its weights are not those that config.json describes (for one, {odd[0]})")
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=ANY_LENGTH, **options)
    return tokenizer, model.eval().requires_grad_(False).to(device)
