"""A small yard for the tests of models, jobs and training: everything in memory, time moved by hand, one history."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import Message, Role
from modelyard.domain.identity import Principal, Scope, host
from modelyard.domain.job import Job, JobEvent, JobKind, JobProgress
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.schema import RECORDS
from modelyard.domain.training import Example, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.executors.inline import InlineExecutor
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.service import Jobs
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.models.service import Models
from modelyard.platform.runtime import ProcessCache, Runtime, Settings
from modelyard.platform.training.handle import JobHandle
from modelyard.platform.training.service import Training
from modelyard.protocols import Randomness, SavedState, Started, Step, Store, TrainContext, Trained, TrainItem
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore

BASE = "base-model"
STATE = "state.json"
WEIGHTS = "weights.bin"
SAVE_EVERY = 2


@attrs.define
class HashTrainer:
    """Its weights are a chain of digests: any step lost, doubled or swapped gives other weights.

    `before` is called before each item with the name of what is to come, such as "step 3": a place for faults.
    """

    before: Callable[[str], object] = lambda _: None

    def methods(self, base_model: str) -> tuple[str, ...]:
        return ("sft", "rl") if base_model == BASE else ()

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        rows = (self._sft_rows if method == "sft" else self._rl_rows)(config, data, context)
        return self._train(rows, context)

    def _sft_rows(self, config: SFTConfig, data: Iterable[Example], _: TrainContext) -> list[str]:
        rates = config.learning_rates(sum(1 for _ in data))
        return [f"{row.messages[-1].text} {rate}" for row, rate in zip(_batches(config, data), rates, strict=True)]

    def _rl_rows(self, config: RLConfig, data: Iterable[TrajectoryGroup], context: TrainContext) -> list[str]:
        reference = _digest(context.reference(WEIGHTS)) if context.reference and context.reference_files else ""
        return [f"{[one.reward for one in group.trajectories]} {config.learning_rate} {reference}" for group in data]

    def _train(self, rows: Sequence[str], context: TrainContext) -> Iterator[TrainItem]:
        weights, first = self._begin(context)
        self.before("started")
        yield Started(len(rows))
        for number, row in enumerate(rows[first:], first + 1):
            self.before(f"step {number}")
            weights = hashlib.sha256(f"{weights}{row}{context.seed}".encode()).hexdigest()
            yield Step(number, {"loss": 1 / number, "num_trainable_tokens": len(row)})
            if number % SAVE_EVERY == 0:
                self.before(f"state {number}")
                yield SavedState(number, {STATE: [json.dumps([weights, number]).encode()]})
        self.before("trained")
        yield Trained({WEIGHTS: [weights.encode()]}, {"loss": 0.5})

    def _begin(self, context: TrainContext) -> tuple[str, int]:
        if context.resume is not None:
            with context.resume(STATE) as file:
                weights, step = json.load(file)
            assert step == context.resume_step
            return weights, step
        return (_text(context.parent(WEIGHTS)) if context.parent_files else BASE), 0


def _batches(config: SFTConfig, data: Iterable[Example]) -> list[Example]:
    return list(data)[:: config.rows_per_batch]


def _text(file: BinaryIO) -> str:
    with file:
        return file.read().decode()


def _digest(file: BinaryIO) -> str:
    return hashlib.sha256(_text(file).encode()).hexdigest()


def examples(size: int, tag: str = "") -> list[Example]:
    return [
        Example((Message(Role.USER, f"question {number}"), Message(Role.ASSISTANT, f"answer {tag}{number}")))
        for number in range(size)
    ]


def groups(*rewards: float) -> list[TrajectoryGroup]:
    return [TrajectoryGroup((Trajectory((), reward), Trajectory((), -reward))) for reward in rewards]


def numbered_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"00000000-0000-7000-8000-{next(numbers):012x}"


def numbered_bytes() -> Randomness:
    numbers = count(1)
    return lambda size: hashlib.shake_128(str(next(numbers)).encode()).digest(size)


@attrs.define(eq=False)
class Yard:
    """What a platform is made of, as the host sees it."""

    runtime: Any
    """What its platform runs on; a test may put another trainer, store or clock into it."""
    trainer: HashTrainer
    clock: ManualClock
    seen: list[object]
    principal: Principal = attrs.field(factory=lambda: host("acme"))
    examples = staticmethod(examples)
    groups = staticmethod(groups)
    abandoned: list[object] = attrs.field(factory=list)

    @classmethod
    def build(cls, store: Store | None = None, **settings: Any) -> "Yard":
        trainer, clock, seen = HashTrainer(), ManualClock(), []
        platform = open_platform(
            entity="acme",
            store=store or MemoryStore(RECORDS),
            artifacts=MemoryArtifacts(numbered_bytes()),
            backend=EchoBackend((BASE, "echo")),
            trainers=(trainer,),
            clock=clock,
            ids=numbered_ids(),
            randomness=lambda size: bytes(size),
            observer=seen.append,
            settings=Settings(**{"poll": 1.0, **settings}),
        )
        return cls(platform._runtime, trainer, clock, seen)

    @property
    def models(self) -> Models:
        return Models(self.runtime, self.principal)

    @property
    def training(self) -> Training:
        return Training(self.runtime, self.principal)

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.runtime, self.principal)

    def as_tenant(self, entity: str, *projects: str) -> "Yard":
        scope = Scope(entity, frozenset(projects) if projects else None)
        return attrs.evolve(self, principal=Principal("key", entity, scope, "key-id"))

    def model(self, name: str = "m", project: str = "p") -> Model:
        return self.models.create(name, project=project, base_model=BASE, return_existing=True)

    def sft(self, rows: int = 10, model: str = "m", tag: str = "") -> JobHandle:
        return self.training.sft(self.model(model), examples(rows, tag))

    def runner(self) -> Runner:
        return Runner(self.runtime)

    def worker(self) -> Worker:
        return Worker(self.process(), InlineExecutor())

    def process(self) -> Runtime:
        """Return what another process on the same store would run on."""
        return attrs.evolve(self.runtime, cache=ProcessCache())

    def claim(self, runner: Runner | None = None) -> Any:
        claimed = (runner or self.runner()).claim()
        assert claimed is not None
        return claimed

    def abandon(self, items: int) -> Iterator[None]:
        """A worker claims the next job, stores so many items, and is never heard of again."""
        runner = self.runner()
        steps = runner.steps(self.claim(runner))
        for _ in range(items):
            next(steps)
        self.abandoned.append(steps)
        return steps

    def lose_worker(self, successor: Runner | None = None) -> None:
        """Let the lease of the worker that holds a job run out, and a successor take the job away."""
        runner = successor or self.runner()
        runner.reclaim_expired()
        self.clock.advance(self.runtime.settings.lease)
        runner.reclaim_expired()

    def job(self, job_id: str) -> Job:
        return self.runtime.store.read(lambda snapshot: snapshot.get(Job, job_id))

    def progress(self, job_id: str) -> JobProgress:
        return self.runtime.store.read(lambda snapshot: snapshot.get(JobProgress, job_id))

    def events(self, job_id: str) -> list[JobEvent]:
        return self.runtime.store.read(lambda snapshot: snapshot.page(JobEvent, "by_job", job_id, limit=1000))

    def story(self, job_id: str) -> list[tuple[str, int]]:
        return [(event.type, event.step) for event in self.events(job_id)]

    def digest(self, job_id: str) -> str:
        """Of the checkpoint that a job made."""
        checkpoint_id = self.job(job_id).result["checkpoint_id"]
        return self.runtime.store.read(lambda snapshot: snapshot.get(Checkpoint, checkpoint_id)).digest

    def files(self) -> set[str]:
        return set(self.runtime.artifacts.names())

    def new_job(self, lane: str, kind: str = JobKind.SFT, **fields: Any) -> Job:
        return Job(self.runtime.ids(), kind, "acme", "p", lane, self.clock.now(), **fields)


@pytest.fixture(params=[MemoryStore, lambda records: RunTwiceStore(MemoryStore(records))], ids=["once", "twice"])
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    """A yard on a store in memory, and on one that runs every step twice."""
    built = Yard.build(request.param(RECORDS))
    yield built
    for steps in built.abandoned:
        steps.close()


@pytest.fixture
def yard_on_disk(yard_file: Path) -> Iterator[Yard]:
    """A yard in a SQLite file."""
    store = SqliteStore(yard_file, RECORDS, durability="process")
    built = Yard.build(store)
    yield built
    for steps in built.abandoned:
        steps.close()
    store.close()


@pytest.fixture(scope="session")
def build() -> type[Yard]:
    """For a yard with settings of one's own."""
    return Yard


@pytest.fixture
def undisturbed() -> str:
    """The digest of what a job of ten rows makes that nothing happens to."""
    yard = Yard.build()
    job = yard.sft()
    yard.worker().run_until_idle()
    return yard.digest(job.id)


@pytest.fixture(params=["memory", "sqlite", "run twice"])
def platform(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[Platform]:
    """A platform on each of our stores, and on one that runs every step twice, with the same ids in each run."""
    store: Any = MemoryStore(RECORDS)
    if request.param == "sqlite":
        store = SqliteStore(yard_file, RECORDS, durability="process")
    clock, randomness = ManualClock(), Random(1).randbytes
    used: Any = RunTwiceStore(store) if request.param == "run twice" else store
    with open_platform(store=used, clock=clock, randomness=randomness) as opened:
        yield opened
    store.close()
