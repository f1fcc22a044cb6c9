"""What a process has promised to sample is lost with it, wherever it ran, and never while it lives."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from driven_runs import BASE, SETTINGS
from modelyard import Platform, open_platform
from modelyard.domain.worker import ProcessRecord
from modelyard.flow import Transact
from modelyard.parts.tinker.records import FutureStatus, SamplingSession
from modelyard.parts.tinker.samplers import RunningSamples, StartTask
from modelyard.platform.usage.presence import presence_of
from modelyard.process_identity import ProcessName
from modelyard.testing.clock import ManualClock

LEASE = SETTINGS.admission_lease


@attrs.define
class Served:
    """Two platforms on one file, each with a clock of its own: one is to sample, and the other is asked for it."""

    sampling: Platform
    asking: Platform

    def sampler(self) -> SamplingSession:
        runs = self.sampling.compat.training_runs
        return runs.samplers.create(runs.sessions.begin().id, 0, base_model=BASE)

    def promise(self, number: int = 0, sampler: SamplingSession | None = None) -> tuple[str, StartTask]:
        """Promise to sample, and go no further. Returns the future, and what would begin to sample."""
        unused: Any = None
        flow = self.sampling.compat.training_runs.samplers._begin_sampling(
            sampler or self.sampler(), number, "digest", unused
        )
        effect: Any = next(flow)
        assert isinstance(effect, Transact)
        begin: Any = flow.send(self.sampling._runtime.store.transact(effect.step))
        return begin.id, begin

    def status(self, future: str) -> FutureStatus:
        return self.asking.compat.training_runs.future(future).status

    def pass_time(self, seconds: float, *platforms: Platform) -> None:
        """Let time pass, in small steps, for some of the processes."""
        for _ in range(int(seconds)):
            for platform in platforms:
                platform._runtime.clock.advance(1.0)  # type: ignore[attr-defined]


@contextmanager
def running(path: Path, monkeypatch: pytest.MonkeyPatch, **place: Any) -> Iterator[Served]:
    """Serve a file, by a process that samples on another `machine`, or as `this_process`, if that is given."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(
                open_platform(path / "yard.db", clock=ManualClock(), settings=SETTINGS, durability="process")
            )
            for _ in range(2)
        ]
        with monkeypatch.context() as patch:
            for name, value in place.items():
                patch.setattr(f"modelyard.platform.usage.presence.{name}", lambda value=value: value)
            presence_of(opened[0]._runtime)
        yield Served(*opened)


@pytest.fixture(params=[{}, {"machine": "other"}], ids=["here", "elsewhere"])
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with running(tmp_path, monkeypatch, **request.param) as made:
        yield made


def processes(served: Served) -> list[ProcessRecord]:
    return served.asking._runtime.store.read(lambda snapshot: snapshot.page(ProcessRecord, "all"))


def test_it_is_not_lost_while_its_process_lives(served: Served) -> None:
    future, _ = served.promise()
    for _ in range(6):
        served.pass_time(LEASE, served.sampling, served.asking)
        assert served.status(future) is FutureStatus.PENDING


def test_it_is_lost_when_its_process_elsewhere_is_silent_for_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, monkeypatch, machine="other") as served:
        future, _ = served.promise()
        assert served.status(future) is FutureStatus.PENDING
        served.pass_time(LEASE - 1, served.asking)
        assert served.status(future) is FutureStatus.PENDING
        served.pass_time(1, served.asking)
        assert served.status(future) is FutureStatus.LOST


def test_it_is_lost_at_once_when_its_process_has_died_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    name = ProcessName.of(dead.pid)
    dead.wait()
    with running(tmp_path, monkeypatch, this_process=name) as served:
        future, _ = served.promise()
        assert served.status(future) is FutureStatus.LOST


def test_it_is_lost_with_a_process_that_has_left(served: Served) -> None:
    future, _ = served.promise()
    presence_of(served.sampling._runtime).close()
    assert served.status(future) is FutureStatus.LOST


def test_a_process_that_has_answered_signs_off(served: Served) -> None:
    future, begin = served.promise()
    served.pass_time(2 * LEASE, served.sampling)
    assert len(processes(served)) == 1
    begin.release(future)
    served.pass_time(2 * LEASE, served.sampling)
    assert processes(served) == []


def test_the_same_request_again_does_not_let_go_of_the_first(served: Served) -> None:
    sampler = served.sampler()
    future, begin = served.promise(0, sampler)
    served.sampling._runtime.cache.slot(RunningSamples)[future] = begin
    with pytest.raises(StopIteration):
        served.promise(0, sampler)
    served.pass_time(2 * LEASE, served.sampling)
    assert served.status(future) is FutureStatus.PENDING


def test_a_process_that_is_about_to_sign_off_stays(served: Served) -> None:
    """It has found that it holds nothing, and then it makes a promise, before it removes its record."""
    unused: Any = None
    sampler = served.sampler()
    flow = served.sampling.compat.training_runs.samplers._begin_sampling(sampler, 0, "digest", unused)
    effect: Any = next(flow)
    served.sampling._runtime.store.transact(effect.step)
    assert not presence_of(served.sampling._runtime)._sign_off()
    assert served.status(f"{sampler.id}:0") is FutureStatus.PENDING
