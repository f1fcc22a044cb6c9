"""The contract of every executor, to run on your own implementation:

class TestMyExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self):
        executor = MyExecutor()
        yield executor
        executor.close()
"""

import pytest

from modelyard.domain.job import Claim, JobKind, Needs
from modelyard.parts.contracts.executor_trials import Trials, TrialsHere, until
from modelyard.protocols import Ended, Executor, ExecutorState, Running

NEEDS = Needs(JobKind.EVALUATE)


def state(executor: Executor, handle: str) -> ExecutorState:
    return executor.states([handle])[handle]


def outcome(executor: Executor, handle: str) -> Ended:
    found: list[Ended] = []

    def ended() -> bool:
        now = state(executor, handle)
        found.extend([now] if isinstance(now, Ended) else [])
        return bool(found)

    until(ended)
    return found[0]


class ExecutorContract:
    """The laws of `modelyard.protocols.Executor`. The fixture `executor` is an executor without jobs.

    An executor that runs jobs inside `submit` sets `inline`. An executor that runs them outside of this process sets
    `detached` and provides its own fixture `trials`; if they can outlive this process, it sets `leaves`. An executor
    that isolates only jobs that need it sets `isolates`.
    """

    inline = False
    detached = False
    leaves = False
    isolates: bool | None = None

    @pytest.fixture
    def trials(self) -> Trials:
        """Return the jobs to test with; override it for jobs outside of this process."""
        return TrialsHere()

    def test_jobs_are_run_once_each_under_handles_of_their_own(self, executor: Executor, trials: Trials) -> None:
        """The submitted function runs, with its own claim; handles are strings, so that records can store them."""
        claims = [Claim(f"brief-{number}", number, "worker") for number in (1, 2, 2, 3)]
        handles = [executor.submit(claim, trials.run, NEEDS) for claim in claims]
        assert [outcome(executor, handle) for handle in handles] == [Ended()] * 4
        assert sorted(trials.begun()) == sorted(trials.ended()) == [claim.job_id for claim in claims]
        assert all(type(handle) is str and handle for handle in handles)
        assert len(set(handles)) == len(handles)
        if isinstance(trials, TrialsHere):
            assert sorted(trials.claims, key=lambda claim: claim.epoch) == claims

    def test_a_job_has_not_ended_while_it_runs_and_has_ended_for_ever_after(
        self, executor: Executor, trials: Trials
    ) -> None:
        """`Waiting` or `Running` from `submit` on, then `Ended`, without a fault if it ended normally."""
        if self.inline:
            trials.release()
        handle = executor.submit(Claim("waiting-1", 1, "worker"), trials.run, NEEDS)
        assert isinstance(state(executor, handle), Ended) is self.inline
        until(lambda: "waiting-1" in trials.begun())
        assert isinstance(state(executor, handle), Ended if self.inline else Running)
        trials.release()
        assert outcome(executor, handle) == Ended()
        assert isinstance(state(executor, handle), Ended)

    def test_the_states_of_many_jobs_are_one_answer(self, executor: Executor, trials: Trials) -> None:
        """One for each handle that is asked for, and for no other."""
        trials.release()
        handles = [executor.submit(Claim(f"brief-{number}", 1, "worker"), trials.run, NEEDS) for number in (1, 2)]
        for handle in handles:
            outcome(executor, handle)
        assert set(executor.states([*handles, "never given out"])) == {*handles, "never given out"}
        assert executor.states(handles[:1]).keys() == {handles[0]}
        assert executor.states([]) == {}

    def test_what_runs_outside_of_this_process_is_found_again(self, executor: Executor, trials: Trials) -> None:
        if self.inline:
            trials.release()
        handle = executor.submit(Claim("waiting-1", 1, "worker"), trials.run, NEEDS)
        assert executor.reattach(handle, alive=True) is self.detached
        assert executor.isolates is (self.detached if self.isolates is None else self.isolates)
        trials.release()
        executor.close()

    def test_an_unknown_handle_runs_not_and_cannot_be_ended_or_found(self, executor: Executor) -> None:
        for handle in ("never given out", "", "a/b/c", "a/1-2/3-4"):
            assert isinstance(state(executor, handle), Ended)
            executor.cancel(handle)
            assert executor.reattach(handle, alive=False) is False

    def test_cancelling_is_idempotent_also_after_the_end(self, executor: Executor, trials: Trials) -> None:
        """It kills what can be killed, and changes nothing for a job that has ended."""
        if not self.detached:
            trials.release()
        handle = executor.submit(Claim("waiting-1", 1, "worker"), trials.run, NEEDS)
        executor.cancel(handle)
        executor.cancel(handle)
        outcome(executor, handle)
        executor.cancel(handle)
        assert isinstance(state(executor, handle), Ended)

    def test_a_job_that_raises_leaves_the_executor_as_it_was(self, executor: Executor, trials: Trials) -> None:
        for job in ("failing-1", "brief-2"):
            outcome(executor, executor.submit(Claim(job, 1, "worker"), trials.run, NEEDS))
        assert trials.begun() == ["failing-1", "brief-2"]
        assert trials.ended() == ["brief-2"]

    def test_closing_waits_for_what_runs_and_may_be_repeated(self, executor: Executor, trials: Trials) -> None:
        """When `close` returns in time, nothing runs any more. A job in a separate process may outlive it."""
        handle = executor.submit(Claim("slow-1", 1, "worker"), trials.run, NEEDS)
        until(lambda: "slow-1" in trials.begun())
        executor.close()
        assert isinstance(state(executor, handle), Ended)
        assert self.detached or trials.ended() == ["slow-1"]
        executor.close()

    def test_closing_leaves_those_jobs_that_can_outlive_this_process(self, executor: Executor, trials: Trials) -> None:
        """They run as before; all others have ended or returned to the queue."""
        if not self.detached:
            trials.release()
        handle = executor.submit(Claim("waiting-1", 1, "worker"), trials.run, NEEDS)
        until(lambda: "waiting-1" in trials.begun())
        executor.close(leave=True)
        assert isinstance(state(executor, handle), Ended) is not self.leaves
        assert executor.reattach(handle, alive=False) is self.leaves
        trials.release()
        assert not self.leaves or outcome(executor, handle) == Ended()
        executor.close()
