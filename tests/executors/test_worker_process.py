"""Jobs in real processes: killed, frozen, cancelled, orphaned, started twice, given back."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Example, Message, Platform, Role, Settings, open_platform
from modelyard.domain.job import Claim, Job, JobEvent, JobProgress, JobStatus
from modelyard.errors import InvalidInput, JobFailed
from modelyard.executors.subprocess import LAST_WORDS, SubprocessExecutor
from modelyard.parts.contracts.executor import NEEDS, outcome
from modelyard.parts.contracts.executor_trials import PATIENCE, until
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.training.handle import JobHandle
from modelyard.process_identity import ProcessName, machine, this_process
from modelyard.protocols import Ended, Running
from modelyard.testing.clock import ManualClock
from modelyard.worker import platform_of

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
STEPS = 6
STORY = [("training_started", 0), *(("gradient_step", number) for number in range(1, STEPS + 1)), ("training_ended", 0)]
ROWS = [Example((Message(Role.USER, f"ask {n}"), Message(Role.ASSISTANT, f"answer {n}"))) for n in range(2 * STEPS)]
WORK = ("-m", "modelyard.cli", "work", "--isolate", "--factory", "gated_yard:from_environment")


@attrs.define
class Process:
    """A process at the gate. It is not a child of this one; its end is seen at the pipe that it holds open."""

    pid: int
    pipe: int

    def wait_for_end(self) -> None:
        assert select.select([self.pipe], [], [], PATIENCE)[0], f"process {self.pid} does not leave"
        assert os.read(self.pipe, 1) == b""
        os.close(self.pipe)


@attrs.define(eq=False)
class Site:
    """A folder with a platform's file, and the gate at which a trainer in a process of its own waits."""

    folder: Path
    platform: Platform
    started: list["subprocess.Popen[bytes]"] = attrs.field(factory=list)

    def sft(self, gate: str = "") -> JobHandle:
        """A new job that is to wait at a gate."""
        os.mkfifo(self.folder / "reached")
        (self.folder / "gate").write_text(gate)
        model = self.platform.models.create("m", project="p", base_model="tabular-mini")
        return self.platform.training.sft(model.id, ROWS, batch_size=2)

    def executor(self, factory: str = "gated", **options: Any) -> SubprocessExecutor:
        return SubprocessExecutor(f"gated_yard:{factory}", [str(self.folder)], **options)

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        self.started.append(subprocess.Popen([sys.executable, *words], **options))
        return self.started[-1]

    def start_job(self, job: JobHandle, *more: str, **options: Any) -> "subprocess.Popen[bytes]":
        """The process of a claimed job, started by no executor."""
        words = ("-m", "modelyard.worker", "gated_yard:gated", job.id, str(self.folder), *more)
        return self.start(*words, **options)

    def claimed(self, gate: str = "") -> JobHandle:
        """A new job that a worker has claimed which is never heard of again."""
        job = self.sft(gate)
        assert Runner(self.platform._runtime).claim() is not None
        return job

    def reached(self) -> Process:
        """The process that comes to the gate. It stays there; the next one will find no gate."""
        reached = os.open(self.folder / "reached", os.O_RDONLY | os.O_NONBLOCK)
        assert select.select([reached], [], [], PATIENCE)[0], "nobody comes to the gate"
        (self.folder / "gate").unlink()
        return Process(int(os.read(reached, 100)), reached)

    def open_gate(self) -> None:
        (self.folder / "go").touch()

    def job(self, job: JobHandle) -> Job:
        return self.platform._runtime.store.read(lambda snapshot: snapshot.get(Job, job.id))

    def progress(self, job: JobHandle) -> JobProgress:
        return self.platform._runtime.store.read(lambda snapshot: snapshot.get(JobProgress, job.id))

    def story(self, job: JobHandle) -> list[tuple[str, int]]:
        events = self.platform._runtime.store.read(lambda s: s.page(JobEvent, "by_job", job.id, limit=1000))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        return [(event.type, event.step) for event in events]

    def check_finished(self, job: JobHandle, digest: str) -> None:
        assert job.result(PATIENCE).digest == digest
        assert self.story(job) == STORY


def end_of(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """The exit status of a process, and its complaints."""
    _, reply = process.communicate(timeout=PATIENCE)
    return process.returncode, reply.decode()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    monkeypatch.setenv("YARD", str(tmp_path))
    with open_platform(tmp_path / "yard.db", settings=Settings(poll=0.05)) as platform:
        built = Site(tmp_path, platform)
        yield built
    for process in built.started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def undisturbed() -> str:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        return platform.training.sft(model.id, ROWS, batch_size=2).result().digest


# ---- under a worker ----------------------------------------------------------------------------------------------


def test_a_job_runs_in_a_process_that_is_heard_and_is_gone_when_it_has_ended(
    site: Site, undisturbed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    job = site.sft(gate="step 1")
    with site.platform.worker(executor=site.executor()):
        process = site.reached()
        assert os.getsid(process.pid) == process.pid
        site.open_gate()
        assert job.wait(PATIENCE).refresh().attempts == 1
        until(lambda: not Path(f"/proc/{process.pid}").exists())
    site.check_finished(job, undisturbed)
    assert "made step 6" in capfd.readouterr().err


def test_a_process_that_is_killed_in_the_middle_is_replaced_long_before_the_lease(site: Site, undisturbed: str) -> None:
    job = site.sft(gate="step 4")
    with open_platform(site.folder / "yard.db", clock=ManualClock()) as platform:
        worker = platform.worker(executor=site.executor())
        worker.look()
        os.kill(site.reached().pid, signal.SIGKILL)
        until(lambda: worker.look() or job.status is JobStatus.SUCCEEDED)
        worker.stop()
    assert site.job(job).attempts == 2
    site.check_finished(job, undisturbed)


def test_a_job_that_kills_three_processes_fails_and_says_how(site: Site) -> None:
    job = site.sft()
    with site.platform.worker(executor=site.executor("deadly")), pytest.raises(JobFailed) as failed:
        job.wait(PATIENCE)
    assert "lost its worker 3 times" in failed.value.message
    says = "was ended by signal 9 (Killed); its last words: made started my last words [31m"
    assert failed.value.message.endswith(says)


def test_a_frozen_process_is_replaced_and_killed(site: Site, undisturbed: str) -> None:
    job = site.sft(gate="step 4")
    clock = ManualClock()
    with open_platform(site.folder / "yard.db", clock=clock) as platform:
        worker = platform.worker(executor=site.executor())
        worker.look()
        frozen = site.reached()
        os.kill(frozen.pid, signal.SIGSTOP)
        worker.look()
        clock.advance(platform._runtime.settings.lease)
        until(lambda: worker.look() or job.status is JobStatus.SUCCEEDED)
        frozen.wait_for_end()
        worker.stop()
    site.check_finished(job, undisturbed)


def test_a_cancelled_job_ends_at_its_next_item(site: Site) -> None:
    job = site.sft(gate="step 3")
    with site.platform.worker(executor=site.executor()):
        process = site.reached()
        job.cancel()
        site.open_gate()
        with pytest.raises(JobFailed, match="cancelled by host"):
            job.wait(PATIENCE)
        process.wait_for_end()
    assert site.story(job)[-2:] == [("gradient_step", 3), ("training_failed", 0)]


def test_a_cancelled_job_that_hangs_is_killed_after_the_lease(site: Site) -> None:
    job = site.sft(gate="step 3")
    clock = ManualClock()
    with open_platform(site.folder / "yard.db", clock=clock) as platform:
        worker = platform.worker(executor=site.executor())
        worker.look()
        process = site.reached()
        job.cancel()
        worker.look()
        clock.advance(platform._runtime.settings.lease)
        worker._watcher.look()
        process.wait_for_end()
        until(lambda: worker.look() or job.status is JobStatus.CANCELLED)
        worker.stop()


def test_stopping_kills_what_does_not_leave_within_the_grace_and_gives_its_job_back(site: Site) -> None:
    job = site.sft(gate="step 3")
    with site.platform.worker(executor=site.executor(grace=0.1)):
        process = site.reached()
    process.wait_for_end()
    left = site.progress(job)
    assert (job.status, left.crashes, left.step) == (JobStatus.QUEUED, 0, 2)


# ---- a worker that is killed -------------------------------------------------------------------------------------


def test_a_process_whose_worker_is_killed_gives_its_job_back_and_leaves(site: Site, undisturbed: str) -> None:
    """It also writes something that is not read any more."""
    job = site.sft(gate="step 3")
    worker = site.start(*WORK, stdin=subprocess.DEVNULL)
    process = site.reached()
    worker.kill()
    worker.communicate()
    until((site.folder / "leaving").exists)
    site.open_gate()
    process.wait_for_end()
    left = site.progress(job)
    assert (job.status, left.crashes) == (JobStatus.QUEUED, 0)
    assert left.step >= 3
    site.platform.worker().run_until_idle()
    site.check_finished(job, undisturbed)


def test_a_worker_that_comes_back_leaves_a_living_process_alone_and_counts_its_death_at_once(
    site: Site, undisturbed: str
) -> None:
    job = site.sft(gate="step 4")
    killed = site.start(*WORK, stdin=subprocess.DEVNULL)
    process = site.reached()
    os.kill(process.pid, signal.SIGSTOP)
    killed.kill()
    killed.communicate()
    with open_platform(site.folder / "yard.db", clock=ManualClock()) as platform:
        worker = platform.worker(executor=site.executor())
        worker._watcher.reattach()
        worker.look()
        assert (site.job(job).attempts, len(worker._watcher._watches)) == (1, 1)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: worker.look() or job.status is JobStatus.SUCCEEDED)
        assert site.job(job).attempts == 2
        worker.stop()
    site.check_finished(job, undisturbed)


def test_what_a_dead_worker_has_left_can_be_killed_from_elsewhere(site: Site) -> None:
    job = site.sft(gate="step 4")
    killed = site.start(*WORK, stdin=subprocess.DEVNULL)
    process = site.reached()
    os.kill(process.pid, signal.SIGSTOP)
    handle, executor = site.job(job).handle, site.executor()
    executor.cancel(handle)
    assert executor.reattach(handle, alive=True) is False, "its own worker watches it"
    assert ProcessName.of(process.pid).lives
    killed.kill()
    killed.communicate()
    assert executor.reattach(handle, alive=False)
    assert executor.states([handle]) == {handle: Running()}
    executor.cancel(handle)
    process.wait_for_end()
    assert outcome(executor, handle) == Ended("its process is gone", preempted=True)


# ---- started by name ---------------------------------------------------------------------------------------------


def test_a_process_that_was_frozen_and_replaced_writes_nothing_more(site: Site, undisturbed: str) -> None:
    job = site.claimed(gate="step 4")
    frozen = site.start_job(job)
    os.kill(site.reached().pid, signal.SIGSTOP)
    clock = ManualClock()
    with open_platform(site.folder / "yard.db", clock=clock) as platform:
        successor = platform.worker()
        successor.look()
        clock.advance(platform._runtime.settings.lease)
        successor.run_until_idle()
    before = site.job(job), site.progress(job)
    site.check_finished(job, undisturbed)
    os.kill(frozen.pid, signal.SIGCONT)
    site.open_gate()
    assert end_of(frozen)[0] == 0
    assert (site.job(job), site.progress(job)) == before
    site.check_finished(job, undisturbed)


def test_of_two_processes_of_one_job_the_older_writes_nothing_more(site: Site, undisturbed: str) -> None:
    job = site.claimed(gate="step 4")
    older = site.start_job(job)
    site.reached()
    assert end_of(site.start_job(job, stdin=subprocess.DEVNULL))[0] == 0
    before = site.job(job), site.progress(job)
    site.open_gate()
    assert end_of(older)[0] == 0
    assert (site.job(job), site.progress(job)) == before
    assert site.job(job).attempts == 1
    site.check_finished(job, undisturbed)


def test_a_process_that_hangs_when_asked_to_stop_has_one_lease_and_gives_its_job_back(site: Site) -> None:
    job = site.claimed(gate="step 3")
    process = site.start_job(job, "0.3")
    site.reached()
    assert end_of(process)[0] == 0
    left = site.progress(job)
    assert (job.status, left.crashes, left.step) == (JobStatus.QUEUED, 0, 2)


def test_a_process_that_is_terminated_gives_its_job_back(site: Site) -> None:
    job = site.claimed(gate="step 3")
    process = site.start_job(job, "0.3")
    site.reached()
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert (job.status, site.progress(job).crashes) == (JobStatus.QUEUED, 0)


def test_a_process_that_is_asked_to_stop_while_its_platform_opens_stops_at_once(site: Site) -> None:
    job = site.claimed()
    process = site.start("-m", "modelyard.worker", "gated_yard:stuck", job.id, str(site.folder))
    site.reached()
    assert end_of(process)[0] == 0
    assert site.progress(job).epoch == 1


def test_an_unclaimed_or_unknown_job_is_not_run(site: Site) -> None:
    job = site.sft()
    waiting = site.start_job(job, stdin=subprocess.DEVNULL)
    unknown = site.start("-m", "modelyard.worker", "gated_yard:gated", "no-such-job", str(site.folder))
    wrong = site.start("-m", "modelyard.worker", "gated_yard:gated")
    assert end_of(waiting) == (0, "")
    assert site.job(job).status is JobStatus.QUEUED
    reported = "there is no job no-such-job in the platform that gated_yard:gated returns\n"
    assert (unknown.wait(PATIENCE), unknown.stderr.read().decode()) == (1, reported)
    status, reply = end_of(wrong)
    assert status == 2
    assert reply.startswith("usage: python -m modelyard.worker")


# ---- the executor itself -----------------------------------------------------------------------------------------


def test_children_of_a_dead_process_are_ended_with_it(site: Site) -> None:
    executor = site.executor("bereaved")
    ended = outcome(executor, executor.submit(Claim("job", 1, "worker"), lambda _: None, NEEDS))
    assert "signal 9 (Killed)" in ended.fault
    assert ended.preempted
    left = ProcessName.of(int((site.folder / "left").read_text()))
    until(lambda: not left.lives)


def test_the_last_words_are_bounded_and_printable(site: Site) -> None:
    executor = SubprocessExecutor("gated_yard:talkative")
    fault = outcome(executor, executor.submit(Claim("job", 1, "worker"), lambda _: None, NEEDS)).fault
    assert fault.startswith("its process ended with exit status 3; its last words: xxx")
    assert fault.endswith("xxx [2J the end")
    assert len(fault) < LAST_WORDS + 100


@pytest.mark.parametrize("factory", ["", "module", "module:", ":function", "a:b:c", "a b:c", "a;b:c", "a..b:c"])
def test_a_factory_that_names_no_function_is_refused(factory: str) -> None:
    with pytest.raises(InvalidInput, match="factory"):
        SubprocessExecutor(factory)


@pytest.mark.parametrize("factory", ["no_such_module:f", "json:no_such_function", "json:dumps:x", "not a module"])
def test_a_factory_that_cannot_be_loaded_is_named(factory: str) -> None:
    with pytest.raises(InvalidInput, match=f"{factory} cannot be loaded"):
        platform_of(factory)


def test_a_factory_that_returns_no_platform_is_named() -> None:
    with pytest.raises(InvalidInput, match="os:getcwd returned str in the place of a platform"):
        platform_of("os:getcwd")


def test_a_process_whose_output_cannot_be_read_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class NoThread:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

        def is_alive(self) -> bool:
            return False

    real = subprocess.Popen
    executor = site.executor()
    with monkeypatch.context() as patch:
        patch.setattr("modelyard.executors.subprocess.threading.Thread", NoThread)
        patch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
        with pytest.raises(RuntimeError, match="can't start"):
            executor.submit(Claim("job", 1, "worker"), lambda _: None, NEEDS)
    assert started[0].returncode == -signal.SIGKILL
    started[0].stdout.close()


# ---- names of processes ------------------------------------------------------------------------------------------


def test_a_process_is_distinguished_from_a_later_one_with_the_same_id() -> None:
    me = this_process()
    assert me.lives
    assert ProcessName.parse(str(me)) == me
    assert not attrs.evolve(me, started=f"{int(me.started) + 1}").lives


def test_a_process_that_has_ended_and_was_not_waited_for_lives_no_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = ProcessName.of(child.pid)
    assert name.lives
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not name.lives
    assert ProcessName.of(child.pid) == name
    child.wait()
    assert not name.lives


@pytest.mark.parametrize("text", ["", "-", "1", "1-", "-1", "x-1", "1-x", "1-2-3", "²-1"])
def test_what_is_not_a_name_is_not_read_as_one(text: str) -> None:
    assert ProcessName.parse(text) is None


def test_without_process_information_no_process_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    me = this_process()
    monkeypatch.setattr("modelyard.process_identity.PROC", tmp_path)
    assert machine() == ""
    assert not me.lives
    executor = SubprocessExecutor("a:b")
    assert not executor.reattach("/1-1/2-2", alive=False)
    assert executor.states(["/1-1/2-2"]) == {"/1-1/2-2": Ended("its process is gone", preempted=True)}


# ---- commands that run a job themselves --------------------------------------------------------------------------


def heed_interrupts() -> None:
    """Shells have what they start in the background ignore an interrupt, and its children with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parts
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_runs_a_job_itself_gives_it_back_when_it_is_told_to_end(site: Site, end: signal.Signals) -> None:
    job = site.sft(gate="step 2")
    watch = ("-m", "modelyard.cli", "jobs", "watch", job.id, "--factory", "gated_yard:from_environment")
    process = site.start(*watch, stdin=subprocess.DEVNULL, preexec_fn=heed_interrupts)
    site.reached()
    process.send_signal(end)
    status, reply = end_of(process)
    assert status == 1
    assert "Traceback" not in reply
    assert (site.job(job).status, site.progress(job).held) == (JobStatus.QUEUED, False)
