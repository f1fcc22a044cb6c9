"""Scripted episodes of every kind: what is trained is what was sampled, token by token.

python -m tests.campaigns.episodes [--episodes 10000] [--seed 1] [--minutes N] [--sabotage]

Each has one or two programs in the formats of three APIs, whole or streamed, with tools, forks, retries, histories that
are compacted or rewritten, and templates that keep thoughts or drop them. It prints how many turns there were, and
how many tokens were compared. With `--sabotage` every prompt counts as one that continues, so it must fail.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from episode_agents import NotingModel, check_episode, play
from http_client import client_of
from modelyard import open_platform
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.parts.episodes import capture

BASES = ("keeps", "drops")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--sabotage", action="store_true")
    asked = parser.parse_args()
    if asked.sabotage:
        capture.continues = lambda prompt, turn: 0 < turn.length <= len(prompt)  # type: ignore[assignment]
    counted: Counter[str] = Counter()
    failed, until, model = 0, time.monotonic() + 60 * asked.minutes, NotingModel()
    with open_platform(backend=model, trainers=[TabularTrainer(BASES)]) as platform:
        for base in BASES:
            platform.models.create(base, project="desk", base_model=base)
        client = client_of(platform)
        for number in range(asked.episodes):
            if time.monotonic() > until:
                break
            base = BASES[number % 2]
            model.sampled.clear()
            group = play(platform, client, base, asked.seed * 10**6 + number)
            try:
                turns = check_episode(group, model, base)
            except AssertionError as error:
                failed += 1
                print(f"episode {number}: {str(error)[:200]}")
                continue
            platform.episodes.delete(group.id)
            counted.update({"episodes": 1, "turns": len(turns), "trained": sum(not one.untrained for one in turns)})
            counted.update({"tokens": sum(len(one.ids) for one in turns)})
            counted.update(one.why.partition(":")[0] or "follows" for one in turns)
    print(dict(counted), f"{failed} episodes differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
