"""Starts a run on several machines: nodes of a Ray cluster, SLURM jobs and Kubernetes jobs."""
