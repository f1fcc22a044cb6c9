"""What every manifest of Kubernetes must have that deploys the platform."""

from collections.abc import Iterator
from typing import Any

import click
import kubernetes_validate

from modelyard.cli import main

VERSION = "1.30"
SECONDS_OF_STREAMS = 10
"""How long a server that is stopped lets streams continue."""


def check_command(words: list[str]) -> None:
    """Raise unless the words are a command with options that it has; nothing is run."""
    command = main.get_command(click.Context(main), words[0])
    assert command is not None, words
    command.make_context(words[0], list(words[1:]))


def check_manifest(manifest: Any, commands: bool = True) -> None:
    """Raise unless a manifest is valid, and bounds and confines what it runs.

    `commands` says that what it runs is named by its arguments alone.
    """
    if not manifest["apiVersion"].startswith("keda.sh/"):
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    for pod in pods_of(manifest):
        account = pod["securityContext"]
        assert (account["runAsNonRoot"], account["seccompProfile"]["type"]) == (True, "RuntimeDefault")
        assert account["runAsUser"] > 0
        assert ("serviceAccountName" in pod) is pod.get("automountServiceAccountToken", True)
        for container in pod["containers"]:
            _check_container(container, pod, manifest["kind"])
            if commands:
                check_command(container["args"])


def _check_container(container: Any, pod: Any, kind: str) -> None:
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert {"cpu", "memory", "ephemeral-storage"} <= set(requests)
    assert {"memory", "ephemeral-storage"} <= set(limits)
    confined = container["securityContext"]
    assert (confined["readOnlyRootFilesystem"], confined["allowPrivilegeEscalation"]) == (True, False)
    assert confined["capabilities"] == {"drop": ["ALL"]}
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounted["temporary"] == "/tmp"
    assert set(mounted) <= {volume["name"] for volume in pod["volumes"]}
    if container.get("args", [""])[0] == "serve":
        _check_server(container, pod)
    elif kind == "Deployment":
        assert pod["terminationGracePeriodSeconds"] >= 30


def _check_server(container: Any, pod: Any) -> None:
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["timeoutSeconds"] >= 5, "the store may be slow, and a second is Kubernetes' default"
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before > 0
    assert pod["terminationGracePeriodSeconds"] > before + SECONDS_OF_STREAMS


def pods_of(manifest: Any) -> Iterator[Any]:
    """Yield what a manifest says of pods."""
    spec = manifest.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    if "template" in spec:
        yield spec["template"]["spec"]
