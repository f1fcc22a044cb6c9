"""The contract of every executor that runs jobs in this process, to be run on your own:

class TestMyExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self):
        executor = MyExecutor()
        yield executor
        executor.close()
"""

import threading

from modelyard.domain.job import Claim
from modelyard.protocols import Executor

PATIENCE = 20.0
"""How many seconds to wait for what must come: long, since only a broken executor is waited for so long."""
A_WHILE = 0.1
"""How many seconds a job takes that must be waited for."""


class ExecutorContract:
    """The laws of `modelyard.protocols.Executor`. The fixture `executor` gives an executor that runs nothing yet.

    One that runs jobs while `submit` waits sets `inline`.
    """

    inline = False

    def test_a_job_is_run_once_with_its_own_claim(self, executor: Executor) -> None:
        """What was submitted is what runs."""
        claims = [Claim(f"job-{number}", number, "worker") for number in range(5)]
        ran: list[Claim] = []
        for claim in claims:
            executor.submit(claim, ran.append)
            executor.close()
        assert ran == claims

    def test_every_handle_is_a_text_of_its_own(self, executor: Executor) -> None:
        """Handles can be kept in a record."""
        handles = [executor.submit(Claim("job", 1, "worker"), lambda _: None) for _ in range(5)]
        assert all(type(handle) is str and handle for handle in handles)
        assert len(set(handles)) == 5

    def test_poll_tells_whether_a_job_still_runs(self, executor: Executor) -> None:
        """True from `submit` on, False for ever once it has ended."""
        go_on, running = threading.Event(), threading.Event()

        def run(_: Claim) -> None:
            running.set()
            assert self.inline or go_on.wait(PATIENCE)

        handle = executor.submit(Claim("job", 1, "worker"), run)
        assert executor.poll(handle) is not self.inline
        assert running.wait(PATIENCE)
        go_on.set()
        executor.close()
        assert executor.poll(handle) is False

    def test_an_unknown_handle_runs_not_and_cannot_be_ended(self, executor: Executor) -> None:
        """As after a restart."""
        assert executor.poll("never given out") is False
        executor.cancel("never given out")

    def test_cancelling_is_idempotent_also_after_the_end(self, executor: Executor) -> None:
        """It changes nothing for a job that has ended."""
        handle = executor.submit(Claim("job", 1, "worker"), lambda _: None)
        executor.close()
        executor.cancel(handle)
        executor.cancel(handle)
        assert executor.poll(handle) is False

    def test_a_job_that_raises_leaves_the_executor_as_it_was(self, executor: Executor) -> None:
        """The next job runs."""

        def fail(_: Claim) -> None:
            raise RuntimeError("a job must not raise")

        ran: list[Claim] = []
        for run in (fail, fail, ran.append):
            handle = executor.submit(Claim("job", 1, "worker"), run)
            executor.close()
            assert executor.poll(handle) is False
        assert len(ran) == 1

    def test_closing_waits_for_what_runs_and_may_be_repeated(self, executor: Executor) -> None:
        """When `close` returns in time, nothing runs any more."""
        ended: list[Claim] = []
        running = threading.Event()

        def run(claim: Claim) -> None:
            running.set()
            threading.Event().wait(A_WHILE)
            ended.append(claim)

        executor.submit(Claim("job", 1, "worker"), run)
        assert running.wait(PATIENCE)
        executor.close()
        assert len(ended) == 1
        executor.close()
