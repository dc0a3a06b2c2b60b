"""The environment of a learner rank's process, read before torch is imported."""

from __future__ import annotations

from rlhf.cluster.cpu_memory import CPU_MEMORY


def rank_environment(device: str) -> dict[str, str]:
    """Environment variables for a rank on `device`. On a CPU freed memory is kept (`CPU_MEMORY`): activations that were
    returned to the system would come back page by page, which costs a tenth of the time of a pass."""
    return CPU_MEMORY | {"DS_ACCELERATOR": "cpu"} if device == "cpu" else {}
