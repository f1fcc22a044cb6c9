"""Rates hold whatever clocks do: over reboots, restored files, machines of different uptime, and clocks that step."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import Platform, open_platform
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.domain.usage import RateLimit
from modelyard.errors import BudgetExceeded, RateLimited
from modelyard.testing.clock import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86400.0


class UpFor(ManualClock):
    """The clock of a machine that was started so many seconds before it was made."""

    def __init__(self, uptime: float, start: datetime = START) -> None:
        super().__init__(start)
        self._uptime = uptime

    def monotonic(self) -> float:
        return self._uptime + super().monotonic()


@pytest.fixture
def opened(yard_file: Path) -> Iterator[Callable[[ManualClock], Platform]]:
    """Opens one file with a clock."""
    with ExitStack() as stack:
        yield lambda clock: stack.enter_context(open_platform(yard_file, clock=clock))


def caller(per_minute: int, name: str = "key-1") -> Principal:
    return Principal("caller", "local", Scope("local"), name, Limits(requests_per_minute=per_minute))


def refused(platform: Platform, per_minute: int, name: str = "key-1") -> float | None:
    """Ask once; after how many seconds to try again, or None for a request that was let in."""
    try:
        platform.acting_as(caller(per_minute, name)).chat.complete(model="echo", messages="x", max_tokens=1)
    except RateLimited as error:
        return error.retry_after
    return None


def let_in(platform: Platform, per_minute: int, requested: int) -> int:
    return [refused(platform, per_minute) for _ in range(requested)].count(None)


# ---- one clock -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(1, 10), st.lists(st.floats(0, 30), max_size=60))
def test_a_rate_never_lets_in_more_than_it_says_and_never_fewer(per_minute: int, pauses: list[float]) -> None:
    clock = ManualClock()
    tokens, passed = Fraction(per_minute), 0
    with open_platform(clock=clock) as platform:
        for pause in pauses:
            clock.advance(pause)
            tokens = min(Fraction(per_minute), tokens + Fraction(pause) * per_minute / 60)
            wait = refused(platform, per_minute)
            if wait is None:
                assert tokens > 1 - Fraction(1, 10**5)
                tokens, passed = max(Fraction(0), tokens - 1), passed + 1
            else:
                assert tokens < 1 + Fraction(1, 10**5)
                assert wait == pytest.approx(float((1 - tokens) * 60 / per_minute), abs=1e-4)
    assert passed <= per_minute + sum(pauses) * per_minute / 60 + 1e-4


def test_after_the_time_that_a_refusal_names_the_request_is_let_in() -> None:
    clock = ManualClock()
    with open_platform(clock=clock) as platform:
        assert let_in(platform, 7, requested=7) == 7
        for _ in range(20):
            wait = refused(platform, 7)
            assert wait is not None
            clock.advance(wait)
            assert refused(platform, 7) is None


def test_a_rate_is_the_key_s_own_and_the_host_has_none() -> None:
    with open_platform(clock=ManualClock()) as platform:
        assert [refused(platform, 1) is None for _ in range(2)] == [True, False]
        assert refused(platform, 1, "key-2") is None
        platform.chat.complete(model="echo", messages="x")


def test_a_request_that_a_budget_refuses_is_not_counted() -> None:
    with open_platform(clock=ManualClock()) as platform:
        platform.usage.set_budget(0)
        with pytest.raises(BudgetExceeded):
            platform.acting_as(caller(1)).chat.complete(model="tabular-mini", messages="x")
        platform.usage.remove_budget()
        assert refused(platform, 1) is None


# ---- other clocks --------------------------------------------------------------------------------------------------


def test_a_key_at_its_limit_is_not_locked_out_by_a_reboot(opened: Callable[[ManualClock], Platform]) -> None:
    before = opened(UpFor(30 * DAY))
    assert let_in(before, 60, requested=100) == 60
    after = opened(UpFor(DAY, START + timedelta(days=1)))
    assert let_in(after, 60, requested=100) == 60


def test_what_is_left_of_a_rate_outlasts_a_reboot(opened: Callable[[ManualClock], Platform]) -> None:
    assert let_in(opened(UpFor(30 * DAY)), 60, requested=100) == 60
    after = opened(UpFor(10, START + timedelta(seconds=10)))
    assert let_in(after, 60, requested=100) == 10


@pytest.mark.slow
def test_processes_of_different_uptime_share_a_rate(opened: Callable[[ManualClock], Platform]) -> None:
    platforms = opened(UpFor(0)), opened(UpFor(100_000))
    assert [refused(platforms[number % 2], 60) for number in range(300)].count(None) == 60


def test_a_copy_from_a_machine_with_a_later_clock_locks_no_caller_out(
    opened: Callable[[ManualClock], Platform],
) -> None:
    assert let_in(opened(UpFor(0, START + timedelta(days=400))), 60, requested=100) == 60
    clock = ManualClock(START)
    here = opened(clock)
    assert let_in(here, 60, requested=10) == 1
    clock.advance(60)
    assert let_in(here, 60, requested=100) == 60


def test_a_clock_that_steps_back_locks_no_caller_out(opened: Callable[[ManualClock], Platform]) -> None:
    clock = ManualClock()
    platform = opened(clock)
    assert let_in(platform, 6, requested=10) == 6
    clock.jump(-3600)
    assert let_in(platform, 6, requested=10) == 1
    clock.advance(10)
    assert let_in(platform, 6, requested=10) == 1
    clock.advance(60)
    assert let_in(platform, 6, requested=10) == 6


def test_a_clock_that_steps_forward_gives_one_full_bucket(opened: Callable[[ManualClock], Platform]) -> None:
    clock = ManualClock()
    platform = opened(clock)
    assert let_in(platform, 6, requested=10) == 6
    clock.jump(400 * DAY)
    assert let_in(platform, 6, requested=10) == 6
    clock.advance(10)
    assert let_in(platform, 6, requested=10) == 1


steps = st.lists(st.tuples(st.floats(0, 40), st.sampled_from([0, 0, 0, -5, 5, -90, 90, -1e6, 1e6])), max_size=40)


@given(st.integers(1, 20), steps)
def test_no_history_of_a_clock_makes_a_key_wait_for_more_than_a_minute_or_gives_more_than_a_bucket_a_step(
    per_minute: int, history: list[tuple[float, float]]
) -> None:
    used, time, passed, most = RateLimit("key", 0.0), 1e9, 0, float(per_minute)
    for pause, step in history:
        time += pause + step
        most += pause * per_minute / 60 + (per_minute if step > 0 else 1 if step < 0 else 0)
        wait, after = used.request(time, per_minute)
        assert wait <= 60 + 1e-4
        if wait <= 1e-5:
            used, passed = after, passed + 1
    assert passed <= most + 1e-3
