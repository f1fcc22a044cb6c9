"""What a job is reckoned to take beside what it takes, as JSON: python benchmarks/local_memory.py. CPU, Linux.

Each job is trained in a process of its own, forked from one that has loaded torch. `taken` is how far its resident
memory rose above what it was at the beginning (VmHWM, proc_pid_status(5)), `reckoned` what must have been free by then:
for weights, gradients, moments, the largest pass, and what every job takes. Where the ratio is below 1, a job may be
let in that does not fit.
"""

import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from local_training import base_of, context, examples
from transformers import Qwen3Config, Qwen3ForCausalLM

from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tiny_model import build_tiny_model
from modelyard.parts.torch.training.memory_plan import UNSEEN, MemoryBudget, Pass
from modelyard.parts.torch.training.trainer import LocalTrainer

SHAPES: dict[str, dict[str, int]] = {
    "micro, 91 thousand weights": {},
    "mini, 329 thousand": {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256},
    "256 x 4, 16 thousand tokens": {
        "hidden_size": 256, "head_dim": 64, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 2**14
    },
}  # fmt: skip
JOBS = {"SFT, 16 short rows": (16, 20, 20), "SFT, 8 long rows": (8, 100, 900)}
MIB = 2**20


def folder_of(place: Path, shape: dict[str, int]) -> Path:
    """A base model of this shape, with the tokenizer of the tiny ones."""
    folder = build_tiny_model(place)
    config = Qwen3Config.from_pretrained(folder)
    for name, value in shape.items():
        setattr(config, name, value)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def groups() -> list[TrajectoryGroup]:
    """Four of eight answers of 64 tokens."""
    question, ids = Message(Role.USER, "q" * 40), tuple(range(10, 74))
    logprobs = tuple(TokenLogprob("?", -5.0) for _ in ids)
    choice = SampledChoice(Message(Role.ASSISTANT, "?"), logprobs=logprobs, token_ids=ids)
    return [TrajectoryGroup(tuple(Trajectory((History((question, choice)),), number % 2) for number in range(8)))] * 4


def resident(which: str) -> int:
    """Bytes: `VmRSS` are there now, `VmHWM` were at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024


def job(trainer: LocalTrainer, name: str) -> Iterator[Any]:
    if name == "RL, compared with the base":
        return trainer.train("rl", RLConfig(kl_penalty_coef=0.1, precalculate_logprobs=True), groups(), context())
    data = examples(*JOBS[name])
    return trainer.train("sft", SFTConfig(batch_size=len(data)), data * 2, context())


def measure(folder: Path, tuning: Tuning, name: str, found: Any) -> None:
    """Train, and tell what it took."""
    reckoned: list[int] = []
    make = MemoryBudget._pass

    def noticed(room: MemoryBudget, numbers: Sequence[int], rows: Sequence[Any]) -> Pass:
        made = make(room, numbers, rows)
        reckoned.append(room._total(len(made.rows), max(len(row.ids) for row in made.rows), made.recomputed))
        return made

    before = resident("VmRSS")
    with patch.object(MemoryBudget, "_pass", noticed):
        list(job(LocalTrainer([base_of(folder, tuning)], device="cpu"), name))
    found.put((max(reckoned) + UNSEEN, resident("VmHWM") - before))


def measured(folder: Path, tuning: Tuning, name: str) -> dict[str, float]:
    forks = multiprocessing.get_context("fork")
    found = forks.SimpleQueue()
    process = forks.Process(target=measure, args=(folder, tuning, name, found))
    process.start()
    reckoned, taken = found.get()
    process.join()
    return {
        "reckoned, MiB": round(reckoned / MIB, 1),
        "taken, MiB": round(taken / MIB, 1),
        "ratio": round(reckoned / taken, 2),
    }


def main() -> None:
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (shape, sizes) in enumerate(SHAPES.items()):
            folder = folder_of(Path(scratch) / str(number), sizes)
            for tuning in Tuning:
                for name in (*JOBS, "RL, compared with the base"):
                    report[f"{shape}; {tuning}; {name}"] = measured(folder, tuning, name)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
