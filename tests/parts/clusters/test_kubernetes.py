"""Jobs in Kubernetes: against a stand-in of its API that checks manifests by the published schema."""

import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from fake_kubernetes import TOKEN, VERSION, FakeKubernetes
from modelyard.domain.job import Claim, JobKind, Needs
from modelyard.errors import ClusterError, InvalidInput
from modelyard.parts.clusters import kubernetes
from modelyard.parts.clusters.cluster import ClusterExecutor
from modelyard.parts.clusters.kubernetes import KubernetesJobs, manifest
from modelyard.parts.contracts.executor import NEEDS, outcome, state
from modelyard.parts.contracts.executor_trials import until
from modelyard.protocols import Ended, Running, Waiting
from modelyard.testing import ExecutorContract, Trials, TrialsElsewhere
from server_pem import SERVER_PEM

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
