"""The tables of `gpu.py` on training: LoRA steps, and an RL step in its parts."""

import asyncio
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch

from modelyard import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.parts.torch.kv_cache import bytes_per_token
from modelyard.parts.torch.lora import LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import attach_adapter
from modelyard.parts.torch.training.trainer import LocalTrainer

Rows = Iterator[dict[str, Any]]

TRAINED_SHARE = 4
"""One token in so many is trained, where not all of them are."""


# ---- LoRA steps --------------------------------------------------------------------------------------------------


def lora_steps(bench: Any) -> Rows:
    """One row a step: layers kept or recomputed, logits where a token is trained or of all tokens."""
    network = Network(bench.folder, bench.device)
    weights = sum(one.numel() for one in network.body.parameters())
    trained = attach_adapter(network.model, LoraShape(), 0, "base")
    scorer, optimizer = TokenScorer(network), torch.optim.AdamW(trained.parameters, lr=1e-6, fused=True)
    for tokens, recomputed, masked in product(bench.plan.trained, (False, True), (True, False)):
        row = _row(tokens, tokens // TRAINED_SHARE if masked else tokens - 1)

        def step(row: TokenRow = row, recomputed: bool = recomputed) -> None:
            logprobs, _ = scorer.logprobs([row], recomputed)
            (-logprobs.mean()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        bench.fresh_peak()
        shape = {"tokens": tokens, "layers": "recomputed" if recomputed else "kept"}
        shape["logits"] = "masked" if masked else "all"
        try:
            spent = bench.seconds(step, 2)
        except torch.OutOfMemoryError:
            yield {**shape, "failed": "out of memory"}
            continue
        floor = (6 if recomputed else 4) * weights * tokens / bench.operations_per_s
        speed = {"tok/s": round(tokens / spent), "floor tok/s": round(tokens / floor)}
        yield {**shape, **speed, "step / floor": round(floor / spent, 3), "most GB": bench.peak()}


def _row(tokens: int, count: int) -> TokenRow:
    draw = random.Random(tokens)
    ids = tuple(draw.randrange(3, 256) for _ in range(tokens))
    return TokenRow(ids, tuple(range(tokens - count, tokens)), (None,) * count)


# ---- an RL step, through the public API --------------------------------------------------------------------------


@contextmanager
def trained_platform(bench: Any) -> Iterator[Any]:
    """A platform that serves and trains on this device."""
    database = bench.folder.parent / "yard.db"
    with open_platform(database) as host:
        host.add_base_model(bench.folder, id="base")
        bases = list(host.base_models())
    backend, trainer = LocalBackend(bases, device=bench.device), LocalTrainer(bases, device=bench.device)
    with open_platform(database, backend=backend, trainers=[trainer]) as host:
        host.models.create("m", project="bench", base_model="base")
        yield host
    backend.close()


def rl_step(bench: Any) -> Rows:
    """Sampling, the job, and the first token of what it made; floors for all rows at once."""
    prompts, choices, requested, tokens = bench.plan.rl
    network = Network(bench.folder, bench.device)
    weights, size = sum(one.numel() for one in network.model.parameters()), network.dtype.itemsize
    token_bytes = bytes_per_token(network.config, network.dtype)
    del network
    with trained_platform(bench) as host:
        asyncio.run(_sampled(host, prompts, choices, requested, tokens))
        begun = time.perf_counter()
        answers = asyncio.run(_sampled(host, prompts, choices, requested, tokens))
        spent = time.perf_counter() - begun
        made = sum(answer.usage.completion_tokens for answer in answers)
        steps = made / (prompts * choices)
        read = weights * size + prompts * choices * (requested + steps / 2) * token_bytes
        yield _part("sampling", spent, made, steps * read / bench.bytes_per_s)
        groups = [_group(number, requested, answer) for number, answer in enumerate(answers)]
        bench.fresh_peak()
        begun = time.perf_counter()
        host.training.rl("bench/m", groups, learning_rate=1e-6).result()
        whole = made + prompts * choices * requested
        yield _part("the job", time.perf_counter() - begun, made, 4 * weights * whole / bench.operations_per_s)
        begun = time.perf_counter()
        host.chat.complete(model="local/bench/m", messages="ping", max_tokens=1, project="bench")
        yield {"part": "to the first token of its checkpoint", "seconds": round(time.perf_counter() - begun, 3)}
        yield {"part": "most GB in the job, beside serving", "GB": bench.peak()}


def _part(name: str, spent: float, made: int, floor: float) -> dict[str, Any]:
    return {"part": name, "seconds": round(spent, 3), "tok/s": round(made / spent), "floor s": round(floor, 3)}


async def _sampled(host: Any, prompts: int, choices: int, requested: int, tokens: int) -> list[Any]:
    options = {"n": choices, "max_tokens": tokens, "logprobs": True, "return_token_ids": True, "project": "bench"}
    complete = host.chat.acomplete
    return await asyncio.gather(
        *(complete(model="local/bench/m", messages=_question(n, requested), seed=n, **options) for n in range(prompts))
    )


def _group(number: int, requested: int, answer: Any) -> TrajectoryGroup:
    message = Message(Role.USER, _question(number, requested))
    return TrajectoryGroup(
        tuple(
            Trajectory((History((message, SampledChoice.of(choice))),), reward=math.sin(7 * number + choice.index))
            for choice in answer.choices
        )
    )


def _question(number: int, tokens: int) -> str:
    draw = random.Random(number)
    return "".join(draw.choice("abcdefgh ") for _ in range(tokens))


TABLES = {"LoRA step": lora_steps, "RL step": rl_step}
