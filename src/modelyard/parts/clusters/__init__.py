"""Jobs in a cluster: Slurm, Kubernetes, Ray."""
