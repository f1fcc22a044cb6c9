"""Names of parts in `modelyard.executors`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.clusters.cluster import Cluster, ClusterExecutor
    from modelyard.parts.clusters.kubernetes import KubernetesJobs
    from modelyard.parts.clusters.ray_jobs import RayJobs
    from modelyard.parts.clusters.slurm import SlurmJobs

HOMES = {
    "parts.clusters.cluster": ("Cluster", "ClusterExecutor"),
    "parts.clusters.kubernetes": ("KubernetesJobs",),
    "parts.clusters.ray_jobs": ("RayJobs",),
    "parts.clusters.slurm": ("SlurmJobs",),
}

__all__: list[str] = [
    "Cluster",
    "ClusterExecutor",
    "KubernetesJobs",
    "RayJobs",
    "SlurmJobs",
]
