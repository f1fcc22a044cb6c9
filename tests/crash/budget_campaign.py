"""Processes killed in the middle of calls that last longer than any lease, under one budget:

    python tests/crash/budget_campaign.py [--kills 10] [--seed 1] [--lease 2] [--sabotage]

Three processes share a file and a budget; one of them takes itself for another machine, so that only its beats tell
that it lives. In each round the budget has room for six calls, and nine are wanted at a time. One process is killed at
a random moment and replaced. The round is over when the budget is used up: by then every reservation of the dead must
have come back, and no more than the limit may be spent. Prints a report as JSON; fails when anything is wrong.
With `--sabotage` no process beats: the campaign must then fail.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.usage import Admission
from modelyard.domain.worker import ProcessRecord
from modelyard.errors import BudgetExceeded
from modelyard.platform.runtime import Settings
from modelyard.platform.usage import presence
from modelyard.protocols import ServedModel

TOKENS = 5
CALLS = 6
MACHINES = ("", "", "elsewhere")
"""Where each process runs: the first two where they really do, the third on a machine of its own each time."""

THREADS = 3
LEASES_A_CALL = 3


@attrs.define(eq=False)
class SlowBackend(EchoBackend):
    """A token costs 1 USD and takes `pause` seconds."""

    pause: float

    def __attrs_pre_init__(self, pause: float) -> None:
        super().__init__(pricing=Pricing(completion=Decimal(1)))

    @property
    def blocking(self) -> bool:
        return True

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        for delta in super().stream(attrs.evolve(request, streamed=True), model):
            time.sleep(self.pause)
            yield delta


def serve(path: str, machine: str, lease: float, sabotage: bool) -> None:
    """Ask for one answer after the other in several threads, until the input ends."""
    if machine:
        presence.machine = lambda: machine
    if sabotage:
        presence.Periodic.start = lambda self: None  # type: ignore[method-assign]
    backend, settings = SlowBackend(LEASES_A_CALL * lease / TOKENS), Settings(admission_lease=lease)
    platform = open_platform(path, backend=backend, settings=settings, durability="process")
    for _ in range(THREADS):
        threading.Thread(target=ask_on, args=(platform,), daemon=True).start()
    sys.stdin.read()


def ask_on(platform: Platform) -> None:
    while True:
        try:
            platform.chat.complete(model="echo", messages="a b c d e", max_tokens=TOKENS)
        except BudgetExceeded:
            time.sleep(0.05)


@attrs.define
class BudgetCampaign:
    """The rounds. `wrong` is what was found to be wrong, and `recovered` the seconds until what was held was back."""

    path: Path
    lease: float
    sabotage: bool
    dice: random.Random
    platform: Platform
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    recovered: list[float] = attrs.field(factory=list)
    held: list[int] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)

    def run(self, kills: int) -> None:
        """Play rounds until one goes wrong or there were so many kills."""
        self.platform.usage.set_budget(0)
        self.processes = [self._start(machine) for machine in MACHINES]
        while not self.wrong and len(self.recovered) < kills:
            self._play()
        for process in self.processes:
            process.communicate()
        if not self.wrong and (self._records(Admission) or self._budget.reserved):
            self.wrong.append("something is still held in the end")

    def _start(self, machine: str) -> subprocess.Popen[bytes]:
        place = f"{machine}-{len(self.held)}" if machine else ""
        options = ["--serve", str(self.path), "--machine", place, "--lease", str(self.lease)]
        options += ["--sabotage"] if self.sabotage else []
        return subprocess.Popen([sys.executable, __file__, *options], stdin=subprocess.PIPE)

    def _play(self) -> None:
        self.platform.usage.set_budget(self._budget.spent + CALLS * TOKENS)
        self._wait(lambda: len(self._records(Admission)) == CALLS, "six calls do not run at once")
        time.sleep(self.dice.uniform(0, LEASES_A_CALL * self.lease))  # the moment is to be random
        self._kill(self.dice.randrange(len(MACHINES)))
        self._wait(lambda: self._budget.remaining < TOKENS and not self._budget.reserved, "the budget is not used up")
        budget, (total,) = self._budget, self.platform.usage.total()
        if budget.spent > budget.limit:
            self.wrong.append(f"{budget.spent} were spent of {budget.limit}")
        if budget.spent != total.cost:
            self.wrong.append(f"{budget.spent} were spent and {total.cost} booked")

    def _kill(self, at: int) -> None:
        process = self.processes[at]
        process.kill()
        process.wait()
        dead, begun = f"{process.pid}-", time.monotonic()
        owners = {record.id for record in self._records(ProcessRecord) if record.process.startswith(dead)}
        self.held.append(sum(admission.owner in owners for admission in self._records(Admission)))
        self.processes[at] = self._start(MACHINES[at])
        self._wait(
            lambda: not any(admission.owner in owners for admission in self._records(Admission)),
            "what a killed process held does not come back",
        )
        self.recovered.append(round(time.monotonic() - begun, 2))

    def _wait(self, done: Any, complaint: str) -> None:
        until = time.monotonic() + 60 + 10 * self.lease
        while not self.wrong and not done():
            if time.monotonic() > until:
                self.wrong.append(complaint)
            time.sleep(0.02)

    @property
    def _budget(self) -> Any:
        return self.platform.usage.get_budget()

    def _records(self, cls: type) -> list[Any]:
        index = "all" if cls is ProcessRecord else "by_entity"
        where = () if cls is ProcessRecord else ("local",)
        return self.platform._runtime.store.read(lambda snapshot: snapshot.page(cls, index, *where))

    def report(self) -> dict[str, Any]:
        """What was done, and what came of it."""
        return {
            "kills": len(self.held),
            "calls that the killed held": sum(self.held),
            "seconds until they were back": sorted(self.recovered),
            "spent": str(self._budget.spent),
            "limit": str(self._budget.limit),
            "wrong": self.wrong,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--sabotage", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--machine", default="", help=argparse.SUPPRESS)
    requested = parser.parse_args()
    if requested.serve is not None:
        serve(requested.serve, requested.machine, requested.lease, requested.sabotage)
        return
    with tempfile.TemporaryDirectory() as folder, open_platform(path := Path(folder) / "yard.db") as platform:
        campaign = BudgetCampaign(path, requested.lease, requested.sabotage, random.Random(requested.seed), platform)
        try:
            campaign.run(requested.kills)
        finally:
            for process in campaign.processes:
                process.kill()
                process.wait()
        print(json.dumps(campaign.report(), indent=2))
    sys.exit(bool(campaign.wrong))


if __name__ == "__main__":
    main()
