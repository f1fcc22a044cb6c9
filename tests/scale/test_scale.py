"""What grows must not cost more: proofs at small sizes by counting, so that no machine's speed matters.

`benchmarks/scale.py` measures the same at full size.
"""

import asyncio
import importlib.util
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.protocols import StoredArtifact
from modelyard.stores.sqlite import connection as readers
from modelyard.stores.sqlite import store

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("scale", Path(__file__).parents[2] / "benchmarks" / "scale.py")
assert _spec is not None
assert _spec.loader is not None
scale = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scale)


# ---- a large body ------------------------------------------------------------------------------------------------

TOKENS = 100


class WatchedArtifacts(FolderArtifacts):
    """Remembers which threads wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writers: set[int] = set()

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        def watched() -> Iterator[bytes]:
            for chunk in chunks:
                self.writers.add(threading.get_ident())
                yield chunk

        return super().put(watched())


def traced_peak(action: Callable[[], object]) -> int:
    """The most bytes that an action had at once, above those before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_body_of_any_size_is_accepted_in_the_same_memory_and_off_the_event_loop(tmp_path: Path) -> None:
    artifacts = WatchedArtifacts(tmp_path / "artifacts")
    with open_platform(artifacts=artifacts, settings=scale.IDLE) as platform:
        scale.announce_worker(platform)
        model = platform.models.create("m", project="p", base_model="tabular-mini", entity="acme")

        def accept(trajectories: int) -> None:
            asyncio.run(scale.accept(platform, model, trajectories, TOKENS))

        accept(1)
        small, large = traced_peak(lambda: accept(60)), traced_peak(lambda: accept(120))
    body = sum(map(len, scale.rl_body(model.id, 120, TOKENS)))
    assert body > 2**20, "too small to tell"
    assert large < small + body / 10
    assert threading.get_ident() not in artifacts.writers


# ---- many events, a long queue -----------------------------------------------------------------------------------


class Work:
    """Counts the instructions that SQLite carries out, on every connection that is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        for module in (readers, store):
            monkeypatch.setattr(module, "connect", self._counted(module.connect))

    def _counted(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **options)
            connection.set_progress_handler(self._count, 1)
            return connection

        return counted

    def _count(self) -> None:
        self.done += 1

    def of(self, action: Callable[[], object]) -> int:
        """The instructions of an action."""
        before = self.done
        action()
        return self.done - before


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def test_each_page_of_events_costs_the_same_work_and_memory(tmp_path: Path, work: Work) -> None:
    with open_platform(tmp_path / "yard.db", durability="process") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        job_id = platform.training.sft("p/m", [scale.ROW]).id
        scale.add_events(platform, job_id, 5_000)
        instructions = [work.of(page) for page in scale.pages(platform, job_id)]
        memory = [traced_peak(page) for page in scale.pages(platform, job_id)]
    assert len(instructions) == 50
    assert max(instructions) <= 1.1 * instructions[0]
    assert max(memory[-10:]) <= 1.5 * max(memory[1:11])


@pytest.mark.parametrize("lanes", [None, 1], ids=["a-model-each", "one-model"])
def test_a_claim_costs_the_same_work_however_long_the_queue(tmp_path: Path, work: Work, lanes: int | None) -> None:
    instructions = []
    for size in (10, 300):
        with open_platform(
            tmp_path / f"{size}.db", durability="process", artifacts=MemoryArtifacts(), settings=scale.IDLE
        ) as platform:
            scale.fill_queue(platform, size, lanes or size)
            instructions.append(work.of(lambda platform=platform: scale.claim_and_return(platform)))
    short, long = instructions
    assert 0 < long <= 1.1 * short
