"""Sequence parallelism: teams of ranks that share rows, for sequences that do not fit on one rank.

The exchange is DeepSpeed's (Ulysses, arXiv 2309.14509). Every rank of a team gets the same micro-batches and computes
the same losses, from its columns of the rows. DeepSpeed treats them as ordinary ranks, whose gradients it sums: the
gradient of a team's loss is the sum of what its ranks computed.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache

import torch.distributed as dist
from transformers import PreTrainedModel

from rlhf.models.policy import PolicyModel, RowForward
from rlhf.models.scalar import ScalarHead
from rlhf.models.shared_rows import Team, all_columns
from rlhf.trainer.config import DeepSpeedConfig
from rlhf.trainer.rank.zero_config import deepspeed_module
from rlhf.trainer.settings import LearnerSettings


def as_policy(model: PreTrainedModel, settings: LearnerSettings, rows: RowForward) -> PolicyModel:
    """Return the model as a rank computes it: `rows` as proved, or its columns of rows shared with a team. Raises
    `ModelError` for a model whose heads cannot be split. ZeRO-3 gathers the output head around `head_pass`, once for
    all its chunks."""
    policy = PolicyModel(model, _team(model, settings.trainer.deepspeed) or rows)
    if settings.trainer.deepspeed.zero_stage == 3:
        for parameter in model.get_output_embeddings().parameters():  # type: ignore[no-untyped-call]
            deepspeed_module().zero.register_external_parameter(policy.head_pass, parameter)
    return policy


def as_scalar_head(model: PreTrainedModel, settings: LearnerSettings, rows: RowForward) -> ScalarHead:
    """As `as_policy`, for a model with one number per token."""
    return ScalarHead(model, _team(model, settings.trainer.deepspeed) or rows)


def _team(model: PreTrainedModel, config: DeepSpeedConfig) -> Team | None:
    """Return this rank's team of consecutive ranks; `None` for a rank alone. The first call is collective."""
    if config.sequence_parallel == 1:
        return None
    group = _group(config.sequence_parallel, config.timeout_seconds)
    exchange = deepspeed_module("sequence.layer").DistributedAttention(all_columns, group, scatter_idx=2, gather_idx=1)
    team = Team(group=group, size=config.sequence_parallel, rank=dist.get_rank(group), exchange=exchange)
    team.take(model)
    return team


@cache
def _group(size: int, timeout_seconds: float) -> dist.ProcessGroup:
    """Once a process: ranks may be started again, and groups cannot be ended one by one."""
    firsts = range(0, dist.get_world_size(), size)
    groups: list[dist.ProcessGroup] = [
        dist.new_group(list(range(n, n + size)), timeout=timedelta(seconds=timeout_seconds)) for n in firsts
    ]
    return groups[dist.get_rank() // size]
