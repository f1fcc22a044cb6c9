"""Reinforcement learning of a neural network on this machine: a tiny language model learns to speak in digits.

    pip install modelyard[torch]
    python examples/reinforce_local.py [where the plot goes] [folder of a base model]

The base model is made on the spot, of random weights, so it knows nothing: nearly all that it says is noise. Each round
it answers four questions eight times each, every answer is rewarded for its share of digits, and one RL job trains an
adapter on them. Name the folder of a real model to train that instead; nothing is downloaded.
"""

import sys
import tempfile
from pathlib import Path

import torch

from modelyard import Message, Role, Trajectory, TrajectoryGroup, open_platform
from modelyard.testing import build_tiny_model

QUESTIONS = ["How many?", "How far is it?", "When was that?", "What does it cost?"]
ROUNDS, SAMPLES, TOKENS = 16, 8, 8
LEARNING_RATE = 5e-3  # a hundred times what a model that knows something wants


def reward(said):
    """The share of digits among the characters that were said."""
    return sum(letter in "0123456789" for letter in said) / max(len(said), 1)


def attempts(platform, question, round_):
    """Several answers to a question, sampled side by side, with their rewards."""
    answer = platform.chat.complete(
        model="local/demo/counter",
        messages=question,
        project="demo",
        n=SAMPLES,
        seed=round_ * SAMPLES,
        max_tokens=TOKENS,
        logprobs=True,
    )
    return TrajectoryGroup(
        tuple(
            Trajectory.of([Message(Role.USER, question)], choice, reward(choice.message.text))
            for choice in answer.choices
        )
    )


def learn(platform, folder):
    """Returns the mean reward of each round."""
    platform.add_base_model(folder, id="base")
    model = platform.models.create("counter", project="demo", base_model="base")
    rewards = []
    for round_ in range(ROUNDS):
        groups = [attempts(platform, question, round_) for question in QUESTIONS]
        found = [trajectory.reward for group in groups for trajectory in group.trajectories]
        rewards.append(sum(found) / len(found))
        print(f"round {round_ + 1}: mean reward {rewards[-1]:.2f}", flush=True)
        if any(len({one.reward for one in group.trajectories}) > 1 for group in groups):  # equal rewards teach nothing
            platform.training.rl(model, groups, learning_rate=LEARNING_RATE).wait()
    return rewards


def main(plot="reinforce_local.svg", folder=None):
    with tempfile.TemporaryDirectory() as scratch, open_platform() as platform:
        if folder is None:
            torch.set_num_threads(1)  # for so small a model a second one only waits
            folder = build_tiny_model(Path(scratch) / "base", "mini")
        learn(platform, folder)
        platform.models.plot("demo/counter").save(plot)
        print(f"loss and reward, round by round: {plot}")


if __name__ == "__main__":
    main(*sys.argv[1:])
