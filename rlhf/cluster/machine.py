"""Detects the cores and GPUs of this machine."""

from __future__ import annotations

import os

from rlhf.cluster.gpus import this_machines_gpus
from rlhf.cluster.roles import Resources


def this_machine(name: str = "this machine") -> Resources:
    """The cores that this process may use and the GPUs that it may see, found without importing torch."""
    return Resources(node=name, cpus=float(len(os.sched_getaffinity(0))), gpus=float(len(this_machines_gpus())))
