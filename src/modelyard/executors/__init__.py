"""Where a claimed job runs: in the calling thread, in threads, in processes, or in a cluster."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.executors.cluster import Cluster, ClusterExecutor
    from modelyard.executors.inline import InlineExecutor
    from modelyard.executors.isolating import IsolatingExecutor
    from modelyard.executors.kubernetes import KubernetesJobs
    from modelyard.executors.ray_jobs import RayJobs
    from modelyard.executors.slurm import SlurmJobs
    from modelyard.executors.subprocess import SubprocessExecutor
    from modelyard.executors.thread import ThreadExecutor
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "executors.cluster": ("Cluster", "ClusterExecutor"),
            "executors.inline": ("InlineExecutor",),
            "executors.isolating": ("IsolatingExecutor",),
            "executors.kubernetes": ("KubernetesJobs",),
            "executors.ray_jobs": ("RayJobs",),
            "executors.slurm": ("SlurmJobs",),
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
