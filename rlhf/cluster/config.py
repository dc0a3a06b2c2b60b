"""Settings for where the processes of a run are placed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config import Config


class ClusterConfig(Config):
    """Whether a run uses one process or a Ray cluster, and how workers are placed."""

    kind: Literal["local", "ray"] = "ray"
    """`local`: everything in one process, without Ray, so that a debugger works; `ray`: a process for every worker."""
    address: str | None = None
    """An existing Ray cluster to join; a fresh one on this machine when absent."""
    nodes: int = Field(1, ge=1)
    """Number of nodes that the cluster at `address` must have before workers are placed. The run waits for them."""
    placement: Literal["separate", "colocated"] = "separate"
    """Whether engines have their own GPUs. `separate`: learner ranks and engines work at the same time, each on its own
    GPUs. `colocated`: every engine uses the GPUs of as many ranks as it has tensor-parallel parts, and the two take
    turns: while engines generate, the ranks' state is in host memory; while ranks train, engines hold no weights and no
    KV cache. Needs `trainer.max_staleness: 0`."""
    learner_placement: Literal["pack", "spread"] = "pack"
    """How learner ranks are placed on nodes. `pack`: on as few nodes as possible, so that most traffic stays within a
    node. `spread`: as evenly as capacity allows, so that each rank has more of its node's memory. Ranks of a node are
    consecutive."""
    placement_timeout_seconds: float = Field(60, gt=0)
    """Deadline for the nodes to join, and for the cluster to start every worker."""
