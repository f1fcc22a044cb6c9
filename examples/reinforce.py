"""Reinforcement learning in one file: sample answers, reward them, train on the rewards, and look at the mean reward.

    python examples/reinforce.py

The model first sees some support answers (SFT); then it answers eight of their questions again and again, and is
rewarded for each word that it shares with the reference answer. Nothing is kept and nothing is downloaded.
"""

import json
from pathlib import Path

from modelyard import History, Message, Role, SampledChoice, Trajectory, TrajectoryGroup, open_platform

LINES = Path(__file__).with_name("support").joinpath("train.jsonl").read_text(encoding="utf-8").splitlines()
EXAMPLES = [json.loads(line) for line in LINES]
QUESTIONS = EXAMPLES[::36][:8]
ROUNDS, SAMPLES = 6, 6


def reward(said, reference):
    """The share of words in common: F1 of the two bags of words."""
    ours, theirs = said.lower().split(), reference.lower().split()
    common = sum(min(ours.count(word), theirs.count(word)) for word in set(ours))
    return 2 * common / (len(ours) + len(theirs)) if ours else 0.0


def rollout(platform, example, seed):
    """A group: several answers to the same question, each with its reward."""
    *asked, reference = example["messages"]
    prompt = tuple(Message(Role(message["role"]), message["content"]) for message in asked)
    answer = platform.chat.complete(
        model="local/demo/support", messages=asked, n=SAMPLES, seed=seed, max_tokens=80, logprobs=True, project="demo"
    )
    return TrajectoryGroup(
        tuple(
            Trajectory(
                (History((*prompt, SampledChoice.of(choice))),),
                reward=reward(choice.message.text, reference["content"]),
            )
            for choice in answer.choices
        )
    )


def main():
    with open_platform() as platform:
        platform.models.create("support", project="demo", base_model="tabular-mini")
        platform.training.sft("demo/support", EXAMPLES).wait()
        for round_ in range(ROUNDS):
            groups = [rollout(platform, example, seed=round_) for example in QUESTIONS]
            rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
            print(f"round {round_ + 1}: mean reward {sum(rewards) / len(rewards):.2f}", flush=True)
            platform.training.rl("demo/support", groups, learning_rate=1e-5).wait()


if __name__ == "__main__":
    main()
