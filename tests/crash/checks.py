"""What must hold of a database whose workers come to harm, as sentences; none when all is well."""

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from modelyard import open_platform
from modelyard.domain.job import ENDED, JobStatus
from modelyard.domain.training import (
    GRADIENT_STEP,
    TRAINING_ENDED,
    TRAINING_FAILED,
    TRAINING_STARTED,
    TrainingJob,
    TrajectoryGroup,
)
from modelyard.errors import ArtifactMissing
from modelyard.parts.contracts.trainer import WORDS, rewarded
from modelyard.platform.artifacts import artifacts_folder
from modelyard.platform.platform import Platform
from modelyard.platform.training.submission import SEED_BYTES

PROJECT = "crash"
LAST = {TRAINING_ENDED, TRAINING_FAILED}

Story = Sequence[tuple[str, Any]]
"""The events of a job: type and data."""


def rows(steps: int) -> list[dict[str, Any]]:
    """Training data of so many gradient steps."""
    turns = ((f"question {number}", f"answer {number % 7} {number}") for number in range(steps))
    return [
        {"messages": [{"role": "user", "content": requested}, {"role": "assistant", "content": printed}]}
        for requested, printed in turns
    ]


def pairs(steps: int) -> list[dict[str, Any]]:
    """Pairs of answers for so many gradient steps, one each."""
    return [
        {"messages": row["messages"][:1], "chosen": row["messages"][1], "rejected": "I do not know."}
        for row in rows(steps)
    ]


@attrs.frozen
class Base:
    """The base model of all jobs: a tabular one, or, where a folder is named, the network that lies there.

    The jobs of a model take turns through the `methods`.
    """

    folder: Path | None = None
    methods: tuple[str, ...] = ("sft", "dpo")

    def offered(self, platform: Platform) -> str:
        """Its id, once the platform offers it."""
        if self.folder is None:
            return "tabular-mini"
        return platform.add_base_model(self.folder, id="network").id

    def job(self, platform: Platform, model: str, steps: int, number: int) -> Any:
        """The nth job of a model, from 1; RL with all that a job may remember."""
        method = self.methods[(number - 1) % len(self.methods)]
        if method == "sft":
            return platform.training.sft(model, rows(steps), batch_size=1)
        if method == "dpo":
            return platform.training.dpo(model, pairs(steps), batch_size=1, learning_rate=1e-4)
        remembered = {"kl_penalty_coef": 0.1, "precalculate_logprobs": True, "learning_rate": 1e-3}
        return platform.training.rl(model, groups(steps), packed_sequence_length=1, **remembered)


def same_seeds(count: int) -> bytes:
    """Random bytes; those of a job's seed are always the same."""
    return bytes(count) if count == SEED_BYTES else os.urandom(count)


def groups(steps: int) -> list[TrajectoryGroup]:
    """Rewarded answers for so many gradient steps, an even number."""
    return [rewarded(WORDS[number % len(WORDS)], [1.0, 0.0]) for number in range(steps // 2)]


class Undisturbed:
    """Jobs of one model to which nothing happens. `of(n)` is the story and the checkpoint's digest of the nth."""

    def __init__(self, steps: int, base: Base) -> None:
        self._steps, self._base, self._platform = steps, base, open_platform(randomness=same_seeds)
        self._platform.models.create("m", project=PROJECT, base_model=base.offered(self._platform))
        self._ended: list[tuple[Story, str]] = []

    def of(self, number: int) -> tuple[Story, str]:
        while len(self._ended) < number:
            job = self._base.job(self._platform, f"{PROJECT}/m", self._steps, len(self._ended) + 1)
            digest = job.result().digest
            self._ended.append((story(self._platform, job.id), digest))
        return self._ended[number - 1]


undisturbed = cache(Undisturbed)


def story(platform: Platform, job_id: str) -> Story:
    """The events of a job, in order, without the memory that was free when it began."""
    return [(event.type, _of_any_machine(event.data)) for event in events(platform, job_id)]


def _of_any_machine(data: Mapping[str, Any]) -> dict[str, Any]:
    about = {name: value for name, value in data.get("about", {}).items() if name != "memory"}
    return {**data, **({"about": about} if about else {})}


def events(platform: Platform, job_id: str) -> list[Any]:
    """The events of a job, in order."""
    return list(platform.training.events(job_id))


@attrs.define
class Evidence:
    """One database, and what its workers printed. `steps` are the gradient steps of every job on `base`.

    `requested` are its jobs by id, each with its model and its number among the model's jobs; `last_seen` is how they
    were when the last worker died; `lost` counts a job's attempts that came to nothing because their worker died or was
    replaced.
    """

    path: Path
    steps: int
    requested: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    acknowledged: set[tuple[str, str, int]] = attrs.field(factory=set)
    last_seen: dict[str, TrainingJob] = attrs.field(factory=dict)
    lost: Counter[str] = attrs.field(factory=Counter)
    base: Base = Base()

    @property
    def artifacts(self) -> Path:
        """The folder of its files."""
        return Path(artifacts_folder(self.path))

    def open(self) -> Platform:
        """The platform, with no worker."""
        return open_platform(self.path, randomness=same_seeds)

    def ask(self, model: str = "m") -> str:
        """Ask for one more job; its id."""
        with self.open() as platform:
            base = self.base.offered(platform)
            platform.models.create(model, project=PROJECT, base_model=base, return_existing=True)
            number = 1 + [known for known, _ in self.requested.values()].count(model)
            job = self.base.job(platform, f"{PROJECT}/{model}", self.steps, number)
        self.requested[job.id] = model, number
        return job.id

    def read_log(self, lines: Iterable[Sequence[Any]]) -> None:
        """Remember what a worker acknowledged."""
        self.acknowledged |= {(job, type, seq) for word, *more in lines if word == "event" for job, type, seq in [more]}

    @property
    def unended(self) -> list[str]:
        """The jobs that had not ended when the last worker died."""
        return [id for id in self.requested if id not in self.last_seen or self.last_seen[id].status not in ENDED]

    # ---- what is wrong

    def wrong_now(self) -> list[str]:
        """Return what may not be at any moment, no matter which process was killed."""
        with self.open() as platform:
            found = self._wrong(platform)
        return [*found, *self._wrong_files()]

    def wrong_after_death(self, printed: Iterable[Sequence[Any]]) -> list[str]:
        """The same, when a worker that said this is dead and no other lives."""
        self.read_log(printed)
        with self.open() as platform:
            found = [*self._wrong(platform), *self._lose_attempts(platform)]
        return [*found, *self._wrong_files()]

    def wrong_in_the_end(self) -> list[str]:
        """What may not be once every job has ended."""
        with self.open() as platform:
            found = [*self._wrong(platform), *_wrong_models(platform, self.requested.values())]
            found += [wrong for job_id in self.requested for wrong in self._wrong_end(platform, job_id)]
        return [*found, *self._wrong_files()]

    def _wrong(self, platform: Platform) -> list[str]:
        found = [wrong for job_id in self.requested for wrong in self._wrong_with(platform, job_id)]
        return [*found, *_wrong_checkpoints(platform)]

    def _lose_attempts(self, platform: Platform) -> Iterator[str]:
        """Count the attempts that ended with a worker. One worker makes at most one."""
        for job_id in self.requested:
            job = self.last_seen[job_id] = platform.training.get(job_id)
            if job.status not in ENDED:
                if job.attempts - self.lost[job_id] > 1:
                    yield f"{job_id}: one worker made {job.attempts - self.lost[job_id]} attempts"
                self.lost[job_id] = job.attempts

    def _wrong_files(self) -> Iterator[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
        if answer != "ok":
            yield f"integrity: {answer}"
        yield from (f"left behind: {part.name}" for part in self.artifacts.glob("*.part"))

    def _wrong_with(self, platform: Platform, job_id: str) -> Iterator[str]:
        job, found = platform.training.get(job_id), events(platform, job_id)
        types = [event.type for event in found]
        if [event.seq for event in found] != list(range(1, len(found) + 1)):
            yield f"{job_id}: seq is not dense: {[event.seq for event in found]}"
        if types != [TRAINING_STARTED, *[GRADIENT_STEP] * self.steps, TRAINING_ENDED][: len(types)]:
            yield f"{job_id}: the events are {types}"
        if (job.status in ENDED) != bool(LAST & {*types}):
            yield f"{job_id}: is {job.status}, but its last event is {types[-1:]}"
        if job.progress != types.count(GRADIENT_STEP):
            yield f"{job_id}: is at step {job.progress}, but tells of {types.count(GRADIENT_STEP)}"
        reported = {(job_id, event.type, event.seq) for event in found}
        missing = {one for one in self.acknowledged if one[0] == job_id} - reported
        if missing:
            yield f"{job_id}: acknowledged, but missing: {sorted(missing)}"

    def _wrong_end(self, platform: Platform, job_id: str) -> Iterator[str]:
        job, number = platform.training.get(job_id), self.requested[job_id][1]
        expected, digest = undisturbed(self.steps, self.base).of(number)
        if job.status is not JobStatus.SUCCEEDED:
            yield f"{job_id}: {job.status}: {job.error_message}"
        if [checkpoint.digest for _, checkpoint in _checkpoints(platform) if checkpoint.job_id == job_id] != [digest]:
            yield f"{job_id}: the checkpoint is not that of an undisturbed job"
        if story(platform, job_id) != expected:
            yield f"{job_id}: the events are not those of an undisturbed job"
        if job.attempts != 1 + self.lost[job_id]:
            yield f"{job_id}: {job.attempts} attempts, with {self.lost[job_id]} lost"

    def unnamed_files(self) -> int:
        """How many artifacts no checkpoint names, once every job has ended."""
        with self.open() as platform:
            named = {file["artifact"] for _, checkpoint in _checkpoints(platform) for file in checkpoint.files.values()}
            return len({*platform._runtime.artifacts.names()} - named)

    def events(self) -> dict[str, list[Any]]:
        """The rows of events, those of superseded attempts with them."""
        return {name: rows for name, rows in self.contents().items() if name.endswith("_events")}

    def contents(self) -> dict[str, list[Any]]:
        """Every row that is not about who is alive."""
        with closing(sqlite3.connect(self.path)) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            return {
                name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr)
                for name in tables
                if name not in ("workers", "worker_processes")
            }


def _models(platform: Platform) -> list[Any]:
    return list(platform.models.list(project=PROJECT))


def _checkpoints(platform: Platform) -> Iterator[tuple[Any, Any]]:
    for model in _models(platform):
        for checkpoint in platform.models.checkpoints(model.id):
            yield model, checkpoint


def _wrong_checkpoints(platform: Platform) -> Iterator[str]:
    """Checkpoints whose files are not what their rows say."""
    for model, checkpoint in _checkpoints(platform):
        for name, file in checkpoint.files.items():
            try:
                with platform.models.open_file(model.id, checkpoint.step, name) as opened:
                    digest = hashlib.sha256(opened.read()).hexdigest()
            except ArtifactMissing:
                yield f"{model.name}: {name} of step {checkpoint.step} is gone"
            else:
                if digest != file["digest"]:
                    yield f"{model.name}: {name} of step {checkpoint.step} is altered"


def _wrong_models(platform: Platform, requested: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Models whose jobs did not make one step each."""
    jobs = Counter(model for model, _ in requested)
    for model in _models(platform):
        steps = [checkpoint.step for owner, checkpoint in _checkpoints(platform) if owner == model]
        if steps != list(range(jobs[model.name] + 1)):
            yield f"{model.name}: {jobs[model.name]} jobs made the steps {steps}"
