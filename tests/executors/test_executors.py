"""Our executors keep the contract, and the contract has teeth."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.domain.job import Claim, Needs
from modelyard.executors.inline import InlineExecutor
from modelyard.executors.isolating import IsolatingExecutor
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.parts.contracts.executor import NEEDS, state
from modelyard.parts.contracts.executor_trials import until
from modelyard.protocols import Ended, Executor, ExecutorState, Running
from modelyard.testing import ExecutorContract, Trials, TrialsElsewhere, TrialsHere

CLAIM = Claim("job", 1, "worker")
FACTORY = "modelyard.parts.contracts.executor_trials:trial_elsewhere"


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


class TestIsolatingExecutor(ExecutorContract):
    isolates = True

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[Executor]:
        made = IsolatingExecutor(ThreadExecutor(4), SubprocessExecutor(FACTORY, [str(tmp_path)]))
        yield made
        made.close()


class AllAlone(IsolatingExecutor):
    """Isolates every job, to test those that need it."""

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        return super().submit(claim, run, attrs.evolve(needs, alone=True))


def forking(folder: Path) -> SubprocessExecutor:
    """Return an executor whose jobs are forks of one process, once that process is ready."""
    made = SubprocessExecutor(FACTORY, [str(folder)], fork=True)
    made._prepare()
    until(lambda: made._forks is not None and made._forks.ready)
    return made


@pytest.mark.servers
class TestIsolatingExecutorWithJobsThatNeedIt(ExecutorContract):
    detached = True

    @pytest.fixture
    def trials(self, tmp_path: Path) -> Trials:
        return TrialsElsewhere(tmp_path)

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[Executor]:
        made = AllAlone(ThreadExecutor(), forking(tmp_path))
        yield made
        made.close()


@pytest.mark.servers
class TestSubprocessExecutor(ExecutorContract):
    detached = True

    @pytest.fixture
    def trials(self, tmp_path: Path) -> Trials:
        return TrialsElsewhere(tmp_path)

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[Executor]:
        made = SubprocessExecutor(FACTORY, [str(tmp_path)])
        yield made
        made.close()


class TestForkingExecutor(TestSubprocessExecutor):
    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[Executor]:
        made = forking(tmp_path)
        yield made
        made.close()


def test_an_interrupt_passes_through_the_inline_executor_to_its_owner() -> None:
    def interrupted(_: Claim) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InlineExecutor().submit(CLAIM, interrupted, NEEDS)


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
        executor.submit(CLAIM, run, NEEDS)
    executor.close()
    assert 1 <= most <= 2


def test_a_hanging_thread_delays_closing_for_a_bounded_time_and_ends_with_the_process() -> None:
    executor, go_on = ThreadExecutor(grace=0.01), threading.Event()
    handle = executor.submit(CLAIM, lambda _: go_on.wait(60) and None, NEEDS)
    executor.close()
    assert state(executor, handle) == Running()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == f"modelyard-{handle}")
    go_on.set()


def test_an_interrupt_in_a_thread_ends_that_job_alone() -> None:
    executor, ran = ThreadExecutor(), []

    def leave(_: Claim) -> None:
        raise SystemExit

    executor.submit(CLAIM, leave, NEEDS)
    executor.submit(CLAIM, ran.append, NEEDS)
    executor.close()
    assert ran == [CLAIM]


def test_a_thread_that_cannot_be_started_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ThreadExecutor()

    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="can't start"):
            executor.submit(CLAIM, lambda _: None, NEEDS)
    ran: list[Claim] = []
    executor.submit(CLAIM, ran.append, NEEDS)
    executor.close()
    assert ran == [CLAIM]


# ---- broken executors, and the test that must catch each ---------------------------------------------------------


class Deaf(InlineExecutor):
    """Runs nothing."""

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        return super().submit(claim, lambda _: None, needs)


class Twice(InlineExecutor):
    """Runs everything twice."""

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        run(claim)
        return super().submit(claim, run, needs)


class OneClaim(InlineExecutor):
    """Hands every job a claim of its own making."""

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        return super().submit(Claim(claim.job_id, 1, "worker"), run, needs)


class SameHandle(InlineExecutor):
    """Gives one handle for all."""

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        super().submit(claim, run, needs)
        return "handle"


class AlwaysBusy(InlineExecutor):
    """Thinks that everything runs for ever."""

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:  # type: ignore[override]
        return dict.fromkeys(handles, Running())


class NeverBusy(ThreadExecutor):
    """Thinks that nothing runs."""

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        return dict.fromkeys(handles, Ended())


class Alarming(ThreadExecutor):
    """Finds a fault in everything."""

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        known = super().states(handles).items()
        return {handle: Ended("it fell over") if isinstance(found, Ended) else found for handle, found in known}


class Forgetful(ThreadExecutor):
    """Answers for what it runs only."""

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        return {handle: found for handle, found in super().states(handles).items() if isinstance(found, Running)}


class Boastful(ThreadExecutor):
    """Says that it isolates jobs."""

    isolates = True


class Fragile(InlineExecutor):
    """Lets a job's fault through."""

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        run(claim)
        return super().submit(claim, lambda _: None, needs)


class Touchy(InlineExecutor):
    """Knows only what it runs."""

    def cancel(self, handle: str) -> None:
        raise KeyError(handle)


class Claiming(ThreadExecutor):
    """Takes everything for its own."""

    def reattach(self, handle: str, alive: bool) -> bool:
        return True


class Impatient(ThreadExecutor):
    """Closes without waiting."""

    def close(self, leave: bool = False) -> None:
        return


ONCE = "test_jobs_are_run_once_each_under_handles_of_their_own"
STATES = "test_a_job_has_not_ended_while_it_runs_and_has_ended_for_ever_after"
MANY = "test_the_states_of_many_jobs_are_one_answer"
FOUND = "test_what_runs_outside_of_this_process_is_found_again"
UNKNOWN = "test_an_unknown_handle_runs_not_and_cannot_be_ended_or_found"

BROKEN: list[tuple[type[Any], str]] = [
    (Deaf, ONCE),
    (Twice, ONCE),
    (OneClaim, ONCE),
    (SameHandle, ONCE),
    (AlwaysBusy, STATES),
    (NeverBusy, STATES),
    (Alarming, STATES),
    (Forgetful, MANY),
    (Boastful, FOUND),
    (AlwaysBusy, UNKNOWN),
    (Claiming, UNKNOWN),
    (Claiming, FOUND),
    (Claiming, "test_closing_leaves_those_jobs_that_can_outlive_this_process"),
    (Fragile, "test_a_job_that_raises_leaves_the_executor_as_it_was"),
    (Touchy, "test_cancelling_is_idempotent_also_after_the_end"),
    (Impatient, "test_closing_waits_for_what_runs_and_may_be_repeated"),
]


@each_case(("broken", "law"), BROKEN, ids=[f"{cls.__name__}-{law}" for cls, law in BROKEN])
def test_the_contract_catches_a_broken_executor(broken: type[Any], law: str) -> None:
    contract, trials, executor = ExecutorContract(), TrialsHere(), broken()
    contract.inline = issubclass(broken, InlineExecutor)
    more = () if law == UNKNOWN else (trials,)
    with pytest.raises((AssertionError, RuntimeError, KeyError)):
        getattr(contract, law)(executor, *more)
    trials.release()
    ThreadExecutor.close(executor) if isinstance(executor, ThreadExecutor) else executor.close()
