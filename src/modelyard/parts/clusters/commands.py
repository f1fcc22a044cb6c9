"""The cluster that `modelyard work --on` names, and the resources that its jobs take."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import click

from modelyard.cli.terminal import StoreName, printable_store
from modelyard.parts.clusters.cluster import Cluster
from modelyard.parts.clusters.kubernetes import KubernetesJobs
from modelyard.parts.clusters.ray_jobs import RayJobs
from modelyard.parts.clusters.slurm import SlurmJobs

ON_HELP = (
    "Run each job in a cluster: ray://HOST:PORT (of the dashboard), with ?num_gpus=1 for what a job takes; slurm or "
    "slurm:PARTITION; kubernetes:FILE, a manifest of a batch/v1 Job in JSON."
)
PORT = 8265
"""On which Ray's dashboard listens."""
PREFIX = "entrypoint_"
"""Of Ray's words for what a job takes."""


def check_cluster_options(store: StoreName | None, isolate: bool) -> None:
    """Raise `click.UsageError` for options that do not go with a cluster, and for a secret that it would show."""
    if isolate:
        raise click.UsageError("--isolate does not go with --on: in a cluster each job has a process of its own")
    if store is not None and printable_store(store) != str(store):
        raise click.UsageError(
            "the cluster would show the password in --store to its users: use a PGPASSFILE in its place, or --factory"
        )


class CheckedCluster(Cluster, Protocol):
    """A cluster that can be checked before it is used."""

    def check(self) -> None:
        """Raise `ClusterError` if the cluster does not answer, or refuses."""
        ...


class ClusterType(click.ParamType):  # type: ignore[type-arg]  # generic since 8.4 alone
    name = "cluster"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CheckedCluster:
        kind, _, rest = str(value).partition(":")
        if kind == "ray" and rest.startswith("//"):
            return self._ray(value)
        if kind == "slurm" and value != "slurm:":
            return SlurmJobs(rest or None)
        if kind == "kubernetes" and rest:
            return self._kubernetes(Path(rest))
        return self.fail(f"{value!r} is none of ray://HOST:PORT, slurm, slurm:PARTITION, kubernetes:FILE")

    def _ray(self, value: str) -> RayJobs:
        parts = urlsplit(value)
        try:
            taken = {f"{PREFIX}{name}": float(number) for name, number in parse_qsl(parts.query, strict_parsing=True)}
            address = f"http://{parts.hostname}:{parts.port or PORT}"
        except ValueError as error:
            self.fail(f"{value!r} is not like ray://host:8265?num_gpus=1: {error}")
        if not parts.hostname or parts.username or parts.path.strip("/"):
            self.fail(f"{value!r} is not like ray://host:8265?num_gpus=1")
        options = taken or {f"{PREFIX}num_cpus": 1}
        return RayJobs(address, options=lambda _: options, token=os.environ.get("RAY_AUTH_TOKEN"))

    def _kubernetes(self, file: Path) -> KubernetesJobs:
        try:
            template: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self.fail(f"{file} is not a manifest in JSON: {error}")
        return KubernetesJobs.here(lambda _: template)
