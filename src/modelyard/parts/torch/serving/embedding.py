"""Embeddings by a base model: the pooled hidden states of its last layer, of several texts in one pass."""

from array import array
from collections.abc import Iterator, Sequence

import torch

from modelyard.domain.embedding import EmbeddedBatch
from modelyard.errors import BackendError
from modelyard.parts.torch.network import failure_of
from modelyard.parts.torch.pooling import Pooling
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.forward import side_by_side


def embedded(engine: Engine, slot: int, prompts: Sequence[Sequence[int]], pooling: Pooling) -> Iterator[EmbeddedBatch]:
    """Yield the embeddings of token sequences, in order, with the adapter in a slot of the engine.

    Each batch is one pass, between two steps of the answers that are under way. Raises `BackendError`, `Overloaded`.
    """
    for batch in _batches(prompts, engine.shares_passes):
        vectors = tuple(array("f", vector) for vector in _vectors(engine, slot, batch, pooling))
        yield EmbeddedBatch(vectors, sum(map(len, batch)))


def _batches(prompts: Sequence[Sequence[int]], together: bool) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for prompt in prompts:
        longest = max([len(prompt), *map(len, batch)])
        if batch and not (together and side_by_side(len(batch) + 1, longest)):
            yield batch
            batch = []
        batch.append(prompt)
    yield batch


def _vectors(engine: Engine, slot: int, batch: Sequence[Sequence[int]], pooling: Pooling) -> list[list[float]]:
    try:
        states = engine.hidden(slot, batch)
    except Exception as fault:
        raise failure_of(fault) from fault
    rows = [row[: len(prompt)] for row, prompt in zip(states.float(), batch, strict=True)]
    pooled = torch.stack([row.mean(0) if pooling is Pooling.MEAN else row[-1] for row in rows])
    scaled = torch.nn.functional.normalize(pooled, dim=-1)
    if not bool(torch.isfinite(scaled).all()):
        raise BackendError("the model's output is not a number: its weights, or those of its adapter, are broken")
    found: list[list[float]] = scaled.cpu().tolist()
    return found
