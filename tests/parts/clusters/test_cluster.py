"""What is the same for every cluster: one list for all jobs, patience, leaving, handles, last words."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard import Settings, open_platform
from modelyard.domain.job import Claim, JobKind, JobStatus, Needs
from modelyard.errors import ClusterError, InvalidInput, JobRefused
from modelyard.parts.clusters import kubernetes, ray_jobs, slurm
from modelyard.parts.clusters.cluster import ClusterExecutor
from modelyard.parts.clusters.cluster_http import ClusterAnswer
from modelyard.parts.clusters.ray_jobs import RayJobs
from modelyard.parts.contracts.executor import NEEDS
from modelyard.parts.contracts.executor_trials import until
from modelyard.protocols import Ended, ExecutorState, Running, Waiting
from modelyard.testing import ExecutorContract, Trials, TrialsElsewhere
from modelyard.testing.clock import ManualClock

CLAIM = Claim("job", 1, "worker")


class ThisMachine:
    """The smallest cluster there is: processes of this machine, each with a file for its output."""

    name = "here"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], needs: Needs) -> str:
        with (self.folder / name).open("wb") as output:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        return name

    def states(self, ids: Collection[str]) -> Mapping[str, ExecutorState]:
        return {name: self._state(self.processes[name]) for name in ids if name in self.processes}

    def _state(self, process: "subprocess.Popen[bytes]") -> ExecutorState:
        status = process.poll()
        if status is None:
            return Running()
        return Ended(f"it ended with {status}" if status else "", preempted=status < 0)

    def stop(self, id: str) -> None:
        if process := self.processes.get(id):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def output(self, id: str) -> str:
        return (self.folder / id).read_text()


@pytest.mark.servers
class TestClusterExecutor(ExecutorContract):
    detached = True
    leaves = True

    @pytest.fixture
    def trials(self, tmp_path: Path) -> Trials:
        return TrialsElsewhere(tmp_path)

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[ClusterExecutor]:
        factory = "modelyard.parts.contracts.executor_trials:trial_elsewhere"
        cluster = ThisMachine(tmp_path)
        made = ClusterExecutor(cluster, factory, [str(tmp_path)], python=sys.executable, interval=0.0)
        yield made
        made.close()
        assert all(process.poll() is not None for process in cluster.processes.values())


# ---- a cluster that is what a test says it is --------------------------------------------------------------------


@attrs.define(eq=False)
class Scripted:
    """Lists what a test says, and counts what it is asked."""

    name: str = "scripted"
    listed: dict[str, ExecutorState] = attrs.field(factory=dict)
    started: list[tuple[str, list[str], Needs]] = attrs.field(factory=list)
    requested: list[set[str]] = attrs.field(factory=list)
    stopped: list[str] = attrs.field(factory=list)
    down: bool = False
    unanswered: int = 0
    words: str = ""

    def _answer(self) -> None:
        if self.down:
            raise ClusterError("the network is gone")

    def start(self, name: str, command: Sequence[str], needs: Needs) -> str:
        self.started.append((name, list(command), needs))
        if self.unanswered:
            self.unanswered -= 1
            raise ClusterError("no answer")
        return f"id-{len({name for name, _, _ in self.started})}"

    def states(self, ids: Collection[str]) -> Mapping[str, ExecutorState]:
        self.requested.append(set(ids))
        self._answer()
        return {id: self.listed[id] for id in ids if id in self.listed}

    def stop(self, id: str) -> None:
        self._answer()
        self.stopped.append(id)

    def output(self, id: str) -> str:
        self._answer()
        return self.words


@attrs.define(eq=False)
class Site:
    clock: ManualClock = attrs.field(factory=ManualClock)
    cluster: Scripted = attrs.field(factory=Scripted)
    executor: ClusterExecutor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.executor = self.another()

    def another(self) -> ClusterExecutor:
        """An executor of the next worker, for the same cluster."""
        return ClusterExecutor(self.cluster, "a:b", ["file"], clock=self.clock, interval=2, patience=60, grace=5)

    def submit(self) -> str:
        return self.executor.submit(CLAIM, lambda _: None, NEEDS)

    def state(self, handle: str, after: float = 2.0) -> ExecutorState:
        self.clock.advance(after)
        return self.executor.states([handle])[handle]


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_job_is_the_worker_s_module_with_the_factory_and_what_the_job_needs(site: Site) -> None:
    needs = Needs(JobKind.SFT, "tabular-mini")
    site.executor.submit(CLAIM, lambda _: None, needs)
    ((name, command, requested),) = site.cluster.started
    assert command == ["python", "-X", "faulthandler", "-m", "modelyard.worker", "a:b", "job", "file"]
    assert (requested, len(name) < 64) == (needs, True)
    with pytest.raises(InvalidInput, match=r"package\.module:function"):
        ClusterExecutor(site.cluster, "not a factory")


def test_the_command_names_the_attempt(site: Site) -> None:
    site.executor.submit(Claim("job", 7, "worker", attempt=3), lambda _: None, NEEDS)
    ((_, command, _),) = site.cluster.started
    assert command[-2:] == ["job:3", "file"]


def test_what_a_request_has_named_is_in_the_words_of_each_cluster() -> None:
    needs = Needs(JobKind.SFT, accelerators=2, memory=64)
    assert ray_jobs._amounts(needs) == {"entrypoint_num_gpus": 2, "entrypoint_memory": 64 * 2**30}
    assert slurm._amounts(needs) == ["--gpus=2", "--mem=64G"]
    assert kubernetes._limits(needs, "amd.com/gpu") == {"amd.com/gpu": "2", "memory": "64Gi"}
    for none in (ray_jobs._amounts(NEEDS), slurm._amounts(NEEDS), kubernetes._limits(NEEDS, "nvidia.com/gpu")):
        assert not none


def test_one_list_is_read_for_all_jobs_and_not_more_often_than_the_interval(site: Site) -> None:
    handles = [site.submit() for _ in range(100)]
    assert set(site.executor.states(handles).values()) == {Waiting()}
    site.cluster.listed = {f"id-{number}": Running() for number in range(1, 101)}
    for _ in range(8):
        site.clock.advance(0.5)
        site.executor.states(handles)
    assert [len(requested) for requested in site.cluster.requested] == [100, 100, 100]
    assert set(site.executor.states(handles).values()) == {Running()}


def test_a_submission_without_an_answer_is_sent_again_under_its_name(site: Site) -> None:
    site.cluster.unanswered = 1
    assert site.submit() == "scripted id-1"
    assert len({name for name, _, _ in site.cluster.started}) == 1
    site.cluster.unanswered = 2
    with pytest.raises(ClusterError, match="no answer"):
        site.submit()


def test_a_job_that_is_not_listed_yet_waits_and_one_that_stays_away_has_ended(site: Site) -> None:
    handle = site.submit()
    assert site.state(handle) == Waiting()
    site.cluster.listed["id-1"] = Running()
    assert site.state(handle) == Running()
    del site.cluster.listed["id-1"]
    assert site.state(handle, after=59) == Running()
    assert site.state(handle, after=2) == Ended("scripted does not list it", preempted=True)


def test_while_the_cluster_does_not_answer_jobs_are_as_they_were_however_long(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    handle = site.submit()
    site.cluster.listed["id-1"] = Running()
    assert site.state(handle) == Running()
    site.cluster.down = True
    with caplog.at_level(logging.WARNING):
        assert [site.state(handle, after=3600) for _ in range(3)] == [Running()] * 3
        site.executor.cancel(handle)
        site.cluster.down = False
        assert site.state(handle) == Running()
        site.executor.cancel(handle)
    assert [record.message for record in caplog.records] == [
        "jobs are taken to be as they were: the network is gone",
        "id-1 cannot be stopped: the network is gone",
        "scripted answers again",
    ]
    assert site.cluster.stopped == ["id-1"]


def test_the_end_of_a_job_tells_the_last_of_its_output_unless_that_was_a_normal_end(site: Site) -> None:
    site.cluster.words = "x" * 5000 + "\nMemoryError\x1b[31m\n"
    handle, other = site.submit(), site.submit()
    site.cluster.listed = {"id-1": Ended("exit status 1"), "id-2": Ended()}
    found = site.state(handle)
    assert isinstance(found, Ended)
    assert found.fault.startswith("exit status 1; its last words: xxx")
    assert found.fault.endswith("MemoryError [31m")
    assert len(found.fault) < 1100
    assert site.state(other) == Ended()


def test_a_job_that_waits_has_ended_when_it_is_cancelled_also_where_the_cluster_keeps_it(site: Site) -> None:
    handle = site.submit()
    site.cluster.listed["id-1"] = Waiting()
    assert site.state(handle) == Waiting()
    site.executor.cancel(handle)
    site.executor.cancel(handle)
    found = [site.state(handle) for _ in range(2)]
    assert found == [Ended("it was cancelled while it waited", preempted=True)] * 2
    assert site.cluster.stopped == ["id-1"]


def test_jobs_are_left_and_found_by_the_next_worker_once_the_first_is_gone(site: Site) -> None:
    handle = site.submit()
    site.cluster.listed["id-1"] = Running()
    site.executor.close(leave=True)
    assert site.cluster.stopped == []
    after = site.another()
    assert not after.reattach(handle, alive=True)
    assert after.reattach(handle, alive=False)
    assert not ClusterExecutor(Scripted("other"), "a:b").reattach(handle, alive=False)
    assert after.states([handle]) == {handle: Running()}
    site.cluster.listed["id-1"] = Ended()
    site.clock.advance(2)
    assert after.states([handle]) == {handle: Ended()}


def test_what_was_purged_from_the_list_while_no_worker_looked_has_ended(site: Site) -> None:
    handle = site.submit()
    after = site.another()
    assert after.states([handle]) == {handle: Ended("scripted does not list it", preempted=True)}


def test_a_restart_while_the_cluster_is_down_ends_no_job(site: Site) -> None:
    handle = site.submit()
    site.cluster.down = True
    after = site.another()
    assert after.states([handle]) == {handle: Running()}


def test_closing_stops_what_runs_and_waits_no_longer_than_the_grace(site: Site) -> None:
    site.submit()
    site.cluster.listed["id-1"] = Running()
    before = site.clock.monotonic()
    site.executor.close()
    assert site.cluster.stopped == ["id-1"]
    assert 5 <= site.clock.monotonic() - before < 6


# ---- with a platform ---------------------------------------------------------------------------------------------


def test_a_refused_submission_returns_the_job_and_claims_rest_longer_and_longer(tmp_path: Path) -> None:
    clock, cluster = ManualClock(), Scripted(unanswered=1000)
    with open_platform(clock=clock, settings=Settings(poll=0.5, lease=30)) as platform:
        run = platform.evaluations.submit("quiz", "echo", [{"prompt": "a", "expected": "a"}])
        worker = platform.worker(executor=ClusterExecutor(cluster, "a:b", clock=clock))
        for _ in range(240):
            worker.look()
            clock.advance(0.5)
        assert len(cluster.started) == 2 * 9, "after 0.5, 1, 2, 4, 8, 16, 30, 30 seconds"
        (job,) = platform.jobs.list()
        assert (job.subject, job.status, job.error_message) == (run.id, JobStatus.QUEUED, None)
        cluster.unanswered = 0
        clock.advance(30)
        worker.look()
        (job,) = platform.jobs.list()
        assert (job.status, len(cluster.started)) == (JobStatus.RUNNING, 19)


@pytest.mark.servers
def test_a_job_runs_in_the_cluster_while_its_worker_is_replaced(tmp_path: Path) -> None:
    """The process is real; the first worker stops while it runs, the second sees its end."""
    cluster = ThisMachine(tmp_path)
    file = str(tmp_path / "yard.db")

    def executor() -> ClusterExecutor:
        return ClusterExecutor(cluster, "modelyard.compose:open_platform", [file], python=sys.executable, interval=0)

    with open_platform(file, settings=Settings(poll=0.05)) as platform:
        run = platform.evaluations.submit("quiz", "echo", [{"prompt": "a", "expected": "a"}])
        with platform.worker(executor=executor()):
            until(lambda: cluster.processes)
        with platform.worker(executor=executor()):
            result = platform.evaluations.wait(run.id)
        (job,) = platform.jobs.list()
    assert (result.score, job.attempts, len(cluster.processes)) == (1.0, 1, 1)
    cluster.stop(next(iter(cluster.processes)))


# ---- a job that is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [ClusterError("no such gres"), KeyError("a100"), InvalidInput.at("template", msg="x")]
)
def test_a_job_that_a_cluster_which_answers_does_not_take_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def start(*_: object) -> str:
        raise fault

    monkeypatch.setattr(Scripted, "start", start)
    with pytest.raises(JobRefused, match=str(fault).strip("'")):
        site.submit()
    site.cluster.down = True
    with pytest.raises(ClusterError, match="the network is gone") as raised:
        site.submit()
    assert not isinstance(raised.value, JobRefused)


class RayAnswers(RayJobs):
    """Ray as its dashboard answers, with the status of its nodes."""

    def __init__(self, status: Any) -> None:
        super().__init__("http://127.0.0.1:1")
        self.posted: list[Any] = []
        self._http = self
        self._status = status

    name = "ray"

    def request(self, method: str, path: str, body: Any = None, allowed: Collection[int] = ()) -> ClusterAnswer:
        if path == "/api/cluster_status":
            found = 404 if self._status is None else 200
            return ClusterAnswer(found, json.dumps({"data": {"clusterStatus": self._status}}).encode())
        self.posted.append(body)
        return ClusterAnswer(200, b"{}")


NODES = {
    "autoscalerReport": {"nodeTypeMapping": {"aa": "node_aa", "bb": "node_bb"}},
    "loadMetricsReport": {
        "usageByNode": {
            "aa": {"CPU": [0.0, 4.0], "memory": [0.0, 8.0 * 2**30]},
            "bb": {"CPU": [1.0, 4.0], "GPU": [2.0, 2.0], "memory": [0.0, 16.0 * 2**30]},
        }
    },
}


@pytest.mark.parametrize("needs", [{"accelerators": 9}, {"memory": 17}, {"accelerators": 3, "memory": 1}])
def test_what_is_larger_than_any_node_of_ray_is_refused_and_not_queued_for_ever(needs: dict[str, int]) -> None:
    cluster = RayAnswers(NODES)
    with pytest.raises(ClusterError, match=r"the most accelerators of a node are 2, the most memory is 16\.0 GiB"):
        cluster.start("name", ["true"], Needs(JobKind.SFT, **needs))
    assert cluster.posted == []


@each_case("needs", [{}, {"accelerators": 2}, {"accelerators": 2, "memory": 16}, {"memory": 8}])
def test_what_some_node_of_ray_can_hold_is_queued_though_none_is_free(needs: dict[str, int]) -> None:
    cluster = RayAnswers(NODES)
    assert cluster.start("name", ["true"], Needs(JobKind.SFT, **needs)) == "name"


@each_case(
    "status",
    [
        None,
        {},
        {"autoscalerReport": None, "loadMetricsReport": None},
        {**NODES, "autoscalerReport": {"nodeTypeMapping": {"aa": "ray.worker.default", "bb": "ray.head.default"}}},
    ],
)
def test_a_ray_that_adds_nodes_or_does_not_tell_them_is_trusted(status: Any) -> None:
    cluster = RayAnswers(status)
    assert cluster.start("name", ["true"], Needs(JobKind.SFT, accelerators=9)) == "name"


# ---- slurm's notice ----------------------------------------------------------------------------------------------


def slurm_with(monkeypatch: pytest.MonkeyPatch, limits: str) -> list[tuple[str, ...]]:
    """Slurm's commands, on a machine whose partitions have these limits. Returns what sbatch was given."""
    given: list[tuple[str, ...]] = []

    def run(*command: str, input: str | None = None) -> str:
        if command[0] == "sbatch":
            given.append(command)
            return "7\n"
        return limits if "--format=%P %L %l" in command else "cpu\n"

    monkeypatch.setattr(slurm, "_run", run)
    monkeypatch.delenv("SBATCH_TIMELIMIT", raising=False)
    return given


@pytest.mark.parametrize(
    ("limits", "options", "notice"),
    [
        ("cpu* n/a infinite\n", (), 90),
        ("cpu* n/a 1-00:00:00\n", (), 90),
        ("cpu* n/a 6:00\n", (), 90),
        ("cpu* n/a 5:00\n", (), 75),
        ("cpu* n/a 2:00\n", (), 30),
        ("cpu* 3:00 infinite\n", (), 45),
        ("cpu* n/a infinite\nother n/a 1:00\n", (), 90),
        ("cpu* n/a infinite\n", ("--time=4",), 60),
        ("cpu* n/a 1:00\n", ("--time=1-0:00:00",), 90),
    ],
)
def test_the_notice_of_slurm_leaves_a_job_time_to_work(
    monkeypatch: pytest.MonkeyPatch, limits: str, options: Sequence[str], notice: int
) -> None:
    given = slurm_with(monkeypatch, limits)
    slurm.SlurmJobs(options=lambda _: options).start("name", ["true"], NEEDS)
    assert f"--signal=B:TERM@{notice}" in given[0]


@pytest.mark.parametrize(
    ("limits", "notice", "least"),
    [("cpu n/a 1:00\n", None, 120), ("cpu n/a 0:30\n", None, 120), ("cpu n/a 5:00\n", 300, 360)],
)
def test_a_time_limit_that_is_too_short_for_the_notice_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, limits: str, notice: int | None, least: int
) -> None:
    given = slurm_with(monkeypatch, limits)
    cluster = slurm.SlurmJobs("cpu", notice=notice)
    for ask in (cluster.check, lambda: cluster.start("name", ["true"], NEEDS)):
        with pytest.raises(ClusterError, match=f"time limit of .* is too short: .* give jobs at least {least} s"):
            ask()
    assert given == []


@each_case("reason", sorted(slurm.NEVER))
def test_a_job_that_slurm_will_never_place_is_taken_back(reason: str) -> None:
    assert slurm._state("PENDING", 0, reason) == Waiting(f"slurm will never place it: {reason}")
    assert slurm._state("PENDING", 0, "Resources") == Waiting()
