"""Checks which workers of a recipe may share GPUs. They raise `ValueError`, for the schema."""

from __future__ import annotations

from rlhf.engines.config import RolloutConfig
from rlhf.trainer.config import TrainerConfig


def check_rank_gpus(trainer: TrainerConfig) -> None:
    """Check that a rank has at most one GPU, and that no two ranks share one, which nccl refuses."""
    gpus, ranks = trainer.deepspeed.gpus_per_rank, trainer.deepspeed.ranks
    if gpus > 1:
        raise ValueError(
            f"trainer.deepspeed.gpus_per_rank is {gpus:g}, but a rank uses one GPU; give 1, and raise "
            "trainer.deepspeed.ranks"
        )
    if ranks > 1 and 0 < gpus < 1:
        raise ValueError(
            f"trainer.deepspeed.gpus_per_rank is {gpus:g}, so two of {ranks} ranks could share a GPU, which nccl "
            "refuses; give 1, and cluster.placement: colocated to share GPUs with engines"
        )


def check_colocation(trainer: TrainerConfig, rollout: RolloutConfig) -> None:
    """Check that every engine can take turns with ranks on their GPUs."""
    ranks, sizes = trainer.deepspeed.ranks, rollout.tensor_parallel_sizes
    if trainer.max_staleness:
        raise ValueError(
            f"trainer.max_staleness is {trainer.max_staleness}, but with cluster.placement: colocated engines wait "
            "while the learner trains; use 0, or cluster.placement: separate"
        )
    if len(set(sizes)) > 1:
        raise ValueError(
            "cluster.placement: colocated needs engines of equal size, but rollout.tensor_parallel_size lists "
            "several; give one"
        )
    if sum(sizes) != ranks:
        raise ValueError(
            f"cluster.placement is colocated, but {len(sizes)} engine(s) of tensor_parallel_size {sizes[0]} do "
            f"not cover {ranks} rank(s); rollout.engines x rollout.tensor_parallel_size must be trainer.deepspeed.ranks"
        )
    gpus = {rollout.gpus_per_engine, trainer.deepspeed.gpus_per_rank}
    if gpus not in ({0}, {1}):
        raise ValueError(
            "cluster.placement is colocated, where a rank and its engine have the same GPU: rollout.gpus_per_engine "
            "and trainer.deepspeed.gpus_per_rank must both be 1, or on a CPU both 0"
        )
    if trainer.weight_sync.backend == "nccl":
        raise ValueError(
            "trainer.weight_sync.backend is nccl, which refuses two members on one GPU, as cluster.placement: "
            "colocated has them; use auto or ipc"
        )
