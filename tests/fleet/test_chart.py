"""The Helm chart of `examples/deploy`, rendered by Helm: valid, bounded, and what the kept manifests are made of."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from each import each_case
from manifests import check_manifest, pods_of
from modelyard import open_platform
from rendered_chart import DEPLOY, KEPT, RENDERS, complaints, kept_text, rendered

pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(not RENDERS, reason="neither helm nor helm-python-sdk is installed: lanes.py helm has it"),
]

GPU = {
    "accelerators": 2,
    "nodeSelector": {"accelerator": "a100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "resources": {
        "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "12Gi"},
        "limits": {"memory": "64Gi", "ephemeral-storage": "14Gi"},
    },
    "scale": {"minimum": 0, "maximum": 8},
}


def manifests(values: Any, *release: str) -> dict[tuple[str, str], Any]:
    """What the chart makes of values for a release, by its name and namespace; by kind and name."""
    texts = (text for name, text in rendered(values, *release).items() if name.endswith(".yaml"))
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_helm_has_nothing_against_it() -> None:
    assert complaints() == []


@pytest.mark.parametrize("name", KEPT)
def test_the_kept_manifests_are_what_it_makes(name: str) -> None:
    assert (DEPLOY / name).read_text(encoding="utf-8") == kept_text(name), "python tests/shared/rendered_chart.py"


SOME: list[Any] = [
    {},
    {"workers": {"default": None, "gpu": GPU}, "keep": {"events": None}, "artifacts": "s3://bucket/a b"},
    {"workers": {"gpu": {**GPU, "accelerators": 0}}, "environment": {"AWS_REGION": "a: b", "DEBUG": True, "PORT": 8}},
    {"cluster": {"enabled": True}, "imagePullSecrets": [{"name": "registry"}], "keep": {"ledger": 400, "runs": 0.5}},
    {"cluster": {"enabled": True}, "server": {"arguments": ["--dashboard"]}, "artifacts": "gs://bucket/x#y"},
]


@pytest.mark.parametrize("values", SOME)
def test_all_that_it_makes_is_valid_and_bounded(values: Any, tmp_path: Path) -> None:
    found = manifests(values)
    enabled = values.get("cluster", {}).get("enabled", False)
    assert (("Role", "yard-cluster") in found) is enabled
    if enabled:
        job = tmp_path / "job.json"
        job.write_text(found["ConfigMap", "yard-cluster"]["data"]["job.json"], encoding="utf-8")
        arguments = found["Deployment", "yard-cluster"]["spec"]["template"]["spec"]["containers"][0]["args"]
        arguments[arguments.index("--on") + 1] = f"kubernetes:{job}"
    for manifest in found.values():
        check_manifest(manifest)
    kept = {"events": 90} | values.get("keep", {})
    assert {name for kind, name in found if kind == "CronJob"} == {
        "yard-sweep",
        *(f"yard-keep-{what}" for what, days in kept.items() if days),
    }


def test_a_pool_gives_accelerators_and_is_scaled_by_the_jobs_that_need_as_many() -> None:
    found = manifests({"workers": {"gpu": GPU}})
    pool = found["Deployment", "yard-worker-gpu"]
    assert "replicas" not in pool["spec"], "each upgrade would undo what the autoscaler has set"
    (pod,) = pods_of(pool)
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {**GPU["resources"]["limits"], "nvidia.com/gpu": 2}  # type: ignore[index]
    assert container["args"][-2:] == ["--accelerators", "2"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (GPU["nodeSelector"], GPU["tolerations"])
    scaled = found["ScaledObject", "yard-worker-gpu"]["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 8)
    metric, labels = query_of(found["ScaledObject", "yard-worker-gpu"])
    with open_platform() as platform:
        needs = {"accelerators": 2}
        platform.evaluations.submit("quiz", "echo", [{"prompt": "a", "expected": "a"}], project="desk", needs=needs)
        lines = platform.metrics.text().splitlines()
    assert labels["accelerators"] == "2"
    assert f'{metric}{{accelerators="2",place="ready"}} 1.0' in lines


def query_of(scaled: Any) -> tuple[str, dict[str, str]]:
    """The metric that an autoscaler asks for, and the labels by which its series are chosen."""
    (trigger,) = scaled["spec"]["triggers"]
    asked = re.fullmatch(r"max\(sum by \(instance\) \((\w+)\{(.*)\}\)\)", trigger["metadata"]["query"])
    assert asked is not None, trigger
    return asked[1], dict(re.findall(r'(\w+)="([^"]*)"', asked[2]))


def test_no_release_is_scaled_by_the_jobs_of_another() -> None:
    """Prometheus adds to a series the namespace and the Service that it was read through."""
    releases = [("yard", "default"), ("yard", "trial"), ("second", "default")]
    made = [manifests({"workers": {"gpu": GPU}}, *release) for release in releases]
    services = [
        {"namespace": namespace, "service": service["metadata"]["name"]}
        for (_, namespace), one in zip(releases, made, strict=True)
        for (kind, _), service in one.items()
        if kind == "Service"
    ]
    assert len(services) == len(releases)
    for (name, _), one, own in zip(releases, made, services, strict=True):
        _, labels = query_of(one["ScaledObject", f"{name}-worker-gpu"])
        assert [read for read in services if labels.items() >= read.items()] == [own]


def test_the_jobs_of_a_cluster_are_as_confined_as_its_workers() -> None:
    from modelyard.parts.clusters.kubernetes import manifest

    found = manifests({"cluster": {"enabled": True}, "environment": {"AWS_REGION": "eu"}})
    template = json.loads(found["ConfigMap", "yard-cluster"]["data"]["job.json"])
    job = manifest(template, "job-1", ["python", "-m", "modelyard.worker"], {"nvidia.com/gpu": "1", "memory": "8Gi"})
    check_manifest(job, commands=False)
    (pod,) = pods_of(job)
    assert pod["containers"][0]["env"] == [{"name": "AWS_REGION", "value": "eu"}]


@each_case(
    "wrong",
    [
        {"replica": 3},
        {"server": {"replica": 3}},
        {"workers": {"gpu": {**GPU, "gpus": 1}}},
        {"workers": {"A pool": GPU}},
        {"keep": {"rows": 30}},
        {"keep": {"events": 0}},
        {"store": "postgresql://yard:secret@postgres/yard"},
        {"store": "yard.db"},
    ],
)
def test_values_that_mean_nothing_are_refused(wrong: Any) -> None:
    with pytest.raises(Exception, match=r"schema|non-zero exit status"):
        rendered(wrong)
