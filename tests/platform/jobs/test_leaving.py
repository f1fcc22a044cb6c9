"""A worker that is to stop is gone within a stated time, even if its store is away."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.platform.jobs import worker as module
from modelyard.platform.runtime import Settings
from modelyard.stores import RECORDS, MemoryStore
from polling import until

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
USUAL_GRACE_OF_KUBERNETES = 30


class Holding:
    """A store that answers no call of the `held` threads until it is told to."""

    def __init__(self) -> None:
        self._inner = MemoryStore(RECORDS)
        self.held: tuple[str, ...] = ()
        self.reached, self.released = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _wait(self) -> None:
        if threading.current_thread().name.startswith(self.held) and self.held:
            self.reached.set()
            assert self.released.wait(60)

    def transact(self, step: Callable[[Any], Any], durable: bool = True) -> Any:
        self._wait()
        return self._inner.transact(step, durable)

    def read(self, query: Callable[[Any], Any]) -> Any:
        self._wait()
        return self._inner.read(query)


@contextmanager
def holding(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Platform, Holding]]:
    monkeypatch.setattr(module, "LEAVING_SECONDS", 0.01)
    store: Any = Holding()
    with open_platform(store=store, settings=Settings(poll=0.005, lease=60.0)) as platform:
        try:
            yield platform, store
        finally:
            store.released.set()


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVING_SECONDS", 20.0)


@pytest.mark.parametrize("held", [("modelyard-worker",), ("modelyard-leaving",), ("modelyard-",)])
def test_a_worker_leaves_though_its_store_answers_no_more(
    held: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with holding(monkeypatch) as (platform, store):
        executor = ThreadExecutor(grace=0.01)
        worker = platform.worker(1, executor)
        worker.start()
        until(lambda: platform.health.system_check().worker.success)
        store.held = held
        if "modelyard-worker" in held:  # so it signs off, however slow the machine is
            close = executor.close
            monkeypatch.setattr(executor, "close", lambda **how: (patient(monkeypatch), close(**how)))
        if "modelyard-leaving" not in held:
            worker.wake()
            assert store.reached.wait(60)
        with caplog.at_level(logging.WARNING):
            stopping = threading.Thread(target=worker.stop, daemon=True)
            stopping.start()
            stopping.join(30)
        assert not stopping.is_alive()
        assert worker.ended.is_set()
        assert ("without signing off" in caplog.text) == (held != ("modelyard-worker",))


def test_a_job_that_is_claimed_while_its_worker_leaves_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(monkeypatch) as (platform, store):
        executor = ThreadExecutor(grace=0.01)
        worker = platform.worker(1, executor)
        worker.start()
        until(lambda: platform.health.system_check().worker.success)
        store.held = ("modelyard-worker",)
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), [EXAMPLE])
        assert store.reached.wait(60)
        worker.stop()
        submitted: list[Any] = []
        monkeypatch.setattr(executor, "submit", lambda *given: submitted.append(given) or "thread-0")
        store.released.set()
        until(lambda: not worker._loop._thread.is_alive())
        assert platform.jobs.get(job.id).status == "queued"
        assert not submitted


def test_the_time_that_leaving_takes_is_below_that_of_kubernetes() -> None:
    for executor in (ThreadExecutor(), SubprocessExecutor("modelyard.compose:open_platform")):
        assert executor._grace + 2 * module.LEAVING_SECONDS + 2 < USUAL_GRACE_OF_KUBERNETES
