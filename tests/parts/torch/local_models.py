"""Base models, engines and questions for the tests of this folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from modelyard.domain.completion import Sampling
from modelyard.parts.torch.lora import AdapterBank, LoraShape
from modelyard.parts.torch.model_folder import read_base_folder
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import BaseModel, Tuning
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.sequence import Sequence as Answer

GREEDY = Sampling(temperature=0)
END = 2
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""Keys and values of a token in a micro model: layers x heads x size in 32 bits."""


def base_model(folder: Path, id: str, tuning: Tuning = Tuning.LORA) -> BaseModel:
    """The record of a folder."""
    return read_base_folder(folder).base_model(id, id, tuning, datetime(2026, 1, 1, tzinfo=UTC), {})


@cache
def _loaded(folder: Path) -> Network:
    """No test changes this one: to load it again would take longer than most tests."""
    return Network(folder)


def engine_of(
    folder: Path, *, slots: int = 5, rank: int = 8, ends: frozenset[int] = frozenset({END}), **room: Any
) -> Engine:
    """An engine on a network of its own, whose layers its bank changes."""
    network = deepcopy(_loaded(folder))
    return Engine(network, AdapterBank(network.model, slots, rank), ends, **room)


def requested(prompt: Sequence[int], max_tokens: int = 12, sampling: Sampling = GREEDY, **fields: Any) -> Answer:
    return Answer(list(prompt), sampling, max_tokens, **fields)


def answered(engine: Engine, *answers: Answer) -> list[list[int]]:
    """The tokens of all, asked at once."""
    for answer in answers:
        engine.submit(answer)
    for answer in answers:
        engine.wait(answer, answer.max_tokens)
    return [list(answer.answer) for answer in answers]


def alone(folder: Path, *answers: Answer) -> list[list[int]]:
    """The tokens of the same answers, each asked of an engine that knows nothing."""
    network, found = deepcopy(_loaded(folder)), []
    bank = AdapterBank(network.model, 5, 8)
    for one in answers:
        copy = requested(one.prompt, one.max_tokens, one.sampling, slot=one.slot)
        found += answered(Engine(network, bank, frozenset({END}), rows=1), copy)
    return found


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Random tokens, marks left out."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=drawn).tolist()
    return [torch.randint(3, 259, (length,), generator=drawn).tolist() for length in lengths]


@contextmanager
def passes(engine: Engine) -> Iterator[list[tuple[int, int]]]:
    """How many rows and tokens each pass has."""
    seen: list[tuple[int, int]] = []
    plain = engine._network.hidden

    def counting(ids: torch.Tensor, *rest: Any) -> Any:
        seen.append((ids.shape[0], ids.shape[1]))
        return plain(ids, *rest)

    engine._network.hidden = counting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        engine._network.hidden = plain  # type: ignore[method-assign]


def adapter_weights(folder: Path, shape: LoraShape, seed: int, scale: float = 0.3) -> dict[str, torch.Tensor]:
    """A random adapter, large enough to change what is answered."""
    drawn = torch.Generator().manual_seed(seed)
    weights = {}
    for name, module in shape.layers(_loaded(folder).model):
        for side, size in (("A", (shape.rank, module.in_features)), ("B", (module.out_features, shape.rank))):
            weights[f"base_model.model.{name}.lora_{side}.weight"] = torch.randn(size, generator=drawn) * scale
    return weights


SHAPE = LoraShape(4, 8, ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"))
