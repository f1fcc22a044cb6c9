"""What `modelyard work --on` names: a cluster, and what its jobs take."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import attrs
import click

from modelyard.parts.clusters.cluster import Cluster, ClusterExecutor
from modelyard.parts.clusters.kubernetes import KubernetesJobs
from modelyard.parts.clusters.ray_jobs import RayJobs
from modelyard.parts.clusters.slurm import SlurmJobs

PORT = 8265
"""On which Ray's dashboard listens."""
PREFIX = "entrypoint_"
"""Of Ray's words for what a job takes."""


class CheckedCluster(Cluster, Protocol):
    """A cluster that can say whether it is there."""

    def check(self) -> None:
        """Raise `ClusterError` where it is not, or refuses."""
        ...


@attrs.frozen
class NamedCluster:
    """A cluster that an address names."""

    cluster: CheckedCluster

    @property
    def name(self) -> str:
        return self.cluster.name

    def check(self) -> None:
        """Raise `ClusterError` where it is not, or refuses."""
        self.cluster.check()

    def executor(self, factory: str, arguments: Sequence[str], python: str, log: str) -> ClusterExecutor:
        """Return what runs jobs there."""
        return ClusterExecutor(self.cluster, factory, arguments, python=python, log=log)


def ray(address: str) -> NamedCluster:
    """Open the cluster at `ray://host:port?num_gpus=1`. Raises `click.BadParameter`."""
    parts = urlsplit(address)
    try:
        taken = {f"{PREFIX}{name}": float(number) for name, number in parse_qsl(parts.query, strict_parsing=True)}
        base = f"http://{parts.hostname}:{parts.port or PORT}"
    except ValueError as error:
        raise click.BadParameter(f"{address!r} is not like ray://host:8265?num_gpus=1: {error}") from None
    if not parts.hostname or parts.username or parts.path.strip("/"):
        raise click.BadParameter(f"{address!r} is not like ray://host:8265?num_gpus=1")
    options = taken or {f"{PREFIX}num_cpus": 1}
    return NamedCluster(RayJobs(base, options=lambda _: options, token=os.environ.get("RAY_AUTH_TOKEN")))


def slurm(address: str) -> NamedCluster:
    """Open `slurm`, or `slurm:PARTITION`. Raises `click.BadParameter`."""
    if address == "slurm:":
        raise click.BadParameter("name a partition after slurm:, or leave out the colon")
    return NamedCluster(SlurmJobs(address.partition(":")[2] or None))


def kubernetes(address: str) -> NamedCluster:
    """Open the cluster of this machine, with the manifest of `kubernetes:FILE`. Raises `click.BadParameter`."""
    file = Path(address.partition(":")[2])
    try:
        template: Mapping[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{file} is not a manifest in JSON: {error}") from None
    return NamedCluster(KubernetesJobs.here(lambda _: template))
