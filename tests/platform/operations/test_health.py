"""The system check: it tells what is wrong, and never fails itself."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import attrs
import pytest

from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.job import Job, JobKind, QueueState
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import WorkerRecord
from modelyard.errors import StorageFull
from modelyard.platform.operations.health import CheckResult, Health, SystemCheck
from modelyard.protocols import ArtifactStore, Clock, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore

START = datetime(2026, 11, 20, tzinfo=UTC)


@attrs.define
class Ticking:
    """A clock on which each look takes a quarter of a second."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return START

    def monotonic(self) -> float:
        self.seconds += 0.25
        return self.seconds


@attrs.define
class Artifacts:
    """Artifacts that are well, or have this fault."""

    fault: Exception | None = None
    room: int | None = None

    def free(self) -> int | None:
        return self.room

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[Store]:
    opened: Store = MemoryStore(RECORDS)
    if request.param == "sqlite":
        opened = SqliteStore(yard_file, RECORDS, durability="process")
    yield opened
    opened.close()


@pytest.fixture
def staffed(store: Store) -> Store:
    """A store with a worker that is alive."""
    store.transact(lambda tx: tx.add(WorkerRecord("worker", 1, START)))
    return store


def health_of(store: Store, artifacts: Artifacts | None = None) -> Health:
    clock, parts = cast("Clock", Ticking()), cast("ArtifactStore", artifacts or Artifacts())
    return open_platform(store=store, artifacts=parts, clock=clock, backend=EchoBackend()).health


def parts(check: SystemCheck) -> dict[str, CheckResult]:
    return {name: getattr(check, name) for name in ("api", "store", "artifacts", "worker", "queue")}


def queue(store: Store, job_id: str, place: QueueState, age: timedelta) -> None:
    job = Job(job_id, JobKind.SFT, "acme", "red", "lane", START - age, place=place)
    store.transact(lambda tx: tx.add(job))


def test_the_health_check_is_a_word(store: Store) -> None:
    assert health_of(store).check() == "ok"


def test_a_healthy_system_reports_every_part_and_its_duration(staffed: Store) -> None:
    check = health_of(staffed).system_check()
    assert check.success
    assert check.artifacts == CheckResult(True, 0.25)
    assert all(part.success and part.duration_s >= 0.25 and part.error is None for part in parts(check).values())
    assert check.oldest_queued_s is None


def test_the_check_names_versions_and_the_durability_in_force(store: Store) -> None:
    check = health_of(store).system_check()
    if isinstance(store, MemoryStore):
        assert (check.store_engine, check.store_version, check.durability) == ("memory", None, "none")
    else:
        assert (check.store_engine, check.durability) == ("sqlite", "process")
        assert check.store_version is not None
        assert check.store_version.startswith("3.")
    assert check.version[0].isdigit()


def test_without_a_worker_the_check_says_how_to_start_one(store: Store) -> None:
    check = health_of(store).system_check()
    assert not check.success
    assert not check.worker.success
    assert "modelyard work" in (check.worker.error or "")
    assert all(part.success for name, part in parts(check).items() if name != "worker")


@pytest.mark.parametrize(
    ("fault", "words"), [(StorageFull("no room"), "no room"), (OSError("/secret/place"), "OSError; see the log")]
)
def test_a_part_that_fails_in_any_way_is_reported_and_the_others_are_checked(
    staffed: Store, fault: Exception, words: str
) -> None:
    check = health_of(staffed, Artifacts(fault)).system_check()
    assert not check.success
    assert check.artifacts.error == words
    assert [name for name, part in parts(check).items() if not part.success] == ["artifacts"]


def test_a_worker_that_has_stood_still_for_the_lease_is_not_alive(staffed: Store) -> None:
    watched, clock = health_of(staffed), Ticking()
    watched._runtime = attrs.evolve(watched._runtime, clock=cast("Clock", clock))
    assert watched.system_check().worker.success
    clock.seconds += watched._runtime.settings.lease
    assert not watched.system_check().worker.success


def test_a_closed_store_fails_every_check_that_needs_it(staffed: Store) -> None:
    staffed.close()
    check = health_of(staffed).system_check()
    assert [name for name, part in parts(check).items() if not part.success] == ["store", "worker", "queue"]


def test_the_age_is_that_of_the_oldest_ready_or_waiting_job(store: Store) -> None:
    queue(store, "claimed", QueueState.CLAIMED, timedelta(hours=9))
    queue(store, "done", QueueState.DONE, timedelta(hours=8))
    assert health_of(store).system_check().oldest_queued_s is None
    queue(store, "ready", QueueState.READY, timedelta(minutes=1))
    assert health_of(store).system_check().oldest_queued_s == 60.0
    queue(store, "waiting", QueueState.WAITING, timedelta(minutes=2))
    queue(store, "young", QueueState.READY, timedelta(seconds=1))
    assert health_of(store).system_check().oldest_queued_s == 120.0


def test_a_job_from_the_future_has_no_negative_age(store: Store) -> None:
    queue(store, "ready", QueueState.READY, -timedelta(minutes=1))
    assert health_of(store).system_check().oldest_queued_s == 0.0


def test_a_fault_is_logged_once_in_one_line_and_no_worker_where_no_job_waits_is_none(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts = Artifacts()
    watched = health_of(store, artifacts)
    watched.system_check()
    assert caplog.records == []
    queue(store, "ready", QueueState.READY, timedelta(minutes=1))
    artifacts.fault = StorageFull("no room")
    for _ in range(3):
        watched.system_check()
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "the artifacts cannot be used: no room"
    assert said[1].startswith("the worker cannot be used: no worker is alive")
    assert len(said) == 2
    assert not any(record.exc_info for record in caplog.records)
    artifacts.fault = None
    watched.system_check()
    artifacts.fault = OSError("again")
    watched.system_check()
    assert [record.exc_info is not None for record in caplog.records] == [False, False, True]
