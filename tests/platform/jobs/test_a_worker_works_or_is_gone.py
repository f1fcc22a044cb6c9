"""Whatever a collaborator raises, and wherever: a worker goes on working, or it and its heartbeat are gone."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.clock import SystemClock
from modelyard.errors import OutcomeUnknown, StoreBusy, StoreClosed
from modelyard.executors.thread import ThreadExecutor
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.runtime import Settings
from modelyard.stores import RECORDS, MemoryStore
from polling import until

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SETTINGS = Settings(poll=0.005, lease=0.3)


class Odd(BaseException):
    """What no code expects: not an `Exception`."""


RAISED = [ValueError, StoreBusy, OutcomeUnknown, StoreClosed, Odd, SystemExit]


class Raising:
    """Passes calls on; once it is armed, a method raises at its next call in a thread, and then no more."""

    def __init__(self, inner: Any, thread: str, method: str, error: type[BaseException]) -> None:
        self._inner, self._thread, self._method, self._error = inner, thread, method, error
        self.armed = False
        self.raised = threading.Event()

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if name != self._method:
            return inner

        def call(*given: Any, **more: Any) -> Any:
            if self.armed and threading.current_thread().name == self._thread:
                self.armed = False
                self.raised.set()
                raise self._error("as the test wants it")
            return inner(*given, **more)

        return call


CALLS = [
    ("modelyard-worker", "store", "transact"),
    ("modelyard-worker", "store", "read"),
    ("modelyard-worker", "executor", "submit"),
    ("modelyard-worker", "observer", "__call__"),
    ("modelyard-worker", "clock", "monotonic"),
    ("modelyard-worker", "clock", "wait"),
    ("modelyard-heartbeat", "store", "transact"),
    ("modelyard-heartbeat", "clock", "wait"),
]


@contextmanager
def working(
    thread: str, port: str, method: str, error: type[BaseException]
) -> Iterator[tuple[Platform, Worker, Raising]]:
    ports: dict[str, Any] = {"store": MemoryStore(RECORDS), "executor": ThreadExecutor(2), "clock": SystemClock()}
    raising = Raising(ports.get(port, lambda event: None), thread, method, error)
    ports |= {port: raising}
    executor = ports.pop("executor")
    if port == "observer":
        ports["observer"] = lambda event: raising.__call__(event)
    with open_platform(**ports, settings=SETTINGS) as platform, platform.worker(2, executor) as worker:
        yield platform, worker, raising


def has_ended(platform: Platform, job: Any) -> bool:
    return platform.jobs.get(job.id).status in ("succeeded", "failed")


@pytest.fixture(autouse=True)
def others() -> set[threading.Thread]:
    """The threads that other tests have left."""
    OTHERS.clear()
    OTHERS.update(threading.enumerate())
    return OTHERS


OTHERS: set[threading.Thread] = set()


def threads_of_workers() -> set[str]:
    names = {one.name for one in threading.enumerate() if one not in OTHERS}
    return names & {"modelyard-worker", "modelyard-heartbeat"}


@pytest.mark.slow
@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize(("thread", "port", "method"), CALLS)
def test_whatever_a_collaborator_raises_a_worker_works_or_is_gone(
    thread: str, port: str, method: str, error: type[BaseException]
) -> None:
    both = {"modelyard-worker", "modelyard-heartbeat"}
    with working(thread, port, method, error) as (platform, worker, raising):
        until(lambda: threads_of_workers() == both)
        raising.armed = True
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), [EXAMPLE])
        assert raising.raised.wait(60)
        until(lambda: worker.failed or has_ended(platform, job))
        if method == "wait" or (error is StoreClosed and port in ("store", "clock")):
            until(lambda: not threads_of_workers())
            assert worker.ended.is_set()
        else:
            again = platform.training.sft(platform.models.create("n", base_model="tabular-mini"), [EXAMPLE])
            until(lambda: has_ended(platform, again))
            assert threads_of_workers() == both


@pytest.mark.slow
def test_a_worker_whose_heartbeat_fails_is_gone_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SystemClock):
        broken = False

        def wait(self, event: threading.Event, seconds: float) -> bool:
            if self.broken and threading.current_thread().name == "modelyard-heartbeat":
                raise Odd
            return super().wait(event, seconds)

    clock = Broken()
    with open_platform(clock=clock, settings=SETTINGS) as platform, platform.worker() as worker:
        with caplog.at_level(logging.CRITICAL):
            clock.broken = True
            assert worker.ended.wait(60)
        assert worker.failed
        until(lambda: not threads_of_workers())
        assert "others take over its jobs" in caplog.text
        assert not platform.health.system_check().worker.success


def test_another_worker_of_the_process_goes_on() -> None:
    with open_platform(settings=SETTINGS) as platform, platform.worker() as one, platform.worker() as other:
        one.fail()
        assert one.failed
        assert not other.failed
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), [EXAMPLE])
        until(lambda: has_ended(platform, job))


def test_a_worker_that_is_stopped_has_not_failed() -> None:
    with open_platform(settings=SETTINGS) as platform:
        with platform.worker() as worker:
            pass
        assert worker.ended.is_set()
        assert not worker.failed
