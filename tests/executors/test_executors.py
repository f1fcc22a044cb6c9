"""Our executors keep the contract, and the contract has teeth."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modelyard.domain.job import Claim
from modelyard.executors.inline import InlineExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.protocols import Executor
from modelyard.testing.executor import ExecutorContract

CLAIM = Claim("job", 1, "worker")


class TestInlineExecutor(ExecutorContract):
    inline = True

    @pytest.fixture
    def executor(self) -> Executor:
        return InlineExecutor()


class TestThreadExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        made = ThreadExecutor()
        yield made
        made.close()


class TestThreadExecutorWithManyThreads(TestThreadExecutor):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        made = ThreadExecutor(8)
        yield made
        made.close()


def test_an_interrupt_passes_through_the_inline_executor_to_its_owner() -> None:
    def interrupted(_: Claim) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InlineExecutor().submit(CLAIM, interrupted)


def test_no_more_jobs_run_at_a_time_than_there_are_threads() -> None:
    executor, lock = ThreadExecutor(2), threading.Lock()
    at_once = most = 0

    def run(_: Claim) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        for _ in range(100):
            threading.Event().wait(0)
        with lock:
            at_once -= 1

    for _ in range(20):
        executor.submit(CLAIM, run)
    executor.close()
    assert 1 <= most <= 2


def test_a_thread_that_hangs_is_left_behind_in_bounded_time_and_ends_with_the_process() -> None:
    executor, go_on = ThreadExecutor(grace=0.01), threading.Event()
    handle = executor.submit(CLAIM, lambda _: go_on.wait(60) and None)
    executor.close()
    assert executor.poll(handle)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == f"modelyard-{handle}")
    go_on.set()


def test_an_interrupt_in_a_thread_ends_that_job_alone() -> None:
    executor, ran = ThreadExecutor(), []

    def leave(_: Claim) -> None:
        raise SystemExit

    executor.submit(CLAIM, leave)
    executor.submit(CLAIM, ran.append)
    executor.close()
    assert ran == [CLAIM]


def test_a_thread_that_cannot_be_started_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ThreadExecutor()

    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="can't start"):
            executor.submit(CLAIM, lambda _: None)
    ran: list[Claim] = []
    executor.submit(CLAIM, ran.append)
    executor.close()
    assert ran == [CLAIM]


# ---- broken executors, and the test that must catch each ---------------------------------------------------------


class Deaf(InlineExecutor):
    """Runs nothing."""

    def submit(self, claim: Claim, run: Callable[[Claim], None]) -> str:
        return super().submit(claim, lambda _: None)


class Twice(InlineExecutor):
    """Runs everything twice."""

    def submit(self, claim: Claim, run: Callable[[Claim], None]) -> str:
        run(claim)
        return super().submit(claim, run)


class SameHandle(InlineExecutor):
    """Gives one handle for all."""

    def submit(self, claim: Claim, run: Callable[[Claim], None]) -> str:
        super().submit(claim, run)
        return "handle"


class AlwaysBusy(InlineExecutor):
    """Thinks that everything runs for ever."""

    def poll(self, handle: str) -> bool:
        return True


class Fragile(InlineExecutor):
    """Lets a job's fault through."""

    def submit(self, claim: Claim, run: Callable[[Claim], None]) -> str:
        run(claim)
        return super().submit(claim, lambda _: None)


class Touchy(InlineExecutor):
    """Knows only what it runs."""

    def cancel(self, handle: str) -> None:
        raise KeyError(handle)


class Impatient(ThreadExecutor):
    """Closes without waiting."""

    def close(self) -> None:
        return


BROKEN: list[tuple[type[Any], str]] = [
    (Deaf, "test_a_job_is_run_once_with_its_own_claim"),
    (Twice, "test_a_job_is_run_once_with_its_own_claim"),
    (SameHandle, "test_every_handle_is_a_text_of_its_own"),
    (AlwaysBusy, "test_poll_tells_whether_a_job_still_runs"),
    (AlwaysBusy, "test_an_unknown_handle_runs_not_and_cannot_be_ended"),
    (Fragile, "test_a_job_that_raises_leaves_the_executor_as_it_was"),
    (Touchy, "test_cancelling_is_idempotent_also_after_the_end"),
    (Impatient, "test_closing_waits_for_what_runs_and_may_be_repeated"),
]


@pytest.mark.parametrize(("broken", "law"), BROKEN, ids=[f"{cls.__name__}-{law}" for cls, law in BROKEN])
def test_the_contract_catches_a_broken_executor(broken: type[Any], law: str) -> None:
    contract = ExecutorContract()
    contract.inline = issubclass(broken, InlineExecutor)
    with pytest.raises((AssertionError, RuntimeError, KeyError)):
        getattr(contract, law)(broken())
