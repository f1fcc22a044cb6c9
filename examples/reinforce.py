"""Reinforcement learning in one file: sample answers, reward them, train on the rewards, and look at the mean reward.

    python examples/reinforce.py [plot.svg]

The model first sees some support answers (SFT); then it answers eight of their questions again and again, and is
rewarded for each word that it shares with the reference answer. Nothing is kept but the plot, if you name one, and
nothing is downloaded.
"""

import sys

from modelyard import Rollout, examples, gather, open_platform

TRAIN = examples.support().train
QUESTIONS = examples.tasks(TRAIN)[::36][:8]
ROUNDS, SAMPLES = 6, 6


def reward(said, reference):
    """The share of words in common: F1 of the two bags of words."""
    ours, theirs = said.lower().split(), reference.lower().split()
    common = sum(min(ours.count(word), theirs.count(word)) for word in set(ours))
    return 2 * common / (len(ours) + len(theirs)) if ours else 0.0


def attempt(platform, task, seed):
    """One answer to a question, with its reward."""
    rollout = Rollout(platform.chat, model="local/demo/support", project="demo", max_tokens=80, seed=seed)
    answer = rollout.ask(task["messages"])
    return rollout.trajectory(reward(answer.message.text, task["expected"]))


def main():
    with open_platform() as platform:
        model = platform.models.create("support", project="demo", base_model="tabular-mini")
        platform.training.sft(model, TRAIN).wait()
        for round_ in range(ROUNDS):
            seeds = range(round_ * SAMPLES, (round_ + 1) * SAMPLES)
            groups = [gather(lambda seed, task=task: attempt(platform, task, seed), seeds) for task in QUESTIONS]
            rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
            print(f"round {round_ + 1}: mean reward {sum(rewards) / len(rewards):.2f}", flush=True)
            platform.training.rl(model, groups, learning_rate=1e-5).wait()
        for path in sys.argv[1:]:
            platform.models.plot(model.id).save(path)


if __name__ == "__main__":
    main()
