"""Workers killed at random moments over one database:

    python tests/crash/campaign.py [--kills 200] [--seed 1] [--base-model local]

Each worker first finishes the job that its predecessor was killed in (one in four is killed before that, too) and is
then killed some random time after a random one of the following job's events. Prints a report as JSON; fails when
anything is wrong.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import attrs
from checks import Base, Evidence
from nursery import Child, Nursery

from modelyard.domain.training import GRADIENT_STEP, TRAINING_ENDED

STEPS = 40
MODELS = ("a", "b", "c")
MODULES = {"tabular": (), "local": ("modelyard.parts.torch.training.trainer", "transformers.modeling_utils")}
"""What workers import, by the kind of base model."""


@attrs.define
class Campaign:
    """Kills workers of one database until there were `kills`, at least half of them between a job's gradient steps.

    `wrong` is what was found to be wrong: the campaign ends with the first of it. `longest_pause` is in seconds,
    several times what a gradient step takes.
    """

    nursery: Nursery
    evidence: Evidence
    dice: random.Random
    request: dict[str, Any] = attrs.field(factory=dict)
    longest_pause: float = 0.01
    where: Counter[str] = attrs.field(factory=Counter)
    between_steps: int = 0
    wrong: list[str] = attrs.field(factory=list)

    def run(self, kills: int) -> None:
        """Do so."""
        while not self.wrong and (self.kills < kills or 2 * self.between_steps < kills):
            while len([job_id for job_id in self.evidence.unended if not self.evidence.lost[job_id]]) < 2:
                self.evidence.ask(MODELS[len(self.evidence.requested) % len(MODELS)])
            self._kill_one()
        if not self.wrong:
            self._finish()

    @property
    def kills(self) -> int:
        """How many there were."""
        return self.where.total()

    def _kill_one(self) -> None:
        child = self._start()
        broken_off = [job_id for job_id in self.evidence.unended if self.evidence.lost[job_id]]
        if broken_off and self.dice.random() < 3 / 4:
            child.hear_until("changed", broken_off[0], "succeeded")
        for _ in range(self.dice.randrange(self.evidence.steps + 2)):
            if self._works(child):
                child.hear_until("event")
        time.sleep(self.dice.uniform(0, self.longest_pause))  # nothing is waited for: the moment is to be random
        child.kill()
        self.wrong = self.evidence.wrong_after_death(child.printed)
        self._count(child)

    def _works(self, child: Child) -> bool:
        """Whether it has more to do, as far as it has said."""
        return any(["changed", job_id, "succeeded"] not in child.printed for job_id in self.evidence.unended)

    def _count(self, child: Child) -> None:
        """Where in a job's life the worker was killed, by the last thing that it said of any."""
        reported = [line for line in child.printed if line[0] in ("event", "changed")]
        self.where[reported[-1][2] if reported else "nothing"] += 1
        if reported and reported[-1][2] == GRADIENT_STEP:
            self.between_steps += self.evidence.last_seen[reported[-1][1]].progress < self.evidence.steps

    def _finish(self) -> None:
        child = self._start()
        for _ in self.evidence.unended:
            child.hear_until("event", ANY, TRAINING_ENDED)
        child.stop()
        self.evidence.read_log(child.printed)
        self.wrong = self.evidence.wrong_in_the_end()

    def _start(self) -> Child:
        return self.nursery.start(self.evidence.path, **self.request)

    def report(self) -> dict[str, Any]:
        """What was done, and what came of it."""
        return {
            "kills": self.kills,
            "between the first and the last gradient step": self.between_steps,
            "by the last thing that the killed worker reported": dict(self.where.most_common()),
            "jobs": len(self.evidence.requested),
            "attempts lost": self.evidence.lost.total(),
            "most attempts lost by one job": max(self.evidence.lost.values()),
            "events acknowledged": len(self.evidence.acknowledged),
            "files that no record names": self.evidence.unnamed_files(),
            "wrong": self.wrong,
        }


def on_tabular_models(nursery: Nursery, folder: Path, dice: random.Random) -> Campaign:
    """A campaign over a database in the folder."""
    return Campaign(nursery, Evidence(folder / "yard.db", STEPS), dice)


def on_networks(nursery: Nursery, folder: Path, dice: random.Random, steps: int = STEPS) -> Campaign:
    """The same with a network, whose workers cannot always show within a tenth of a second that they live."""
    from modelyard.parts.torch.tiny_model import build_tiny_model

    base = Base(build_tiny_model(folder / "base", "micro"), ("rl", "sft", "dpo"))
    return Campaign(nursery, Evidence(folder / "yard.db", steps, base=base), dice, {"lease": 1.0}, longest_pause=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base-model", choices=MODULES, default="tabular")
    requested = parser.parse_args()
    begin = {"tabular": on_tabular_models, "local": on_networks}[requested.base_model]
    with tempfile.TemporaryDirectory() as folder, Nursery(*MODULES[requested.base_model]) as nursery:
        campaign = begin(nursery, Path(folder), random.Random(requested.seed))
        campaign.run(requested.kills)
        print(json.dumps(campaign.report(), indent=2))
    sys.exit(bool(campaign.wrong))


if __name__ == "__main__":
    main()
