"""Runs on the tabular model, whose commands are applied in the thread of the test, on a clock moved by hand."""

from collections.abc import Sequence
from typing import Any

import attrs

from modelyard import Platform, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.schema import RECORDS
from modelyard.parts.tinker.command_log import Future
from modelyard.parts.tinker.records import CommandKind
from modelyard.platform.runtime import Settings
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.testing.clock import ManualClock
from tinker_messages import forward_backward

BASE = "tabular-mini"
SETTINGS = Settings(run_idle=0.0, lease=30.0)
Command = tuple[CommandKind, dict[str, Any]]


def rows_of(text: str, weight: float = 1.0) -> list[tuple[list[int], list[int], list[float]]]:
    """The one row that teaches a text."""
    tokens = list(text.encode())
    return [(tokens[:-1], tokens[1:], [weight] * (len(tokens) - 1))]


@attrs.define
class Driven:
    """A platform, a session and a run in it."""

    platform: Platform
    session: str = ""
    run: str = ""
    base: str = BASE

    def begin(self, number: int = 0, **adapter: Any) -> str:
        """Begin a run, of a session of its own where there is none."""
        runs = self.platform.compat.training_runs
        self.session = self.session or runs.sessions.begin().id
        chosen = {"rank": 4, "seed": 1, **adapter}
        self.run = runs.create(self.session, number, base_model=self.base, adapter=chosen).rpartition(":")[0]
        return self.run

    def learn(self, number: int, text: str, run: str = "", **more: Any) -> str:
        """Add the gradients of a text. Returns the id of the future."""
        run = run or self.run
        body = forward_backward(run, number, rows_of(text, **more))
        return self.platform.compat.training_runs.command(run, number, CommandKind.FORWARD_BACKWARD, {}, body)

    def step(self, number: int, rate: float = 1e-3, run: str = "") -> str:
        """Make an optimizer step."""
        command = self.platform.compat.training_runs.command
        return command(run or self.run, number, CommandKind.OPTIM_STEP, {"learning_rate": rate})

    def save(self, number: int, name: str, run: str = "", **options: Any) -> str:
        """Save the state of the run."""
        return self.platform.compat.training_runs.save(run or self.run, number, CommandKind.SAVE, name, **options)

    def work(self) -> None:
        """Apply what has come."""
        self.platform.worker().run_until_idle()

    def answers(self, *futures: str) -> list[Future]:
        """What was answered."""
        return [self.platform.compat.training_runs.future(future) for future in futures]

    def digest(self, name: str, run: str = "") -> str:
        """The digest of the weights that were saved under a name."""
        runs = self.platform.compat.training_runs
        weights = runs.weights.get(f"tinker://{run or self.run}/weights/{name}")
        model = runs.get(run or self.run).model_id
        return self.platform.models.checkpoint(model, weights.step).digest


def course(driven: Driven, texts: Sequence[str] = ("one", "two", "three")) -> list[str]:
    """Train on texts, each with a step of its own, and save the end. Returns the ids of the futures."""
    futures = []
    for at, text in enumerate(texts):
        futures += [driven.learn(2 * at + 1, text), driven.step(2 * at + 2)]
    return [*futures, driven.save(2 * len(texts) + 1, "end")]


def opened(store: Store | None = None, artifacts: Any = None, **more: Any) -> Platform:
    """A platform on a clock moved by hand."""
    settings = {"settings": SETTINGS, "clock": ManualClock(), **more}
    return open_platform(store=store or MemoryStore(RECORDS), artifacts=artifacts or MemoryArtifacts(), **settings)


def shown_run(platform: Platform, entity: str, text: str = "") -> Driven:
    """A run of an entity that has learned and saved. Its session calls itself by the text, and its metadata has it."""
    runs = platform.acting_as(Principal("ann", entity, Scope(entity))).compat.training_runs
    session = runs.sessions.begin(display_name=text, sdk_version="0.38.0").id
    driven = Driven(platform, session)
    created = {"base_model": BASE, "adapter": {"rank": 4, "seed": 1}, "metadata": {"note": text}}
    driven.run = runs.create(session, 0, **created).rpartition(":")[0]
    course(driven)
    driven.work()
    return driven
