"""Virtual time: what is due happens in order, at its own moment, and no waiter can make the clock hang."""

import asyncio
import heapq
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.testing.clock import ManualClock, TimeUp
from modelyard.threads import FairPool
from polling import until

START = datetime(2026, 1, 1, tzinfo=UTC)
Start = Callable[[Callable[[], object]], threading.Thread]


@pytest.fixture
def begin(clock: ManualClock) -> Iterator[Start]:
    """Starts threads as a worker's, and ends them all by moving the clock."""
    begun: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"modelyard-thread-{len(begun)}", daemon=True)
        begun.append(thread)
        thread.start()
        clock.advance(0)
        return thread

    yield start
    clock.advance(days=1)
    for thread in begun:
        thread.join(60)
        assert not thread.is_alive()


# ---- the order -----------------------------------------------------------------------------------------------------


def simulated(plans: list[list[int]], until: int) -> list[tuple[int, int]]:
    """Who wakes when, worked out by hand: by deadline, and then by who began to wait first."""
    queue = [(plan[0], place, place, 0) for place, plan in enumerate(plans)]
    heapq.heapify(queue)
    seen, arrivals = [], len(plans)
    while queue and queue[0][0] <= until:
        now, _, who, done = heapq.heappop(queue)
        seen.append((now, who))
        if done + 1 < len(plans[who]):
            heapq.heappush(queue, (now + plans[who][done + 1], arrivals, who, done + 1))
            arrivals += 1
    return seen


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 20))
@examples(25)
def test_threads_wake_one_after_another_in_the_order_of_their_deadlines(plans: list[list[int]], until: int) -> None:
    clock = ManualClock()
    seen: list[tuple[float, int]] = []

    def work(who: int, plan: list[int]) -> None:
        for seconds in plan:
            clock.sleep(seconds)
            seen.append((clock.monotonic(), who))

    threads = [
        threading.Thread(target=work, args=(who, plan), name=f"modelyard-thread-{who}")
        for who, plan in enumerate(plans)
    ]
    for thread in threads:
        thread.start()
        clock.advance(0)
    clock.advance(until)
    assert (seen, clock.monotonic()) == (simulated(plans, until), until)
    clock.advance(days=1)
    for thread in threads:
        thread.join(60)
    assert seen == simulated(plans, 86_400)


def test_waits_of_threads_and_tasks_and_actions_share_one_order(clock: ManualClock, begin: Start) -> None:
    seen: list[tuple[str, float]] = []

    def note(what: str) -> None:
        seen.append((what, clock.monotonic()))

    async def task() -> None:
        for seconds in (2, 2):
            await clock.asleep(seconds)
            note("task")

    def thread() -> None:
        for seconds in (1, 3):
            clock.sleep(seconds)
            note("thread")

    begin(lambda: asyncio.run(task()))
    begin(thread)
    clock.after(4, lambda: note("action"))
    clock.at(START + timedelta(seconds=3), lambda: note("moment"))
    clock.advance(seconds=10)
    assert seen == [("thread", 1), ("task", 2), ("moment", 3), ("action", 4), ("thread", 4), ("task", 4)]


def test_whom_a_woken_thread_wakes_acts_at_the_same_moment(clock: ManualClock, begin: Start) -> None:
    first, second, seen = threading.Event(), threading.Event(), []

    def relay(awaited: threading.Event, next_one: threading.Event) -> None:
        seen.append((clock.wait(awaited, 100), clock.monotonic()))
        next_one.set()

    begin(lambda: relay(second, threading.Event()))
    begin(lambda: relay(first, second))
    clock.after(5, first.set)
    clock.after(6, lambda: seen.append((None, clock.monotonic())))
    clock.advance(50)
    assert seen == [(True, 5.0), (True, 5.0), (None, 6.0)]


def test_an_action_schedules_the_next_one_within_the_same_advance(clock: ManualClock) -> None:
    seen: list[float] = []

    def again() -> None:
        seen.append(clock.monotonic())
        clock.after(60, again)

    clock.after(60, again)
    clock.advance(minutes=3, seconds=30)
    assert seen == [60, 120, 180]
    assert clock.now() == START + timedelta(seconds=210)


def test_what_is_past_happens_when_the_clock_moves_next(clock: ManualClock) -> None:
    seen: list[float] = []
    clock.at(START - timedelta(days=1), lambda: seen.append(clock.monotonic()))
    assert seen == []
    clock.advance(0)
    assert seen == [0]


def test_what_an_action_raises_is_raised_at_its_moment_and_the_rest_stays_due(clock: ManualClock) -> None:
    seen: list[float] = []
    clock.after(2, lambda: 1 / 0)
    clock.after(3, lambda: seen.append(clock.monotonic()))
    with pytest.raises(ZeroDivisionError):
        clock.advance(10)
    assert (clock.monotonic(), seen) == (2, [])
    clock.advance(1)
    assert seen == [3]


# ---- waiting -------------------------------------------------------------------------------------------------------


def test_an_event_ends_a_wait_without_the_clock(clock: ManualClock, begin: Start) -> None:
    event, seen = threading.Event(), []
    thread = begin(lambda: seen.append(clock.wait(event, 10)))
    event.set()
    thread.join(60)
    assert (seen, clock.monotonic()) == ([True], 0)
    assert clock.wait(event, 10) is True


def test_a_wait_that_ends_by_its_time_says_that_the_event_was_not_set(clock: ManualClock, begin: Start) -> None:
    seen: list[bool] = []
    begin(lambda: seen.append(clock.wait(threading.Event(), 10)))
    clock.advance(9.999)
    assert seen == []
    clock.advance(0.001)
    assert seen == [False]
    assert clock.wait(threading.Event(), 0) is False


def test_tenths_of_seconds_add_up(clock: ManualClock, begin: Start) -> None:
    seen: list[float] = []
    begin(lambda: [clock.sleep(0.1) or seen.append(clock.monotonic()) for _ in range(3)])
    clock.advance(0.3)
    assert seen == [0.1, 0.2, 0.3]


def test_the_thread_that_made_the_clock_moves_it_by_sleeping(clock: ManualClock, begin: Start) -> None:
    seen: list[float] = []
    begin(lambda: [clock.sleep(2), seen.append(clock.monotonic())])
    clock.sleep(3)
    assert (seen, clock.monotonic()) == ([2], 3)


def test_a_cancelled_task_is_due_no_more(clock: ManualClock) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(clock.asleep(5))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        clock.advance(10)

    asyncio.run(main())
    assert clock.monotonic() == 10


# ---- on an event loop ----------------------------------------------------------------------------------------------


def test_tasks_act_at_their_moments_while_the_same_loop_awaits_the_advance(clock: ManualClock) -> None:
    seen: list[tuple[str, float]] = []

    async def work(name: str, seconds: float) -> None:
        for _ in range(3):
            await clock.asleep(seconds)
            await asyncio.sleep(0)
            seen.append((name, clock.monotonic()))

    async def main() -> None:
        tasks = [asyncio.create_task(work("a", 2)), asyncio.create_task(work("b", 3))]
        await asyncio.sleep(0)
        await clock.aadvance(minutes=1)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert seen == [("a", 2), ("b", 3), ("a", 4), ("b", 6), ("a", 6), ("b", 9)]
    assert clock.monotonic() == 60


def test_an_advance_that_would_keep_due_tasks_from_acting_is_refused(clock: ManualClock) -> None:
    async def main() -> None:
        task = asyncio.create_task(clock.asleep(5))
        await asyncio.sleep(0)
        clock.advance(4)
        with pytest.raises(RuntimeError, match="aadvance"):
            clock.advance(1)
        await clock.aadvance(1)
        await task

    asyncio.run(main())


# ---- no waiter makes it hang ---------------------------------------------------------------------------------------


def test_a_thread_that_never_comes_back_holds_the_clock_up_once_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    clock, never = ManualClock(patience=0.05), threading.Event()

    def stray() -> None:
        clock.sleep(1)
        never.wait(60)

    thread = threading.Thread(target=stray, name="modelyard-thread-stray", daemon=True)
    with caplog.at_level(logging.WARNING, "modelyard.testing"):
        thread.start()
        clock.advance(5)
        clock.advance(100)
    never.set()
    thread.join(60)
    assert [record.getMessage() for record in caplog.records] == [
        "modelyard-thread-stray did not return to the clock for 0.05 s; it moves on"
    ]


def test_a_worker_s_thread_that_never_comes_holds_the_clock_up_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, never = ManualClock(patience=0.05), threading.Event()
    thread = threading.Thread(target=lambda: never.wait(60), name="modelyard-thread-1", daemon=True)
    thread.start()
    with caplog.at_level(logging.WARNING, "modelyard.testing"):
        clock.advance(1)
        clock.advance(1)
    never.set()
    thread.join(60)
    assert len(caplog.records) == 1


def test_a_worker_s_thread_that_has_yet_to_begin_is_waited_for(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for, go_on, seen = threading.Event(), threading.Event(), list[float]()

    class Late(threading.Thread):
        """It was started, and the system has not run it yet, as on a machine that is busy."""

        def _bootstrap(self) -> None:
            asked_for.set()
            assert go_on.wait(60)
            super()._bootstrap()  # type: ignore[misc]

        def run(self) -> None:
            seen.append(clock.monotonic())

    class Glanced(type(clock._changed)):  # type: ignore[misc]
        """Counts how often the clock has looked in vain."""

        vain = 0

        def wait(self, timeout: float | None = None) -> bool:
            noticed: bool = super().wait(timeout)
            Glanced.vain += not noticed
            if Glanced.vain == 3:
                go_on.set()
            return noticed

    monkeypatch.setattr(clock, "_changed", Glanced())
    late = Late(name="modelyard-thread-1")
    starter = threading.Thread(target=late.start)
    starter.start()
    assert asked_for.wait(60)
    clock.advance(5)
    go_on.set()
    starter.join()
    late.join()
    assert seen == [0.0]


def test_an_idle_thread_of_a_pool_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(patience=20)

    async def main() -> None:
        pool = FairPool("modelyard-backend", 1)
        call = pool.of("local").begin(lambda: clock.sleep(5))
        while not clock._waiting:
            await asyncio.sleep(0)
        await clock.aadvance(5)
        await call.future
        pool.close()

    asyncio.run(main())
    assert not caplog.records


def test_threads_that_were_there_before_the_clock_are_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    never = threading.Event()
    thread = threading.Thread(target=lambda: never.wait(60), name="modelyard-thread-1", daemon=True)
    thread.start()
    clock = ManualClock(patience=0.05)
    clock.advance(1)
    never.set()
    thread.join(60)
    assert not caplog.records


def test_the_thread_that_made_the_clock_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """It may wait for the thread that moves the clock."""
    clock, event = ManualClock(patience=0.05), threading.Event()

    def pass_time() -> None:
        until(lambda: clock._waiting)
        clock.advance(5)

    mover = threading.Thread(target=pass_time)
    mover.start()
    assert clock.wait(event, 5) is False
    mover.join(60)
    assert not caplog.records


def test_an_action_that_moves_the_clock_is_refused(clock: ManualClock) -> None:
    for move in (lambda: clock.advance(1), lambda: clock.sleep(1)):
        clock.after(1, move)
        with pytest.raises(RuntimeError, match="after"):
            clock.advance(1)


def test_a_thread_that_acts_may_move_the_clock_itself(clock: ManualClock, begin: Start) -> None:
    seen: list[float] = []

    def work() -> None:
        clock.sleep(1)
        clock.advance(10)
        seen.append(clock.monotonic())

    thread = begin(work)
    clock.advance(5)
    thread.join(60)
    assert seen == [15]


def test_many_threads_may_move_the_clock_and_every_second_counts() -> None:
    clock = ManualClock()
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert clock.monotonic() == 200


@pytest.mark.parametrize("asleep", [False, True], ids=["thread", "task"])
@pytest.mark.parametrize("seconds", [0.5, 7])
def test_who_skips_while_another_moves_it_goes_on_when_that_one_stops(seconds: float, asleep: bool) -> None:
    """Some hung: they waited for a clock that no one moved any more."""
    clock, seen = ManualClock(), list[float]()

    def skip() -> None:
        if asleep:
            asyncio.run(clock.askip(seconds))
        else:
            clock.skip(seconds)
        seen.append(clock.monotonic())

    def begin() -> None:
        thread.start()
        until(lambda: clock._waiting)

    thread = threading.Thread(target=skip, daemon=True)
    clock.after(1, begin)
    clock.advance(2)
    thread.join(60)
    assert seen == [1 + seconds]


def test_a_limit_ends_a_skip_of_whoever_moves_the_clock(clock: ManualClock) -> None:
    with pytest.raises(TimeUp), clock.limited(5):
        clock.skip(7)
    assert clock.monotonic() == 5


# ---- values --------------------------------------------------------------------------------------------------------


def test_all_units_add_up(clock: ManualClock) -> None:
    clock.advance(1, minutes=2, hours=3, days=4)
    assert clock.monotonic() == 1 + 2 * 60 + 3 * 3600 + 4 * 86_400
    assert clock.now() - START == timedelta(days=4, hours=3, minutes=2, seconds=1)


def test_time_does_not_go_back(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="jump"):
        clock.advance(-1)


def test_a_jump_moves_the_wall_clock_alone(clock: ManualClock) -> None:
    seen: list[Any] = []
    clock.after(10, lambda: seen.append(clock.now()))
    clock.jump(3600)
    assert (clock.now(), clock.monotonic(), seen) == (START + timedelta(hours=1), 0, [])
    clock.advance(10)
    assert seen == [START + timedelta(hours=1, seconds=10)]
