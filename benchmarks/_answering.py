"""Answers of the engine beside those of `generate()`, for the benchmarks of local models."""

import logging
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from modelyard.domain.completion import Sampling
from modelyard.parts.torch.lora import PREFIX, AdapterBank, LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.sequence import Sequence as Answer

Tokens = list[int]

BYTES = 256
"""The vocabulary that prompts are drawn from: the bytes of the tiny tokenizer."""


def prompts(count: int, shortest: int, longest: int, seed: int = 0) -> list[Tokens]:
    """Random prompts whose lengths are spread evenly."""
    draw = random.Random(seed)
    return [[draw.randrange(3, BYTES) for _ in range(draw.randint(shortest, longest))] for _ in range(count)]


def engine_of(network: Network, rows: int, memory: int = 2**30, adapters: int = 8, rank: int = 16) -> Engine:
    """An engine whose answers never end before they are as long as they may be."""
    return Engine(network, AdapterBank(network.model, adapters + 1, rank), frozenset(), rows=rows, memory=memory)


def answered(engine: Engine, requested: Sequence[Tokens], tokens: int, **how: Any) -> list[Tokens]:
    """What the engine answers when all are asked at once; `how` gives a sequence or one value for all."""
    rows = [
        {name: value[at] if isinstance(value, list) else value for name, value in how.items()}
        for at in range(len(requested))
    ]
    answers = [
        Answer(prompt, **{"sampling": Sampling(temperature=0), "max_tokens": tokens, **row})
        for prompt, row in zip(requested, rows, strict=True)
    ]
    for answer in answers:
        engine.submit(answer)
    for answer in answers:
        engine.wait(answer, answer.max_tokens)
    return [answer.answer for answer in answers]


def generated(model: Any, requested: Sequence[Tokens], tokens: int, **options: Any) -> list[Tokens]:
    """What `generate()` answers to one static batch, padded on the left."""
    longest = max(map(len, requested))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in requested], device=model.device)
    mask = torch.tensor(
        [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in requested], device=model.device
    )
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
    return [row[longest:].tolist() for row in made]


@contextmanager
def continuous_batching(model: Any, rows: int, tokens: int) -> Iterator[Callable[[Sequence[Tokens], int], list[Any]]]:
    """That of transformers, kept running, with memory for so many rows of so many tokens: greedy answers, in order.

    Raises ImportError where this version has none that can be told how much memory to take.
    """
    from transformers.generation import ContinuousBatchingConfig

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    known = ContinuousBatchingConfig().__dict__
    block = known.get("page_size") or known.get("block_size") or 256
    wanted = {"num_blocks": rows * (tokens // block + 2), "max_batch_tokens": max(512, min(8192, rows * tokens))}
    config = ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})
    greedy = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=config)

    def call(requested: Sequence[Tokens], count: int) -> list[Any]:
        asked_for = manager.add_requests(list(requested), max_new_tokens=count, record_timestamps=True)
        found: dict[str, Any] = {}
        while len(found) < len(asked_for):
            made = manager.get_result(timeout=1)
            if made is not None and made.is_finished():
                found[made.request_id] = made
            if made is None and not manager.is_running():
                raise RuntimeError("continuous batching stopped")
        return [found[name] for name in asked_for]

    manager.start()
    try:
        yield call
    finally:
        manager.stop(block=True)


def adapter(network: Network, seed: int, rank: int = 16) -> tuple[LoraShape, dict[str, torch.Tensor]]:
    """A random adapter of all projections, which changes every answer."""
    shape = LoraShape(rank=rank, alpha=2 * rank).resolve(network.model)
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for name, module in shape.layers(network.model):
        weights[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(rank, module.in_features, generator=draw) / rank
        weights[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(module.out_features, rank, generator=draw) / rank
    return shape, weights


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median of the seconds that each takes, in turns, so that a busy machine slows all of them."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begun = clock()
            call()
            spent[name].append(clock() - begun)
    return {name: statistics.median(found) for name, found in spent.items()}
