"""Wrapper of DeepSpeed: join the process group, build the engine, take one optimizer step, save and load.

It sets three things explicitly that DeepSpeed would decide: where an optimizer step ends (the number of micro-batches
changes with every update), that gradients are summed over ranks (DeepSpeed averages them), and that nothing is compiled
at start.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.cluster.interfaces import LOOPBACK, interface_environment, interface_toward
from rlhf.errors import CheckpointError, ModelError, TrainingDiverged
from rlhf.models.deepspeed_internals import elements, local_part, release
from rlhf.trainer.config import OptimizerConfig
from rlhf.trainer.rank.learning_rate import learning_rate_factor
from rlhf.trainer.rank.sharding import ZeroSharding
from rlhf.trainer.rank.snapshot import Create
from rlhf.trainer.rank.state_slices import (
    MASTER,
    SliceIndex,
    adamw,
    engine_slices,
    prepare_states,
    put_scalars,
    scalars,
    weight_slice,
    write_slices,
)
from rlhf.trainer.rank.zero_config import deepspeed_config, deepspeed_module
from rlhf.trainer.settings import LearnerSettings
from rlhf.weight_sync.store import open_store
from rlhf.weight_sync.types import GroupAddress

SCALARS = "scalars.json"
"""The file of the numbers in a folder of state."""


def join(rank: int, world_size: int, address: GroupAddress, device: str, timeout_seconds: float) -> None:
    """Join the ranks' default process group: gloo on a CPU, nccl on GPUs. An existing group is reused.

    The group is made here and not by DeepSpeed, whose store would listen on every interface.
    """
    deepspeed = deepspeed_module()
    if device == "cpu":  # a shared-memory collective that would be compiled here (47 s), and that training never calls
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls collectives that torch will rename, which would warn for every tensor.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    backend, timeout = "gloo" if device == "cpu" else "nccl", timedelta(seconds=timeout_seconds)
    if not torch.distributed.is_initialized():
        _stay_on_loopback(address)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
        store = open_store(rank, address, timeout_seconds)
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    deepspeed.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
    if device == "cpu":
        deepspeed_module("comm.comm").cdb.all_gather_function = all_gather_by_broadcasts


class _Works(list[torch.distributed.Work]):
    """Several works that are awaited as one."""

    def wait(self) -> None:
        for work in self:
            work.wait()


def all_gather_by_broadcasts(output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool) -> _Works:
    """`all_gather_into_tensor` for gloo: torch's own copies everything three more times, and takes two to five times as
    long."""
    ranks = torch.distributed.get_process_group_ranks(group)
    parts = torch.split(output_tensor.view(-1), input_tensor.numel())
    parts[ranks.index(torch.distributed.get_rank())].copy_(input_tensor.view(-1))
    works = [
        torch.distributed.broadcast(part, rank, group, async_op=True) for rank, part in zip(ranks, parts, strict=True)
    ]
    started = _Works(work for work in works if work)
    if not async_op:
        started.wait()
    return started


def _stay_on_loopback(address: GroupAddress) -> None:
    """Ranks of one machine open no port that another can reach, unless somebody chose an interface for them."""
    if address.host == LOOPBACK:
        for variable, value in interface_environment(interface_toward(LOOPBACK)).items():
            os.environ.setdefault(variable, value)


def build_engine(
    module: nn.Module, config: OptimizerConfig, settings: LearnerSettings, world_size: int, *, total_steps: int
) -> Any:
    """Return a DeepSpeed engine around `module` with AdamW and a schedule over `total_steps`, both from `config`. A
    process may have several."""
    if settings.device == "cpu" and settings.model.dtype == "float16":
        raise ModelError("model.dtype=float16 trains on GPUs only; on a CPU use float32 or bfloat16")
    optimizer = torch.optim.AdamW(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
    engine, *_ = deepspeed_module().initialize(
        model=module,
        optimizer=optimizer,
        lr_scheduler=lambda wrapped: torch.optim.lr_scheduler.LambdaLR(
            wrapped,
            lambda step: learning_rate_factor(
                step, schedule=config.schedule, warmup_steps=config.warmup_steps, total_steps=total_steps
            ),
        ),
        config=deepspeed_config(settings, config, world_size, sum(map(elements, module.parameters()))),
        dist_init_required=False,
    )
    return engine


def build_reference(module: nn.Module, settings: LearnerSettings, world_size: int) -> nn.Module:
    """Return the module for forward passes alone: where weights are sharded, an engine that gathers them layer by
    layer."""
    if settings.trainer.deepspeed.zero_stage != 3:
        return module
    config = deepspeed_config(settings, settings.trainer.optimizer, world_size, sum(map(elements, module.parameters())))
    engine: nn.Module
    engine, *_ = deepspeed_module().initialize(model=module, config=config, dist_init_required=False)
    return engine


def sharding(settings: LearnerSettings, world_size: int) -> ZeroSharding | None:
    """How a model is loaded in shards; `None` where every rank holds whole weights."""
    if settings.trainer.deepspeed.zero_stage != 3:
        return None
    return ZeroSharding(deepspeed_config(settings, settings.trainer.optimizer, world_size, 1))


def backward(engine: Any, loss: Tensor, world_size: int, *, last: bool) -> Tensor:
    """Add the gradients of a micro-batch; after the `last` one of a step they are summed over ranks. Returns the loss
    without its graph."""
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(loss * world_size, scale_wrt_gas=False)
    if not last:
        engine.step()
    return loss.detach()


def step(engine: Any, setting: str = "trainer.optimizer") -> float:
    """Clip and apply the accumulated gradients; returns their norm before clipping. Raises `TrainingDiverged`, which
    names the `setting` of its optimizer."""
    norm = None if engine.zero_optimization() else _norm(engine.module.parameters())
    engine.step()
    norm = float(engine.get_global_grad_norm()) if norm is None else norm
    if not engine.fp16_enabled() and not norm < float("inf"):
        raise TrainingDiverged(f"the gradient norm is {norm}: lower {setting}.learning_rate")
    return norm


def pass_over(engine: Any, steps: int) -> None:
    """Advance the schedule by `steps` that an update did not make."""
    for _ in range(steps):
        engine.lr_scheduler.step()


def save(engine: Any, folder: Path, rank: int, create: Create, *, frozen: bool = True) -> list[Path]:
    """Write what this rank holds of weights, also `frozen` ones, and moments, and on rank 0 the schedule's position;
    returns its files."""
    own = write_slices(folder / f"rank-{rank:05d}.safetensors", engine_slices(engine, rank, frozen=frozen), create)
    if rank == 0:
        (folder / SCALARS).write_text(json.dumps(scalars(engine)))
        own.append(folder / SCALARS)
    return own


def load(engine: Any, folder: Path, config: OptimizerConfig, rank: int, *, frozen: bool = True) -> None:
    """Continue from `save`, also with other ranks or another stage, with the optimizer's settings from `config`.
    Raises `CheckpointError`. Collective."""
    index = SliceIndex(folder)
    try:
        saved = json.loads((folder / SCALARS).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / SCALARS} cannot be read ({error}); use another checkpoint") from None
    prepare_states(engine, index, rank)
    weights = dict(engine.module.named_parameters())
    release(weights.values())
    with torch.no_grad():
        for piece in engine_slices(engine, rank, frozen=frozen):
            index.fill(piece)
        for name, weight in weights.items():
            if weight.requires_grad:  # in the model's precision, as the optimizer writes it after a step
                index.fill(weight_slice(name, weight, MASTER, local_part(weight), rank))
    put_scalars(engine, saved)
    put_settings(engine, config)
    torch.distributed.barrier()


def put_settings(engine: Any, config: OptimizerConfig) -> None:
    """Set the optimizer's settings from `config` in place of those in the checkpoint; step, moments and position in the
    schedule are kept."""
    schedule, optimizer = engine.lr_scheduler, adamw(engine)
    schedule.base_lrs = [config.learning_rate] * len(optimizer.param_groups)
    for group, factor in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["initial_lr"], group["lr"] = config.learning_rate, config.learning_rate * factor(schedule.last_epoch)
        group["betas"], group["eps"], group["weight_decay"] = config.betas, config.eps, config.weight_decay
    if engine.zero_optimization():
        engine.optimizer.clip_grad = config.max_grad_norm


@contextmanager
def forward_only(module: Any) -> Iterator[None]:
    """Forward passes of an engine, or a plain module, without gradients. ZeRO-3 would keep weights gathered for a
    backward pass that never comes, and later changes of their shards would have no effect."""
    with torch.no_grad():
        yield
    if isinstance(module, deepspeed_module().DeepSpeedEngine) and module.zero_optimization_partition_weights():
        module.optimizer.empty_partition_cache()


def _norm(parameters: Iterator[torch.nn.Parameter]) -> float:
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack(norms)))
