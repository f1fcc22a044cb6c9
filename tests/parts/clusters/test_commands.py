"""`modelyard work --on`: which cluster is meant, and what is wrong with it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from each import each_case
from fake_kubernetes import FakeKubernetes
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.cli.working import ClusterType
from modelyard.domain.job import JobKind, Needs
from modelyard.parts.clusters import kubernetes
from modelyard.parts.clusters.addresses import NamedCluster
from modelyard.parts.clusters.ray_jobs import RayJobs
from modelyard.parts.clusters.slurm import SlurmJobs


def refused(*words: object, status: int = 1) -> str:
    result = CliRunner().invoke(main, ["work", *map(str, words)])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@each_case(
    "named",
    ["", "ray", "ray:host", "slurm:", "kubernetes", "kubernetes:", "nomad", "ray://host:no", "ray://", "ray://h/path"]
    + ["ray://host?num_gpus", "ray://host?num_gpus=many", "ray://user@host:8265"],
)
def test_what_names_no_cluster_is_refused(named: str) -> None:
    assert "Invalid value for '--on'" in refused("--store", "a.db", "--on", named, status=2)


@pytest.mark.parametrize("content", [None, "not json"])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "job.json").write_text(content)
    named = f"kubernetes:{tmp_path / 'job.json'}"
    assert "is not a manifest in JSON" in refused("--store", "a.db", "--on", named, status=2)


def test_options_that_do_not_go_with_a_cluster_are_refused(tmp_path: Path) -> None:
    assert "--isolate does not go with --on" in refused("--store", "a.db", "--isolate", "--on", "slurm", status=2)
    output = refused("--store", "postgresql://me:secret@host/yard", "--on", "slurm", status=2)
    assert "would show the password" in output
    assert "secret" not in output


def test_a_cluster_that_is_not_there_is_stated_before_a_job_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kubernetes, "PROXY", "http://127.0.0.1:1")
    (tmp_path / "job.json").write_text("{}")
    store = tmp_path / "yard.db"
    answers = {
        "ray://127.0.0.1:1": "ray http://127.0.0.1:1 does not answer",
        f"kubernetes:{tmp_path / 'job.json'}": "kubernetes http://127.0.0.1:1 does not answer",
        "slurm": "there is no command sinfo here; install Slurm's client commands",
    }
    for named, message in answers.items():
        assert message in refused("--store", store, "--on", named)
    assert not store.exists()


def test_a_slurm_that_is_not_reached_is_stated_with_what_to_look_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "sinfo"
    command.write_text(
        "#!/bin/sh\n"
        "echo 'sinfo: error: no' >&2\n"
        "echo 'sinfo: fatal: Could not establish a configuration source' >&2\n"
        "exit 1\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    output = refused("--store", tmp_path / "yard.db", "--on", "slurm")
    assert output.startswith(
        "Error: slurm refuses: sinfo: fatal: Could not establish a configuration source; look whether"
    )


def test_a_worker_gives_the_accelerators_that_its_command_names_and_one_of_a_cluster_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def note(self: Platform, *_: Any, **capacity: Any) -> Any:
        given.append(capacity)
        raise KeyboardInterrupt

    monkeypatch.setattr(Platform, "worker", note)
    monkeypatch.setattr(SlurmJobs, "check", lambda self: None)
    open_platform(tmp_path / "yard.db").close()
    for words in ([], ["--accelerators", "2", "--memory", "64"], ["--on", "slurm"]):
        CliRunner().invoke(main, ["work", "--store", str(tmp_path / "yard.db"), *words])
    assert given == [
        {"accelerators": 0, "memory": None},
        {"accelerators": 2, "memory": 64},
        {"accelerators": None, "memory": None},
    ]


def test_what_a_ray_job_takes_is_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(named: str) -> Any:
        found = ClusterType().convert(named, None, None)
        assert isinstance(found, NamedCluster)
        cluster = found.cluster
        assert isinstance(cluster, RayJobs)
        return cluster.name, cluster._options(Needs(JobKind.SFT))

    assert taken("ray://gpu.example") == ("ray http://gpu.example:8265", {"entrypoint_num_cpus": 1})
    both = {"entrypoint_num_gpus": 2.0, "entrypoint_memory": 1e9}
    assert taken("ray://127.0.0.1:9000?num_gpus=2&memory=1e9") == ("ray http://127.0.0.1:9000", both)


@pytest.mark.servers
def test_a_worker_submits_jobs_to_a_cluster_where_they_outlive_it(tmp_path: Path) -> None:
    """The commands of a cluster that are on the path answer for it: each job is a process of this machine."""
    store = tmp_path / "yard.db"
    with open_platform(store) as platform:
        run = platform.evaluations.submit("quiz", "echo", [{"prompt": "a", "expected": "a"}])
    with FakeKubernetes(tmp_path, token=None, namespace="default") as fake:
        (tmp_path / "job.json").write_text(
            json.dumps({"spec": {"template": {"spec": {"containers": [{"name": "job", "image": "yard"}]}}}})
        )
        code = "import modelyard.parts.clusters.kubernetes as k, modelyard.cli as c; k.PROXY = {!r}; c.main()"
        words = ["work", "--store", "yard.db", "--on", "kubernetes:job.json", "--python", sys.executable]
        words += ["--log", "json"]
        worker = subprocess.Popen(
            [sys.executable, "-c", code.format(fake.address), *words],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert worker.stderr is not None
        assert f"submits jobs to kubernetes {fake.address}/default, where they outlive it" in worker.stderr.readline()
        with open_platform(store) as platform:
            assert platform.evaluations.wait(run.id, timeout=60).score == 1.0
        worker.send_signal(signal.SIGTERM)
        _, reply = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert "is stopping" in reply.splitlines()[-1]
        [job] = fake.jobs.values()
        ran = [json.loads(line)["message"] for line in job.log.read_text().splitlines()]
        assert [line.partition(") ")[2] for line in ran if ", attempt 1)" in line] == ["begins", "succeeded"]
