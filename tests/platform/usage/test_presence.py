"""What a process holds comes back when it has died, wherever it ran, and never while it lives."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import Platform, open_platform, process_identity
from modelyard.backends.deltas import one_by_one
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.domain.usage import Admission
from modelyard.domain.worker import ProcessRecord
from modelyard.errors import BudgetExceeded, RateLimited, StoreClosed
from modelyard.platform.usage.presence import presence_of, release_dead
from modelyard.process_identity import ProcessName, machine
from modelyard.protocols import Backend, ServedModel
from modelyard.testing.clock import ManualClock

PRICE = Pricing(completion=Decimal(1))
FIVE = {"model": "echo", "messages": "a b c d e", "max_tokens": 5}
LEASE = 10.0


class Fleet:
    """Platforms on one file, each with a clock of its own and, if it is so named, on a machine of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self._path, self._monkeypatch, self._stack = path, monkeypatch, stack

    def open(
        self, clock: ManualClock | None = None, machine: str | None = None, backend: Backend | None = None
    ) -> Platform:
        backend = backend or EchoBackend(pricing=PRICE)
        platform = self._stack.enter_context(
            open_platform(self._path, clock=clock or ManualClock(), backend=backend, durability="process")
        )
        if machine is not None:
            with self._monkeypatch.context() as patch:
                patch.setattr("modelyard.platform.usage.presence.machine", lambda: machine)
                presence_of(platform._runtime)
        return platform


@pytest.fixture
def fleet(yard_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(yard_file, monkeypatch, stack)


def held(platform: Platform) -> list[Admission]:
    return platform._runtime.store.read(lambda snapshot: snapshot.page(Admission, "by_entity", "local"))


def processes(platform: Platform) -> list[ProcessRecord]:
    return platform._runtime.store.read(lambda snapshot: snapshot.page(ProcessRecord, "all"))


def budget(platform: Platform) -> tuple[Decimal, Decimal]:
    found = platform.usage.get_budget()
    assert found is not None
    return found.reserved, found.spent


def begin(platform: Platform) -> Any:
    stream = platform.chat.stream(**FIVE)
    next(stream)
    return stream


def admitted(platform: Platform) -> bool:
    try:
        platform.chat.complete(**FIVE)
    except BudgetExceeded:
        return False
    return True


# ---- beats -----------------------------------------------------------------------------------------------------------


def test_a_process_beats_while_it_holds_something_and_is_forgotten_a_lease_later(fleet: Fleet) -> None:
    clock = ManualClock()
    platform = fleet.open(clock)
    platform.usage.set_budget(10)
    stream = begin(platform)
    seen = []
    for _ in range(3):
        clock.advance(LEASE)
        (record,) = processes(platform)
        seen.append(record.beat)
    assert seen == sorted(set(seen))
    stream.close()
    clock.advance(LEASE / 2)
    assert len(processes(platform)) == 1
    clock.advance(2 * LEASE)
    assert processes(platform) == []
    begin(platform).close()
    assert len(processes(platform)) == 1


def test_without_a_budget_or_a_slot_no_process_signs_on(fleet: Fleet) -> None:
    platform = fleet.open()
    rate = Principal("caller", "local", Scope("local"), "key-1", Limits(requests_per_minute=9))
    streams = [begin(platform), begin(platform.acting_as(rate))]
    assert processes(platform) == []
    for stream in streams:
        stream.close()


@pytest.mark.slow
def test_a_call_of_an_hour_keeps_what_it_has_reserved(fleet: Fleet) -> None:
    clock = ManualClock()
    slow, asking = fleet.open(clock, "one"), fleet.open(clock, "other")
    slow.usage.set_budget(9)
    stream = begin(slow)
    for _ in range(60):
        clock.advance(minutes=1)
        assert not admitted(asking)
    assert budget(asking) == (5, 0)
    list(stream)
    assert budget(asking) == (0, 5)


# ---- on the same machine ---------------------------------------------------------------------------------------------


def test_a_process_that_lives_here_keeps_what_it_holds_even_if_it_does_not_beat(fleet: Fleet) -> None:
    clock = ManualClock()
    frozen, asking = fleet.open(), fleet.open(clock)
    frozen.usage.set_budget(9)
    stream = begin(frozen)
    for _ in range(60):
        clock.advance(minutes=1)
        assert not admitted(asking)
    list(stream)
    assert budget(asking) == (0, 5)


KILLED = """
import sys
from decimal import Decimal
from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
platform = open_platform(sys.argv[1], backend=EchoBackend(pricing=Pricing(completion=Decimal(1))))
stream = platform.chat.stream(model="echo", messages="a b c d e", max_tokens=5)
next(stream)
print("begun", flush=True)
input()
"""


@pytest.mark.slow
@pytest.mark.skipif(not machine(), reason="processes cannot be named here")
def test_what_a_killed_process_held_comes_back_at_once(fleet: Fleet) -> None:
    platform = fleet.open()
    platform.usage.set_budget(9)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(fleet._path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        assert not admitted(platform)
        child.kill()
        child.wait()
        assert admitted(platform)
    assert budget(platform) == (0, 5)
    assert [record.process.partition("-")[0] for record in processes(platform)] == [str(os.getpid())]


@pytest.mark.parametrize("space", ["pid", "time"])
def test_processes_in_other_namespaces_are_elsewhere(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("self/ns", "sys/kernel/random"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("self/ns/pid", "self/ns/time", "sys/kernel/random/boot_id"):
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(process_identity, "PROC", tmp_path)
    here = machine()
    (tmp_path / "self/ns" / space).rename(tmp_path / "kept")  # so that the other has a number of its own
    assert machine() != here
    (tmp_path / "self/ns" / space).write_text("2")
    assert machine() not in ("", here)


@pytest.mark.skipif(not machine(), reason="processes cannot be named here")
def test_every_process_is_looked_at_however_many_there_are(fleet: Fleet) -> None:
    platform = fleet.open()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        dead = str(ProcessName.of(child.pid))
    store = platform._runtime.store
    records = [ProcessRecord(f"{at:05}", machine(), dead, 0, 0.0) for at in range(1100)]
    store.transact(lambda tx: [tx.add(record) for record in records] and None)
    assert release_dead(platform._runtime)
    assert store.read(lambda snapshot: snapshot.count(ProcessRecord, "all")) == 0


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_process_elsewhere_that_is_silent_for_a_lease_is_dead(fleet: Fleet) -> None:
    clock = ManualClock()
    gone, asking = fleet.open(machine="gone"), fleet.open(clock)
    gone.usage.set_budget(9)
    stream = begin(gone)
    assert not admitted(asking)
    clock.advance(LEASE - 1)
    assert not admitted(asking)
    clock.advance(1)
    assert admitted(asking)
    assert budget(asking) == (0, 5)
    stream.close()


def test_who_beats_finds_the_dead_without_a_refused_request(fleet: Fleet) -> None:
    clock = ManualClock()
    gone, alive = fleet.open(machine="gone"), fleet.open(clock)
    gone.usage.set_budget(99)
    streams = [begin(gone), begin(alive)]
    assert budget(alive)[0] == 10
    clock.advance(2 * LEASE)
    assert budget(alive)[0] == 5
    for stream in streams:
        stream.close()


def test_a_slot_of_a_dead_process_comes_back_too(fleet: Fleet) -> None:
    clock = ManualClock()
    one = Principal("caller", "local", Scope("local"), "key-1", Limits(concurrent_requests=1))
    gone, asking = fleet.open(machine="gone").acting_as(one), fleet.open(clock).acting_as(one)
    stream = begin(gone)
    with pytest.raises(RateLimited):
        asking.chat.complete(**FIVE)
    clock.advance(LEASE)
    asking.chat.complete(**FIVE)
    stream.close()


def test_processes_that_live_for_a_moment_recover_it_too(fleet: Fleet) -> None:
    gone = fleet.open(machine="gone")
    gone.usage.set_budget(9)
    stream = begin(gone)
    clock, seen = ManualClock(), []
    for _ in range(3):
        clock.advance(minutes=1)
        with fleet.open(clock) as short:
            seen.append(admitted(short))
    assert seen == [False, True, False]
    stream.close()


def test_a_clock_that_steps_forward_loses_no_worker_that_beats(fleet: Fleet) -> None:
    clock = ManualClock()
    alive = fleet.open(clock, "other")
    alive.usage.set_budget(9)
    stream = begin(alive)
    for step in (3600, 3600, -7200, 1e7):
        clock.jump(step)
        for _ in range(3):
            with fleet.open(clock) as short:
                assert not admitted(short)
        clock.advance(LEASE)
    list(stream)
    assert budget(alive) == (0, 5)


def test_a_clock_that_steps_back_delays_no_recovery(fleet: Fleet) -> None:
    gone = fleet.open(machine="gone")
    gone.usage.set_budget(9)
    stream = begin(gone)
    clock, seen = ManualClock(), []
    clock.jump(-1e6)
    for _ in range(3):
        clock.advance(LEASE)
        with fleet.open(clock) as short:
            seen.append(admitted(short))
    assert seen == [False, False, True]
    stream.close()


beats = st.lists(st.tuples(st.floats(0.1, 3), st.booleans()), min_size=1, max_size=60)


@given(beats, st.integers(0, 60), st.floats(-1e6, 1e6))
def test_no_single_step_of_the_clock_makes_a_process_dead_that_beats(
    moments: list[tuple[float, bool]], at: int, step: float
) -> None:
    time, record, since = 1e9, ProcessRecord("p", "m", "1-1", 0, 1e9), 0.0
    for number, (pause, looked_at) in enumerate(moments):
        time += pause + (step if number == at else 0)
        since += pause
        if since >= 3:
            record, since = record.beaten(time), 0.0
        if looked_at:
            record = record.observed(time, LEASE)
            assert not record.is_dead(time, LEASE)


def test_one_that_was_taken_for_dead_reserves_again_or_ends(fleet: Fleet) -> None:
    clock, own = ManualClock(), ManualClock()
    frozen, asking = fleet.open(own, "other"), fleet.open(clock)
    frozen.usage.set_budget(9)
    stream = begin(frozen)
    release_dead(asking._runtime)
    clock.advance(LEASE)
    assert release_dead(asking._runtime)
    assert budget(asking) == (0, 0)
    own.advance(LEASE)
    assert budget(asking) == (5, 0)
    clock.advance(LEASE)
    release_dead(asking._runtime)
    clock.advance(LEASE)
    assert release_dead(asking._runtime)
    assert admitted(asking)
    own.advance(LEASE)
    assert budget(asking) == (0, 5)
    with pytest.raises(StoreClosed, match="silent"):
        list(stream)
    assert budget(asking) == (0, 6)


# ---- closing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 99])
def test_closing_books_what_was_produced_and_releases_the_rest(fleet: Fleet, limit: int | None) -> None:
    after = fleet.open()
    with fleet.open() as platform:
        if limit is not None:
            platform.usage.set_budget(limit)
        streams = [begin(platform) for _ in range(5)]
    assert [(row.completion_tokens, row.cost) for row in after.usage.list()] == [(1, 1)] * 5
    assert held(after) == processes(after) == []
    if limit is not None:
        assert budget(after) == (0, 5)
    for stream in streams:
        with pytest.raises(StoreClosed, match="was closed while the request ran"):
            next(stream)
    assert len(list(after.usage.list())) == 5


@attrs.define(eq=False)
class Closes(EchoBackend):
    """Closes its platform after so many tokens of an answer."""

    after: int
    closing: Callable[[], None] = lambda: None

    def __attrs_pre_init__(self, *_: object, **__: object) -> None:
        super().__init__(pricing=PRICE)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        deltas = one_by_one(super().stream(attrs.evolve(request, streamed=True), model))
        for number, delta in enumerate(deltas):
            if number == self.after:
                self.closing()
            yield delta


@pytest.mark.parametrize("produced", [1, 4])
@pytest.mark.parametrize("limit", [None, 99])
def test_an_answer_that_ends_when_its_platform_is_closed_is_booked_once(
    fleet: Fleet, limit: int | None, produced: int
) -> None:
    backend = Closes(produced)
    after, closing = fleet.open(), fleet.open(backend=backend)
    backend.closing = closing.close
    if limit is not None:
        closing.usage.set_budget(limit)
    with pytest.raises(StoreClosed, match="was closed while the request ran"):
        closing.chat.complete(**FIVE)
    assert [row.completion_tokens for row in after.usage.list()] == [produced]
    if limit is not None:
        assert budget(after) == (0, produced)


def test_a_stream_that_is_dropped_after_its_platform_was_closed_says_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    with fleet.open() as platform:
        stream = begin(platform)
    stream.close()
    assert caplog.records == []
