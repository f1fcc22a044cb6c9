"""Jobs in a real Slurm cluster of one node, which the tests start and stop."""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from modelyard import Example, Message, Platform, Role, Settings, open_platform
from modelyard.domain.job import Claim, Job, JobEvent, JobProgress, JobStatus
from modelyard.errors import ClusterError
from modelyard.parts.clusters.cluster import ClusterExecutor
from modelyard.parts.clusters.slurm import SlurmJobs
from modelyard.parts.contracts.executor import NEEDS, outcome, state
from modelyard.platform.training.handle import JobHandle
from modelyard.protocols import Ended, Running, Waiting
from modelyard.testing import ExecutorContract, Trials, TrialsElsewhere
from polling import LONGEST, until
from slurm_server import SlurmServer, missing

EXECUTORS = str(Path(__file__).parents[2] / "executors")
STEPS = 6
STORY = [("training_started", 0), *(("gradient_step", number) for number in range(1, STEPS + 1)), ("training_ended", 0)]
ROWS = [Example((Message(Role.USER, f"ask {n}"), Message(Role.ASSISTANT, f"answer {n}"))) for n in range(2 * STEPS)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmServer]:
    if absent := missing():
        problem = f"no {', '.join(absent)}: apt-get install slurmctld slurmd slurm-client"
        pytest.fail(problem) if os.environ.get("CI") == "true" else pytest.skip(problem)
    server = SlurmServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(server.configuration))
        patch.setenv("PYTHONPATH", EXECUTORS, prepend=os.pathsep)
        yield server
    server.close()


def executor(folder: Path, factory: str, cluster: SlurmJobs | None = None) -> ClusterExecutor:
    cluster = cluster or SlurmJobs(logs=folder)
    return ClusterExecutor(cluster, factory, [str(folder)], python=sys.executable, interval=0.1)


class TestSlurmJobs(ExecutorContract):
    detached = True
    leaves = True

    @pytest.fixture
    def trials(self, tmp_path: Path) -> Trials:
        return TrialsElsewhere(tmp_path)

    @pytest.fixture
    def executor(self, tmp_path: Path, slurm: SlurmServer) -> Iterator[ClusterExecutor]:
        made = executor(tmp_path, "modelyard.parts.contracts.executor_trials:trial_elsewhere")
        yield made
        made.close()
        until(lambda: slurm.run("squeue", "--noheader") == "")


@pytest.fixture
def trials(tmp_path: Path) -> TrialsElsewhere:
    return TrialsElsewhere(tmp_path)


@pytest.fixture
def trial(tmp_path: Path, slurm: SlurmServer) -> Iterator[ClusterExecutor]:
    made = executor(tmp_path, "modelyard.parts.contracts.executor_trials:trial_elsewhere")
    yield made
    made.close()
    until(lambda: slurm.run("squeue", "--noheader") == "")


def fill(slurm: SlurmServer, partition: str = "batch") -> str:
    """Take all processors of the node."""
    where = ("--output=/dev/null", f"--partition={partition}")
    return slurm.run("sbatch", "--parsable", "--exclusive", *where, "--wrap=exec sleep 1000")


def test_a_job_without_room_waits_and_runs_when_there_is_some(
    trial: ClusterExecutor, trials: TrialsElsewhere, slurm: SlurmServer
) -> None:
    full = fill(slurm)
    handle = trial.submit(Claim("brief-1", 1, "worker"), trials.run, NEEDS)
    for _ in range(20):
        assert state(trial, handle) == Waiting()
    slurm.run("scancel", full)
    assert outcome(trial, handle) == Ended()
    assert trials.ended() == ["brief-1"]


def test_a_job_that_fails_tells_its_exit_status_and_its_last_words(tmp_path: Path, slurm: SlurmServer) -> None:
    broken = executor(tmp_path, "no_such_package:platform")
    ended = outcome(broken, broken.submit(Claim("job", 1, "worker"), lambda _: None, NEEDS))
    assert ended.fault.startswith("slurm ended it as FAILED, with exit status 1; its last words: ")
    assert ended.fault.endswith("No module named 'no_such_package'")
    assert not ended.preempted


def test_a_job_that_a_user_of_the_cluster_cancels_was_ended_from_outside(
    trial: ClusterExecutor, trials: TrialsElsewhere, slurm: SlurmServer
) -> None:
    handle = trial.submit(Claim("waiting-1", 1, "worker"), trials.run, NEEDS)
    until(lambda: state(trial, handle) == Running())
    slurm.run("scancel", handle.rpartition(" ")[2])
    assert outcome(trial, handle).preempted


def test_what_is_missing_is_stated(slurm: SlurmServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    SlurmJobs("urgent").check()
    with pytest.raises(ClusterError, match="no partition 'gpu'; it has batch, urgent"):
        SlurmJobs("gpu").check()
    refused = executor(tmp_path, "a:b", SlurmJobs("gpu", logs=tmp_path))
    with pytest.raises(ClusterError, match=r"slurm refuses: .*invalid partition"):
        refused.submit(Claim("job", 1, "worker"), lambda _: None, NEEDS)
    SlurmJobs().stop("999999")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="no command sinfo here; install"):
        SlurmJobs().check()


# ---- with a platform ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed() -> str:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        return platform.training.sft(model.id, ROWS, batch_size=2).result().digest


class Site:
    """A job at a gate, and a worker with a lease of a second: so long a process may take to leave."""

    def __init__(self, folder: Path, platform: Platform) -> None:
        self.folder, self.platform = folder, platform
        os.mkfifo(folder / "reached")
        self.reached = os.open(folder / "reached", os.O_RDONLY | os.O_NONBLOCK)
        (folder / "gate").write_text("step 4")
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        self.job: JobHandle = platform.training.sft(model.id, ROWS, batch_size=2)

    def wait_at_gate(self) -> None:
        assert select.select([self.reached], [], [], LONGEST)[0], "no process comes to the gate"
        os.read(self.reached, 100)

    def check_finished(self, digest: str, attempts: Sequence[int]) -> None:
        """It was returned to the queue by its process, so nothing is charged to it."""
        assert self.job.result(LONGEST).digest == digest
        store = self.platform._runtime.store
        job, progress = store.read(lambda one: (one.get(Job, self.job.id), one.get(JobProgress, self.job.id)))
        events = store.read(lambda snapshot: snapshot.page(JobEvent, "by_job", job.id, limit=1000))
        assert [(event.type, event.step) for event in events] == STORY
        assert (progress.crashes, progress.losses) == (0, 0)
        assert job.attempts in attempts


@pytest.fixture
def site(tmp_path: Path, slurm: SlurmServer) -> Iterator[Site]:
    with open_platform(tmp_path / "yard.db", settings=Settings(poll=0.05)) as platform:
        made = Site(tmp_path, platform)
        yield made
        os.close(made.reached)


def gated(site: Site, *options: str) -> ClusterExecutor:
    cluster = SlurmJobs(logs=site.folder, options=lambda _: options)
    return ClusterExecutor(cluster, "gated_yard:gated", [str(site.folder), "1"], python=sys.executable, interval=0.1)


def test_a_preempted_job_gives_itself_back_and_ends_with_the_same_weights(
    site: Site, slurm: SlurmServer, undisturbed: str
) -> None:
    with site.platform.worker(executor=gated(site)):
        site.wait_at_gate()
        urgent = fill(slurm, "urgent")
        until(lambda: site.job.status is JobStatus.QUEUED)
        (site.folder / "go").touch()
        slurm.run("scancel", urgent)
        site.check_finished(undisturbed, attempts=[2])


@pytest.mark.crash  # Slurm looks at time limits every half minute
@pytest.mark.timeout(400)
def test_a_job_gives_itself_back_before_its_time_limit(site: Site, undisturbed: str) -> None:
    with site.platform.worker(executor=gated(site, "--time=2")):  # minutes; the notice comes 90 seconds before
        site.wait_at_gate()
        until(lambda: site.job.status is JobStatus.QUEUED)
        (site.folder / "go").touch()
        site.check_finished(undisturbed, attempts=range(2, 10))  # a busy machine may reach the limit again


def test_a_job_outlives_its_worker(site: Site, slurm: SlurmServer, undisturbed: str) -> None:
    with site.platform.worker(executor=gated(site)):
        site.wait_at_gate()
    (site.folder / "go").touch()
    with site.platform.worker(executor=gated(site)):
        site.check_finished(undisturbed, attempts=[1])
