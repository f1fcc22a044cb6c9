"""Jobs in a cluster: Slurm, Kubernetes, Ray."""

from modelyard.part import JobCluster, Part


def _ray(address: str) -> JobCluster:
    from modelyard.parts.clusters.addresses import ray

    return ray(address)


def _slurm(address: str) -> JobCluster:
    from modelyard.parts.clusters.addresses import slurm

    return slurm(address)


def _kubernetes(address: str) -> JobCluster:
    from modelyard.parts.clusters.addresses import kubernetes

    return kubernetes(address)


PART = Part(
    "clusters",
    clusters={
        "ray": ("ray://HOST:PORT (of the dashboard), with ?num_gpus=1 for what a job takes", _ray),
        "slurm": ("slurm or slurm:PARTITION", _slurm),
        "kubernetes": ("kubernetes:FILE, a manifest of a batch/v1 Job in JSON", _kubernetes),
    },
)
