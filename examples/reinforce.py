"""Reinforcement learning in one file: sample answers, reward them, train on the rewards, validate, repeat.

    python examples/reinforce.py [plot.svg]

The model first sees some support answers (SFT). Then a loop, which is one durable job, has it answer other questions
each round, rewards each answer for the words that it shares with the reference (F1), trains on the rewards, and
measures the same on questions that it never trains on. `reinforce_local.py` does by hand what the loop does. Nothing is
kept but the plot, if you name one, and nothing is downloaded.
"""

import sys

from modelyard import examples, open_platform

SUPPORT = examples.support()
TASKS, HELD_OUT = examples.tasks(SUPPORT.train), examples.tasks(SUPPORT.held_out)[:24]


def main():
    with open_platform() as platform:
        model = platform.models.create("support", project="demo", base_model="tabular-mini")
        platform.training.sft(model, SUPPORT.train).wait()
        loop = platform.training.loop(
            model,
            TASKS,
            "token_f1",
            held_out=HELD_OUT,
            rounds=4,
            tasks_per_round=24,
            samples=4,
            temperature=0.4,
            max_tokens=80,
            learning_rate=1e-5,
        )
        rounds = (event.data for event in loop.events() if event.type == "training_round")
        for number, data in enumerate(rounds, 1):
            print(f"round {number}: mean reward {data['reward']:.2f}, held out {data['held_out']:.2f}", flush=True)
        print(f"the best checkpoint is step {loop.result().step}")
        for path in sys.argv[1:]:
            loop.plot().save(path)


if __name__ == "__main__":
    main()
