"""Jobs in Kubernetes: against a stand-in of its API that checks manifests by the published schema."""

import ssl
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.utils import format_datetime
from itertools import count
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from fake_kubernetes import TOKEN, VERSION, FakeKubernetes
from modelyard.clock import SystemClock
from modelyard.domain.job import Claim, JobKind, JobStatus, Needs
from modelyard.domain.schema import RECORDS
from modelyard.errors import ClusterError, InvalidInput
from modelyard.parts.clusters import kubernetes
from modelyard.parts.clusters.cluster import ClusterExecutor
from modelyard.parts.clusters.kubernetes import KubernetesJobs, manifest
from modelyard.parts.contracts.executor import NEEDS, outcome, state
from modelyard.parts.contracts.executor_trials import until
from modelyard.platform.jobs.queue import MAX_REFUSALS
from modelyard.platform.jobs.worker import Worker
from modelyard.protocols import Ended, Running, Waiting
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import ExecutorContract, Trials, TrialsElsewhere
from server_pem import SERVER_PEM
from yard_fixtures import Yard

pytestmark = pytest.mark.servers

TEMPLATE = {
    "metadata": {"labels": {"team": "ml"}},
    "spec": {
        "activeDeadlineSeconds": 7200,
        "template": {
            "metadata": {"annotations": {"note": "kept"}},
            "spec": {
                "serviceAccountName": "trainer",
                "containers": [
                    {
                        "name": "job",
                        "image": "registry.example/yard:1",
                        "args": ["dropped"],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
                    },
                    {"name": "sidecar", "image": "registry.example/logs:1"},
                ],
            },
        },
    },
}
FACTORY = "modelyard.parts.contracts.executor_trials:trial_elsewhere"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(tmp_path) as server:
        yield server


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The file of a server's key and certificate."""
    pem = tmp_path / "server.pem"
    pem.write_text(SERVER_PEM)
    return pem


def jobs(fake: FakeKubernetes, token: str = TOKEN, **options: Any) -> KubernetesJobs:
    return KubernetesJobs(fake.address, "ml", lambda _: TEMPLATE, token=lambda: token, **options)


def executor_of(fake: FakeKubernetes, factory: str = FACTORY) -> ClusterExecutor:
    return ClusterExecutor(jobs(fake), factory, [str(fake.folder)], python=sys.executable, interval=0.0)


class TestKubernetesJobs(ExecutorContract):
    detached = True
    leaves = True

    @pytest.fixture
    def trials(self, tmp_path: Path) -> Trials:
        return TrialsElsewhere(tmp_path)

    @pytest.fixture
    def executor(self, fake: FakeKubernetes) -> Iterator[ClusterExecutor]:
        made = executor_of(fake)
        yield made
        made.close()


def submit(executor: ClusterExecutor, job: str) -> str:
    return executor.submit(Claim(job, 1, "worker"), lambda _: None, NEEDS)


# ---- manifests ---------------------------------------------------------------------------------------------------


def test_a_manifest_fits_the_published_schema_and_keeps_what_the_template_states() -> None:
    made = manifest(TEMPLATE, "modelyard-1", ["python", "-m", "modelyard.worker", "a:b", "job"])
    assert kubernetes_validate.validate(made, VERSION, strict=True) == VERSION
    pod = made["spec"]["template"]
    first, second = pod["spec"]["containers"]
    assert first["command"] == ["python", "-m", "modelyard.worker", "a:b", "job"]
    assert ("args" in first, first["resources"]) == (False, {"limits": {"nvidia.com/gpu": 1}})
    assert second == {"name": "sidecar", "image": "registry.example/logs:1"}
    assert (pod["spec"]["restartPolicy"], pod["spec"]["serviceAccountName"]) == ("Never", "trainer")
    assert pod["metadata"] == {"annotations": {"note": "kept"}, "labels": kubernetes.LABELS}
    assert made["metadata"] == {"name": "modelyard-1", "labels": {"team": "ml", **kubernetes.LABELS}}
    spec = {name: value for name, value in made["spec"].items() if name != "template"}
    assert spec == {"ttlSecondsAfterFinished": 3600, "activeDeadlineSeconds": 7200, "backoffLimit": 0}


@pytest.mark.parametrize("template", [{}, {"spec": {}}, {"spec": {"template": {"spec": {"containers": []}}}}])
def test_a_template_needs_a_container(template: Any) -> None:
    with pytest.raises(InvalidInput, match="a batch/v1 Job with a container"):
        manifest(template, "name", ["a"])


def test_the_schema_is_checked(fake: FakeKubernetes) -> None:
    """So the stand-in would refuse a manifest that a real server refuses."""
    broken = KubernetesJobs(
        fake.address, "ml", lambda _: {**TEMPLATE, "spec": {**TEMPLATE["spec"], "retries": 1}}, token=lambda: TOKEN
    )
    with pytest.raises(ClusterError, match=r"refuses POST .* with 422"):
        broken.start("name", ["a"], NEEDS)


def test_a_job_s_needs_choose_its_template(fake: FakeKubernetes) -> None:
    asked: list[Needs] = []

    def template(needs: Needs) -> Any:
        asked.append(needs)
        return TEMPLATE

    needs = Needs(JobKind.SFT, "big")
    KubernetesJobs(fake.address, "ml", template, token=lambda: TOKEN).start("name", [sys.executable, "-c", ""], needs)
    assert asked == [needs]


def test_the_accelerators_and_the_memory_of_a_request_are_limits_of_the_first_container(fake: FakeKubernetes) -> None:
    needs = Needs(JobKind.SFT, accelerators=2, memory=64)
    KubernetesJobs(fake.address, "ml", lambda _: TEMPLATE, token=lambda: TOKEN).start("name", ["true"], needs)
    (made,) = fake.jobs.values()
    resources = made.manifest["spec"]["template"]["spec"]["containers"][0]["resources"]
    wanted = {"nvidia.com/gpu": "2", "memory": "64Gi"}
    assert (resources["limits"].items() >= wanted.items(), resources["requests"].items() >= wanted.items()) == (
        True,
        True,
    )


# ---- jobs --------------------------------------------------------------------------------------------------------


def test_a_request_that_is_sent_twice_makes_one_job(fake: FakeKubernetes) -> None:
    assert [jobs(fake).start("once", [sys.executable, "-c", ""], NEEDS) for _ in range(2)] == ["once", "once"]
    assert list(fake.jobs) == ["once"]


def test_many_states_are_one_request_and_a_failure_one_more(fake: FakeKubernetes) -> None:
    executor = executor_of(fake)
    handles = [submit(executor, f"waiting-{number}") for number in range(5)]
    fake.requests.clear()
    assert set(executor.states(handles).values()) == {Running()}
    assert fake.requests == ["GET /apis/batch/v1/namespaces/ml/jobs"]
    executor.close()


def test_a_job_without_room_waits_until_there_is_some(tmp_path: Path) -> None:
    with FakeKubernetes(tmp_path, room=1) as fake:
        executor, trials = executor_of(fake), TrialsElsewhere(tmp_path)
        first, second = submit(executor, "waiting-1"), submit(executor, "waiting-2")
        assert list(executor.states([first, second]).values()) == [Running(), Waiting()]
        trials.release()
        assert [outcome(executor, handle) for handle in (first, second)] == [Ended(), Ended()]


# ---- pods that do not start ------------------------------------------------------------------------------------------

LONG_AGO = "2026-01-01T00:00:00Z"
NEVER_STARTED = sorted(kubernetes.NEVER_STARTED)
NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def ago(time: timedelta) -> str:
    return (SystemClock().now() - time).isoformat(timespec="seconds").replace("+00:00", "Z")


def unplaced(since: str | None) -> dict[str, Any]:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}
    return {"conditions": [{**why, "lastTransitionTime": since}]}


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastTransitionTime": LONG_AGO}


def not_started(reason: str, kind: str = "containerStatuses", placed: str | None = None) -> dict[str, Any]:
    waits = {"state": {"waiting": {"reason": reason, "message": "it says so"}}}
    return {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": placed}], kind: [waits]}


def waiting(
    fake: FakeKubernetes,
    pending: dict[str, Any] | None,
    made: str = LONG_AGO,
    started: str | None = None,
    **spec: Any,
) -> Any:
    """Return the state of a job with a pod that shows this, or without one."""
    fake.room = 0
    cluster = jobs(fake)
    cluster.start("job", ["true"], NEEDS)
    job = fake.jobs["job"]
    job.pending, job.made, job.started, job.manifest["spec"] = pending, made, started, {**job.manifest["spec"], **spec}
    return cluster.states(["job"])["job"]


@pytest.mark.parametrize(
    ("pending", "says"),
    [
        (unplaced(LONG_AGO), f"kubernetes has not placed it within 5 minutes: Unschedulable {NO_ROOM}"),
        (unplaced(None), f"kubernetes has not placed it within 5 minutes: Unschedulable {NO_ROOM}"),
        ({"conditions": []}, "kubernetes has not placed it within 5 minutes: no scheduler has seen its pod"),
        (None, "kubernetes has not placed it within 5 minutes: no pod was made look at its quotas"),
        (not_started("ContainerCreating"), "its pod did not start within 30 minutes"),
        (not_started("ContainerCreating", placed=LONG_AGO), "its pod did not start within 30 minutes"),
        *((not_started(why), f"its container cannot be started: {why} it says so") for why in NEVER_STARTED),
        (not_started("ImagePullBackOff", "initContainerStatuses"), "its container cannot be started: ImagePullBackOff"),
    ],
    ids=map(str, count()),
)
def test_a_pod_that_will_not_start_by_itself_tells_why(fake: FakeKubernetes, pending: Any, says: str) -> None:
    state = waiting(fake, pending)
    assert isinstance(state, Waiting)
    assert state.fault.startswith(says)


@pytest.mark.parametrize(
    ("told", "spec"),
    [
        (lambda: (unplaced(ago(kubernetes.TO_PLACE / 2)), LONG_AGO), {}),
        (lambda: (unplaced(None), ago(kubernetes.TO_PLACE / 2)), {}),
        (lambda: (None, ago(kubernetes.TO_PLACE / 2)), {}),
        (lambda: (not_started("ContainerCreating"), ago(kubernetes.TO_START / 2)), {}),
        (lambda: (not_started("ContainerCreating", placed=ago(kubernetes.TO_START / 2)), LONG_AGO), {}),
        (lambda: (None, LONG_AGO), {"suspend": True}),
        (lambda: (None, LONG_AGO, ago(kubernetes.TO_PLACE / 2)), {}),
        (lambda: ({"conditions": [GATED]}, LONG_AGO), {}),
    ],
    ids=map(str, count()),
)
def test_a_pod_that_a_cluster_may_still_start_waits(
    fake: FakeKubernetes, told: Callable[[], tuple[Any, ...]], spec: dict[str, Any]
) -> None:
    """It adds a node, fetches an image, or lets a suspended job or a gated pod wait for its turn."""
    assert waiting(fake, *told(), **spec) == Waiting()


@pytest.mark.parametrize("skew", [timedelta(hours=-3), timedelta(), timedelta(hours=3)], ids=str)
@pytest.mark.parametrize("late", [False, True])
def test_a_pod_s_age_is_counted_by_the_cluster_s_own_clock(fake: FakeKubernetes, skew: timedelta, late: bool) -> None:
    there = SystemClock().now() + skew
    fake.date = format_datetime(there, usegmt=True)
    made = there - kubernetes.TO_PLACE * (1.5 if late else 0.5)
    assert bool(waiting(fake, None, made.isoformat(timespec="seconds")).fault) is late


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 30 Feb 2026 10:00:00 GMT", "Mon, 05 Jan 2026 10:00:00 -0000"])
def test_a_cluster_that_states_no_time_is_looked_at_by_this_clock(fake: FakeKubernetes, date: str) -> None:
    fake.date = date
    assert waiting(fake, None, ago(kubernetes.TO_PLACE / 2)) == Waiting()
    assert waiting(fake, None).fault


def test_a_job_that_kubernetes_cannot_start_holds_up_no_other_tells_why_and_has_an_end(
    fake: FakeKubernetes, tmp_path: Path
) -> None:
    """With one place, behind which another job waits."""
    yard = Yard.build(SqliteStore(tmp_path / "yard.db", RECORDS, durability="process"), lease=30.0)
    executor = executor_of(fake)
    worker = Worker(yard.runtime, executor, concurrency=1)
    stuck, next_one = yard.sft(4, "stuck"), yard.sft(4, "next")
    fake.room, begun, told = 0, set[str](), set[str | None]()
    for _ in range(4 * MAX_REFUSALS):
        worker.look()
        for made in fake.jobs.values():
            job_id = made.manifest["spec"]["template"]["spec"]["containers"][0]["command"][-2].partition(":")[0]
            begun.add(job_id)
            made.pending = unplaced(LONG_AGO)
        told.add(yard.jobs.get(stuck.id).waiting_for)
        yard.clock.advance(16)
    assert begun == {stuck.id, next_one.id}
    assert yard.job(stuck.id).status is JobStatus.FAILED
    assert NO_ROOM in str(yard.job(stuck.id).error_message)
    assert [text for text in told if text and NO_ROOM in text]
    yard.runtime.store.close()


def test_a_failure_tells_the_exit_status_and_the_last_lines(fake: FakeKubernetes) -> None:
    executor = executor_of(fake, "no_such_package:platform")
    ended = outcome(executor, submit(executor, "job"))
    assert ended.fault.startswith("its container ended with exit status 1 (Error); its last words: ")
    assert ended.fault.endswith("No module named 'no_such_package'")
    assert not ended.preempted


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI"])
def test_a_pod_that_was_evicted_or_preempted_was_ended_from_outside(fake: FakeKubernetes, reason: str) -> None:
    executor = executor_of(fake)
    handle = submit(executor, "waiting-1")
    (job,) = fake.jobs.values()
    job.disruption = reason
    job.end()
    ended = outcome(executor, handle)
    assert (ended.fault.partition(";")[0], ended.preempted) == (f"its pod was ended: {reason}", True)


def test_a_job_that_someone_deletes_has_ended_when_it_is_not_listed_for_long(fake: FakeKubernetes) -> None:
    executor = ClusterExecutor(jobs(fake), FACTORY, [str(fake.folder)], python=sys.executable, interval=0, patience=0)
    handle = submit(executor, "waiting-1")
    assert state(executor, handle) == Running()
    fake.jobs.popitem()[1].end()
    ended = outcome(executor, handle)
    assert ended == Ended(f"kubernetes {fake.address}/ml does not list it", preempted=True)


def test_a_pod_gets_sigterm_when_its_job_is_cancelled(fake: FakeKubernetes) -> None:
    executor = executor_of(fake)
    handle = submit(executor, "waiting-1")
    (job,) = fake.jobs.values()
    executor.cancel(handle)
    assert job.process is not None
    assert (job.process.returncode, fake.jobs) == (-15, {})
    assert isinstance(state(executor, handle), Ended)


# ---- the server --------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_stated_without_the_token(fake: FakeKubernetes) -> None:
    jobs(fake).check()
    with pytest.raises(ClusterError, match="with 401: it needs a token that may do this") as refused:
        jobs(fake, "a-wrong-token").check()
    assert "a-wrong-token" not in str(refused.value)
    with pytest.raises(ClusterError, match="with 403"):
        KubernetesJobs(fake.address, "other", lambda _: TEMPLATE, token=lambda: TOKEN).check()
    with pytest.raises(ClusterError, match=r"does not answer .*look whether it runs there"):
        KubernetesJobs("http://127.0.0.1:1", "ml", lambda _: TEMPLATE).check()
    with pytest.raises(InvalidInput, match="is not like http://host:port"):
        KubernetesJobs("host:1", "ml", lambda _: TEMPLATE)


def test_the_server_s_certificate_is_verified(tmp_path: Path, certificate: Path) -> None:
    with FakeKubernetes(tmp_path, pem=certificate) as fake:
        jobs(fake, certificates=ssl.create_default_context(cafile=str(certificate))).check()
        with pytest.raises(ClusterError, match="CERTIFICATE_VERIFY_FAILED"):
            jobs(fake).check()


def test_in_a_pod_the_account_is_that_of_the_pod_with_the_token_of_now(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("an-old-token\n")
    (tmp_path / "namespace").write_text("ml")
    (tmp_path / "ca.crt").write_bytes(certificate.read_bytes())
    with FakeKubernetes(tmp_path, pem=certificate) as fake:
        monkeypatch.setattr(kubernetes, "ACCOUNT", tmp_path)
        monkeypatch.setattr(kubernetes, "API", fake.address)
        here = KubernetesJobs.here(lambda _: TEMPLATE)
        with pytest.raises(ClusterError, match="401"):
            here.check()
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        here.check()
    monkeypatch.setattr(kubernetes, "ACCOUNT", tmp_path / "nothing")
    assert KubernetesJobs.here(lambda _: TEMPLATE).name == f"kubernetes {kubernetes.PROXY}/default"


def test_a_worker_s_jobs_are_found_by_the_next(fake: FakeKubernetes, tmp_path: Path) -> None:
    executor = executor_of(fake)
    handle = submit(executor, "waiting-1")
    executor.close(leave=True)
    after = executor_of(fake)
    assert after.reattach(handle, alive=False)
    until(lambda: "waiting-1" in TrialsElsewhere(tmp_path).begun())
    TrialsElsewhere(tmp_path).release()
    assert outcome(after, handle) == Ended()
