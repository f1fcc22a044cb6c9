"""Where a claimed job runs: in the calling thread, in threads, in processes, or in a cluster."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.executors.inline import InlineExecutor
    from modelyard.executors.isolating import IsolatingExecutor
    from modelyard.executors.subprocess import SubprocessExecutor
    from modelyard.executors.thread import ThreadExecutor
    from modelyard.parts.clusters.cluster import Cluster, ClusterExecutor
    from modelyard.parts.clusters.kubernetes import KubernetesJobs
    from modelyard.parts.clusters.ray_jobs import RayJobs
    from modelyard.parts.clusters.slurm import SlurmJobs
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "parts.clusters.cluster": ("Cluster", "ClusterExecutor"),
            "executors.inline": ("InlineExecutor",),
            "executors.isolating": ("IsolatingExecutor",),
            "parts.clusters.kubernetes": ("KubernetesJobs",),
            "parts.clusters.ray_jobs": ("RayJobs",),
            "parts.clusters.slurm": ("SlurmJobs",),
            "executors.subprocess": ("SubprocessExecutor",),
            "executors.thread": ("ThreadExecutor",),
        },
    )

__all__ = [
    "Cluster",
    "ClusterExecutor",
    "InlineExecutor",
    "IsolatingExecutor",
    "KubernetesJobs",
    "RayJobs",
    "SlurmJobs",
    "SubprocessExecutor",
    "ThreadExecutor",
]

defer_modules(__name__, "thread")
