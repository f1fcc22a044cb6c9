"""Training and answering with the tabular model, as JSON: python benchmarks/training.py. CPU, in memory.

The floor is what the interpreter takes for the same kind of work, measured in turns with it: a thousand times
multiply and add in a plain loop.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

from modelyard import examples, open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.platform.platform import Platform

DATA = examples.support().train
ROUNDS = 5
SAMPLES = 6
BASE = "tabular-mini"
TUNED = "local/bench/m"


def cpu_ms(call: Callable[[], object]) -> float:
    begun = time.process_time_ns()
    call()
    return (time.process_time_ns() - begun) / 1e6


def thousand_steps() -> float:
    total = 0.0
    for value in [0.5] * 1000:
        total += value * 3.0
    return total


def per_60_tokens(host: Platform, **options: Any) -> float:
    """CPU milliseconds of 60 tokens, from answers that end when they end."""
    tokens, spent = 0, 0.0
    for seed in range(20):
        begun = time.process_time_ns()
        answer = host.chat.complete(
            model=TUNED, messages=f"How do I move file {seed}?", project="bench", max_tokens=80, seed=seed, **options
        )
        spent += (time.process_time_ns() - begun) / 1e6
        tokens += answer.usage.completion_tokens
    return spent / tokens * 60


def groups(host: Platform, rows: list[Any]) -> list[TrajectoryGroup]:
    """Answers to eight questions, rewarded for being short."""
    found = []
    for row in rows[:8]:
        requested = row["messages"][:-1]
        answer = host.chat.complete(
            model=TUNED, messages=requested, n=SAMPLES, seed=1, max_tokens=80, logprobs=True, project="bench"
        )
        prompt = tuple(Message(Role(message["role"]), message["content"]) for message in requested)
        trajectories = [
            Trajectory((History((*prompt, SampledChoice.of(choice))),), reward=-len(choice.message.text) / 100)
            for choice in answer.choices
        ]
        found.append(TrajectoryGroup(tuple(trajectories)))
    return found


def one_round(rows: list[Any]) -> dict[str, float]:
    """Everything once, on a platform of its own."""
    with open_platform() as host:
        host.models.create("m", project="bench", base_model=BASE)
        figures = {"a thousand multiply-adds": statistics.median(cpu_ms(thousand_steps) for _ in range(99))}
        figures["SFT job, 292 rows"] = cpu_ms(lambda: host.training.sft("bench/m", rows).wait())
        figures["first token of a checkpoint"] = cpu_ms(
            lambda: host.chat.complete(model=TUNED, messages="Hello", project="bench", max_tokens=1)
        )
        figures["60 tokens, greedy"] = per_60_tokens(host, temperature=0)
        figures["60 tokens, sampled"] = per_60_tokens(host, logprobs=True)
        rollouts = groups(host, rows)
        figures["RL job, 48 trajectories"] = cpu_ms(
            lambda: host.training.rl("bench/m", rollouts, learning_rate=1e-5).wait()
        )
    return figures


def main() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    rounds = [one_round(rows) for _ in range(ROUNDS)]
    figures = {name: round(statistics.median(found[name] for found in rounds), 3) for name in rounds[0]}
    floor = figures["a thousand multiply-adds"]
    report = {
        "python": platform.python_version(),
        "CPU ms": figures,
        "in thousands of multiply-adds": {name: round(spent / floor) for name, spent in figures.items()},
        "SFT job, target CPU ms": 600,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
