"""The local engine on a graphics card: python benchmarks/gpu.py [--shape 0.6b] [--device cuda]. Needs torch.

First whether it is right: answers beside `generate()`, seeds alone and in a batch, log-probabilities beside one pass of
the whole model. Then decoding, prefill, LoRA steps, an RL step in its parts, and adapters in one batch, beside the
floor that this machine's memory and arithmetic set (both measured) and beside `generate()`. Weights are random, which
changes no time. Tables go to standard error, JSON to standard output. Wall time: nothing else should run there.

    python benchmarks/gpu.py --device cpu --shape tiny      a dry run, in seconds
"""

import argparse
import asyncio
import gc
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

LAYERS = {
    "0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16},
    "1.7b": {"hidden_size": 2048, "num_hidden_layers": 28, "intermediate_size": 6144, "num_attention_heads": 16},
    "8b": {"hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288, "num_attention_heads": 32},
}
"""Shapes of published models, by name."""

VOCABULARY, UNTIED = 151_936, ("8b",)


@attrs.frozen
class Plan:
    """How much is measured: rows at a time, tokens of a prompt and of an answer, of prompts that are only read, of
    rows to train on, and of RL: prompts, choices, tokens of a prompt and of an answer."""

    rows: tuple[int, ...] = (1, 8, 32, 64, 256)
    prompt: int = 960
    answer: int = 64
    read: tuple[int, ...] = (1024, 8192)
    trained: tuple[int, ...] = (2048, 8192)
    rl: tuple[int, int, int, int] = (32, 8, 512, 512)
    mixed: int = 32


DRY = Plan(rows=(1, 4), prompt=24, answer=6, read=(48,), trained=(64,), rl=(2, 2, 16, 8), mixed=4)


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="0.6b", choices=("tiny", *LAYERS))
    asked = parser.parse_args(words)
    report = missing(asked.device) or measured(asked.device, asked.shape)
    print(json.dumps(report, indent=2))
    return report


def missing(device: str) -> dict[str, Any] | None:
    """Why nothing can be measured, if so."""
    if find_spec("torch") is None:
        return {"left out": "torch is not installed: pip install 'modelyard[torch]'"}
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return {"left out": "there is no graphics card; a dry run: --device cpu --shape tiny"}
    return None


def measured(device: str, shape: str) -> dict[str, Any]:
    """All figures."""
    import torch
    import transformers

    plan = DRY if shape == "tiny" else Plan()
    found: dict[str, Any] = {"device": device, "shape": shape, "torch": torch.__version__}
    found["transformers"] = transformers.__version__
    with tempfile.TemporaryDirectory() as name:
        folder = build(Path(name) / "model", shape, device)
        found["machine"] = machine(device)
        found |= served_tables(Serving(folder, device, plan, found["machine"]))
        gc.collect()  # its networks make room for those that train
        with trained_platform(Path(name), folder, device) as host:
            found["LoRA step"] = told("LoRA step", lora_steps(host, plan))
            found["RL step"] = told("RL step", rl_step(host, plan))
    if device.startswith("cuda"):
        found["most memory, GB"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
    return found


def served_tables(serving: "Serving") -> dict[str, Any]:
    return {
        "right?": told("right?", serving.right()),
        "decode": told("decode", serving.decode()),
        "prefill": told("prefill", serving.prefill()),
        "adapters": told("adapters", serving.adapters()),
    }


def told(title: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print a table as it comes."""
    from modelyard.report.table import text_table

    print(
        f"\n{title}\n{text_table(tuple(rows[0]), [tuple(row.values()) for row in rows])}", file=sys.stderr, flush=True
    )
    return rows


def build(folder: Path, shape: str, device: str) -> Path:
    """A folder with a model of random weights: the tiny one's words, and layers of this shape."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from modelyard.testing.tiny_model import build_tiny_model

    build_tiny_model(folder, "micro")
    if shape == "tiny":
        return folder
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        tie_word_embeddings=shape not in UNTIED,
        **LAYERS[shape],
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def machine(device: str) -> dict[str, float]:
    """Bytes that it copies and operations that it makes in a second, in the weights' number format."""
    import torch

    on_card = device.startswith("cuda")
    dtype, size = (torch.bfloat16, 8192) if on_card else (torch.float32, 512)
    one, other = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    copied = seconds(lambda: other.copy_(one), device, 20)
    multiplied = seconds(lambda: one @ other, device, 20)
    return {
        "bytes per s": 2 * one.numel() * one.itemsize / copied,
        "operations per s": 2 * size**3 / multiplied,
    }


def seconds(call: Callable[[], object], device: str, times: int = 1) -> float:
    """Wall time of one call, after one that is not measured."""
    call()
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (time.perf_counter() - begun) / times


def synchronize(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


# ---- serving -----------------------------------------------------------------------------------------------------


class Serving:
    """An engine with adapters, the same model for `generate()`, and the floors."""

    def __init__(self, folder: Path, device: str, plan: Plan, speed: dict[str, float]) -> None:
        from _answering import adapter, engine_of

        from modelyard.backends.local.rows import SHORTEST
        from modelyard.causal_lm.cache import bytes_per_token
        from modelyard.causal_lm.network import Network

        self.plan, self.device, self.speed = plan, device, speed
        self.plain = Network(folder, device)
        network = Network(folder, device)
        self.token_bytes = bytes_per_token(network.config, network.dtype)
        self.made = [adapter(network, seed) for seed in range(8)]
        rows, tokens = max(plan.rows), max(SHORTEST, plan.prompt + plan.answer)
        self.engine = engine_of(network, rows, int(1.5 * rows * tokens * self.token_bytes))
        embeddings = self.plain.model.get_input_embeddings().weight.numel()
        tied = self.plain.config.tie_word_embeddings
        self.weights = sum(one.numel() for one in self.plain.model.parameters()) - (0 if tied else embeddings)
        self.size = network.dtype.itemsize

    def right(self) -> list[dict[str, Any]]:
        """Tokens that agree, of all; in 16 bits the batch's shape may change a token now and then."""
        import torch
        from _answering import answered, generated, prompts

        from modelyard.backends.local.sequence import Sequence
        from modelyard.domain.completion import Sampling

        tokens, asked = self.plan.answer, prompts(8, 8, 24)
        static = generated(self.plain.model, asked, tokens)
        seeds = [Sampling(seed=row) for row in range(len(asked))]
        together = answered(self.engine, asked, tokens, sampling=seeds)
        alone = [answered(self.engine, [one], tokens, sampling=seed)[0] for one, seed in zip(asked, seeds, strict=True)]
        answer = Sequence(asked[0], Sampling(seed=1), tokens)
        self.engine.submit(answer)
        self.engine.wait(answer, tokens)
        ids = torch.tensor([answer.prompt + answer.answer], device=self.device)
        with torch.inference_mode():
            whole = self.plain.model(ids[:, :-1]).logits[0, len(answer.prompt) - 1 :].float().log_softmax(-1)
        expected = whole.gather(1, ids[0, len(answer.prompt) :, None])[:, 0].tolist()
        apart = [abs(one.logprob - other) for one, other in zip(answer.sampled, expected, strict=True)]
        return [
            {"what": "greedy as generate()", "share": _agreeing(answered(self.engine, asked, tokens), static)},
            {"what": "seeds alone as in a batch", "share": _agreeing(together, alone)},
            {"what": "largest difference of a log-probability", "share": max(apart)},
        ]

    def decode(self) -> list[dict[str, Any]]:
        """Tokens a second while so many answer at once, prompts left out."""
        return [self._decoded(rows) for rows in self.plan.rows]

    def _decoded(self, rows: int) -> dict[str, Any]:
        from _answering import answered, generated

        tokens, context = self.plan.answer, self.plan.prompt + self.plan.answer
        ours = self._behind_prompts(lambda asked, count: answered(self.engine, asked, count), rows)
        static = self._behind_prompts(lambda asked, count: generated(self.plain.model, asked, count), rows)
        floor = (self.weights * self.size + rows * context * self.token_bytes) / self.speed["bytes per s"]
        made = rows * (tokens - 1)
        return {
            "rows": rows,
            "engine tok/s": round(made / ours),
            "generate() tok/s": round(made / static),
            "floor tok/s": round(rows / floor),
            "engine / floor": round(floor * (tokens - 1) / ours, 3),
            "engine / generate()": round(static / ours, 2),
        }

    def _behind_prompts(self, call: Callable[[list[list[int]], int], object], rows: int) -> float:
        """Seconds of all steps but those that read the prompts."""
        from _answering import prompts

        asked = prompts(rows, self.plan.prompt, self.plan.prompt, seed=rows)
        long = seconds(lambda: call(asked, self.plan.answer), self.device)
        return max(1e-9, long - seconds(lambda: call(asked, 1), self.device))

    def prefill(self) -> list[dict[str, Any]]:
        """Prompts that are only read, each for the first time."""
        from _answering import answered, prompts

        rows = []
        for tokens in self.plan.read:
            fresh = iter(prompts(4, tokens, tokens, seed=tokens))
            spent = seconds(lambda: answered(self.engine, [next(fresh)], 1), self.device, 2)  # noqa: B023
            floor = 2 * self.weights * tokens / self.speed["operations per s"]
            rows.append({"tokens": tokens, "tok/s": round(tokens / spent), "engine / floor": round(floor / spent, 3)})
        return rows

    def adapters(self) -> list[dict[str, Any]]:
        """The base, one adapter, and eight in one batch; and how long it takes to put one into its slot."""
        from _answering import answered, in_turns, prompts

        loads = []
        for slot, (shape, weights) in enumerate(self.made, 1):
            begun = time.perf_counter()
            self.engine.load(slot, shape, weights)
            synchronize(self.device)
            loads.append(time.perf_counter() - begun)
        rows, tokens = self.plan.mixed, self.plan.answer
        asked = prompts(rows, 24, 24)
        spent = in_turns(
            {
                "base": lambda: answered(self.engine, asked, tokens),
                "one adapter": lambda: answered(self.engine, asked, tokens, slot=1),
                "eight adapters": lambda: answered(self.engine, asked, tokens, slot=[1 + n % 8 for n in range(rows)]),
            },
            3,
            time.perf_counter,
        )
        one = spent["one adapter"]
        table = [
            {"what": name, "tok/s": round(rows * tokens / taken), "beside one adapter": round(taken / one, 2)}
            for name, taken in spent.items()
        ]
        return [
            *table,
            {"what": f"put into a slot in {min(loads) * 1000:.1f} ms", "tok/s": "", "beside one adapter": ""},
        ]


def _agreeing(found: list[list[int]], expected: list[list[int]]) -> float:
    pairs = [(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


# ---- training, through the public API ----------------------------------------------------------------------------


@contextmanager
def trained_platform(folder: Path, model: Path, device: str) -> Iterator[Any]:
    """A platform that serves and trains on this device."""
    from modelyard import open_platform
    from modelyard.backends.local.backend import LocalBackend
    from modelyard.trainers.local.trainer import LocalTrainer

    with open_platform(folder / "yard.db") as host:
        host.add_base_model(model, id="base")
        bases = host.base_models()
    backend = LocalBackend(bases, device=device)
    with open_platform(folder / "yard.db", backend=backend, trainers=[LocalTrainer(bases, device=device)]) as host:
        host.models.create("m", project="bench", base_model="base")
        yield host
    backend.close()


def lora_steps(host: Any, plan: Plan) -> list[dict[str, Any]]:
    """Steps of eight rows, as the job's events tell their times."""
    return [_lora_step(host, tokens) for tokens in plan.trained]


def _lora_step(host: Any, tokens: int) -> dict[str, Any]:
    draw = random.Random(tokens)
    text = lambda: "".join(draw.choice("abcdefgh ") for _ in range(tokens // 2))  # noqa: E731
    row = lambda: {"messages": [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]}  # noqa: E731
    job = host.training.sft("bench/m", [row() for _ in range(8 * 3)], batch_size=8)
    job.wait()
    times = _step_times(job)
    spent = (times[-1] - times[0]) / (len(times) - 1)
    return {"tokens a row": tokens, "tok/s": round(8 * tokens / spent), "a step, ms": round(spent * 1000, 1)}


def _step_times(job: Any) -> list[float]:
    return [event.created_at.timestamp() for event in job.events() if event.type == "gradient_step"]


def rl_step(host: Any, plan: Plan) -> list[dict[str, Any]]:
    """One step of RL in its parts: sampling, the job, and the first token of what it made."""
    from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup

    prompts, choices, asked, tokens = plan.rl

    async def sampled() -> list[Any]:
        options = {"n": choices, "max_tokens": tokens, "logprobs": True, "return_token_ids": True, "project": "bench"}
        complete = host.chat.acomplete
        return await asyncio.gather(
            *(complete(model="local/bench/m", messages=_question(n, asked), seed=n, **options) for n in range(prompts))
        )

    asyncio.run(sampled())
    begun = time.perf_counter()
    answers = asyncio.run(sampled())
    rollout = time.perf_counter() - begun
    groups = []
    for number, answer in enumerate(answers):
        messages = tuple(_message(number, asked))
        rows = [
            Trajectory((History((*messages, SampledChoice.of(choice))),), reward=math.sin(7 * number + choice.index))
            for choice in answer.choices
        ]
        groups.append(TrajectoryGroup(tuple(rows)))
    begun = time.perf_counter()
    host.training.rl("bench/m", groups, learning_rate=1e-6).result()
    trained = time.perf_counter() - begun
    begun = time.perf_counter()
    host.chat.complete(model="local/bench/m", messages="ping", max_tokens=1, project="bench")
    served = time.perf_counter() - begun
    made = sum(answer.usage.completion_tokens for answer in answers)
    return [
        {"part": "sampling", "seconds": round(rollout, 3), "tok/s": round(made / rollout)},
        {"part": "the job", "seconds": round(trained, 3), "tok/s": round(made / trained)},
        {"part": "to the first token of its checkpoint", "seconds": round(served, 3), "tok/s": ""},
    ]


def _question(number: int, tokens: int) -> str:
    draw = random.Random(number)
    return "".join(draw.choice("abcdefgh ") for _ in range(tokens))


def _message(number: int, tokens: int) -> Iterator[Any]:
    from modelyard.domain.completion import Message, Role

    yield Message(Role.USER, _question(number, tokens))


if __name__ == "__main__":
    main()
