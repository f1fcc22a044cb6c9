"""Scripted episodes of every kind: what is trained is what was sampled, token by token.

python -m tests.campaigns.episodes [--episodes 10000] [--seed 1] [--minutes N] [--sabotage NAME]

Each has one or two programs in the formats of three APIs, whole or streamed, with tools, forks, retries, histories that
are compacted or rewritten, and a chat template of one of the kinds that there are. It prints how many turns there were,
how many tokens were compared, and how many tokens differ from what was sampled, or are trained and were not sampled.
With `--sabotage` one thing is done wrongly (`SABOTAGES`), so it must fail.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import attrs

from episode_agents import TEMPLATES, Differs, NotingModel, check_episode, play
from http_client import client_of
from modelyard import open_platform
from modelyard.domain.training import History
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.parts.episodes import capture, history, packed, trajectories, tree

MOST_SHOWN = 5


def _lost_turns() -> Any:
    add, count = capture.EpisodeCapture._turn, Counter[str]()

    def turn(self: Any, running: Any, completion: Any, one: Any, before: Any) -> Any:
        count["turns"] += 1
        made = add(self, running, completion, one, before)
        return attrs.evolve(made, episode_id="another") if count["turns"] % 7 == 0 else made

    return patch.object(capture.EpisodeCapture, "_turn", turn)


def _trained_words() -> Any:
    made = trajectories.history_of

    def history_of(sequence: Any) -> History:
        found, first = made(sequence), sequence[0].choice
        written = [
            attrs.evolve(first, message=item) if getattr(item, "role", None) == "tool" else item for item in found.items
        ]
        return attrs.evolve(found, items=tuple(written))

    return patch.object(trajectories, "history_of", history_of)


def _trained_twice() -> Any:
    return patch.object(trajectories, "sequences_of", lambda turns: 2 * tree.sequences_of(turns))


def _mixed_logprobs() -> Any:
    read = packed.entries_of
    return patch.object(tree, "entries_of", lambda body, answer: tuple(reversed(read(body, answer) or ())))


SABOTAGES: dict[str, Callable[[], Any]] = {
    "continue any": lambda: patch.object(
        capture.AskedTokens, "begins_with", lambda self, turn: 0 < turn.length <= len(self.tokens.ids)
    ),
    "trust the length": lambda: patch.object(history, "common_length", lambda one, other: min(len(one), len(other))),
    "lose a turn": _lost_turns,
    "train words of tools": _trained_words,
    "train twice": _trained_twice,
    "mix the log-probabilities": _mixed_logprobs,
}
"""What is done wrongly: a prompt that is as long as a turn continues it, what a process knows of a history is used for
another one, one turn of seven is kept elsewhere, what a tool said counts as sampled, each sequence is trained twice,
and the log-probabilities of an answer are in another order."""


def run(
    episodes: int, seed: int, minutes: float = 1e6, sabotage: str = "", print: Callable[[str], object] = print
) -> int:
    """Play episodes, and return how many of them differ."""
    counted: Counter[str] = Counter()
    until, model = time.monotonic() + 60 * minutes, NotingModel()
    with ExitStack() as stack:
        stack.enter_context(SABOTAGES[sabotage]() if sabotage else nullcontext())
        platform = stack.enter_context(open_platform(backend=model, trainers=[TabularTrainer(tuple(TEMPLATES))]))
        for base in TEMPLATES:
            platform.models.create(base, project="desk", base_model=base)
        client = client_of(platform)
        for number in range(episodes):
            if time.monotonic() > until:
                break
            base = list(TEMPLATES)[number % len(TEMPLATES)]
            model.sampled.clear()
            group = play(platform, client, base, seed * 10**6 + number)
            try:
                turns = check_episode(group, model, base)
            except Differs as found:
                counted.update({"tokens that differ": found.differ, "trained, and not sampled": found.unsampled})
                counted["episodes that differ"] += 1
                if counted["episodes that differ"] <= MOST_SHOWN:
                    print(f"episode {number}: {found}")
                continue
            finally:
                platform.episodes.delete(group.id)
            counted.update({"episodes": 1, "turns": len(turns), "trained": sum(not one.untrained for one in turns)})
            counted.update({"tokens": sum(len(one.ids) for one in turns)})
            counted.update(one.why.partition(":")[0] or "follows" for one in turns)
    for name in ("tokens that differ", "trained, and not sampled", "episodes that differ"):
        counted[name] += 0
    print(str(dict(counted)))
    return counted["episodes that differ"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--sabotage", choices=SABOTAGES, default="")
    asked = parser.parse_args()
    return 1 if run(asked.episodes, asked.seed, asked.minutes, asked.sabotage) else 0


if __name__ == "__main__":
    sys.exit(main())
