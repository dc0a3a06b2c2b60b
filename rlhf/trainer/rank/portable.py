"""Load DeepSpeed state that was saved with another number of ranks or ZeRO stage: whole parameters with their optimizer
moments.

DeepSpeed's own converter makes them from partitioned state; each rank then loads its part. Exact except for the order
in which another number of ranks sums.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.models.lora import HasModel
from rlhf.trainer.rank import weights, zero
from rlhf.trainer.rank.accelerator import deepspeed_module
from rlhf.trainer.rank.states import as_data

WHOLE = "whole"
MASTER, MOMENTS = "fp32", ("exp_avg", "exp_avg_sq")
MODEL_STATES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def load_from_other_plan(module: HasModel, engine: Any, state: Path, rank: int, bucket_bytes: int) -> None:
    """Load weights, moments and the schedule's position from the checkpoint in `state` onto this plan's ranks.
    Collective; set the optimizer's settings (`zero.put_settings`) after it."""
    with as_data(state):
        _load(module, engine, state, rank, bucket_bytes)


def _load(module: HasModel, engine: Any, state: Path, rank: int, bucket_bytes: int) -> None:
    whole = state.parent / WHOLE
    if rank == 0:
        _convert(state, whole)
    torch.distributed.barrier()
    names = {id(weight): name for name, weight in engine.module.named_parameters()}
    held = {name: names[id(weight)] for name, weight in weights.held_weights(module)}

    def saved(name: str, weight: Tensor) -> Tensor:
        return _read(whole, held[name], MASTER).view(weight.shape).to(weight)

    weights.change(module, bucket_bytes, saved)
    schedule = _model_states(state)["lr_scheduler"]
    for name, weight in engine.module.named_parameters():
        place = _place(engine, weight, rank)
        if place is not None:
            with torch.no_grad():
                place.put(place.flat, _read(whole, name, MASTER))
            if schedule["last_epoch"]:  # optimizer steps: before the first there are no moments
                moments = _moments(engine, place.flat, schedule["last_epoch"])
                for part in MOMENTS:
                    place.put(moments[part], _read(whole, name, part))
    engine.lr_scheduler.load_state_dict(schedule)
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(whole)


def _convert(state: Path, whole: Path) -> None:
    """A folder for every parameter, with its master weights and moments, whole."""
    shutil.rmtree(whole, ignore_errors=True)
    if not list(state.glob("*optim_states.pt")):
        _split(_model_states(state), whole)
        return
    ds_to_universal = deepspeed_module("checkpoint.ds_to_universal")
    with open(os.devnull, "w") as silent, contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        ds_to_universal.main(
            argparse.Namespace(
                input_folder=str(state),
                output_folder=str(whole),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )


def _split(states: Mapping[str, Any], whole: Path) -> None:
    """The same folders of state that was never partitioned (ZeRO stage 0). Tied weights come once, as in the model."""
    first: dict[int, str] = {}
    for name, tensor in states["module"].items():
        first.setdefault(tensor.data_ptr(), name)
    moments = states["optimizer"]["state"]
    for number, name in enumerate(first.values()):
        folder = whole / "zero" / name
        folder.mkdir(parents=True)
        torch.save(states["module"][name].float(), folder / f"{MASTER}.pt")
        for part in MOMENTS if moments else ():
            torch.save(moments[number][part], folder / f"{part}.pt")


def _read(whole: Path, name: str, part: str) -> Tensor:
    saved = torch.load(whole / "zero" / name / f"{part}.pt", map_location="cpu", weights_only=True)
    tensor: Tensor = saved["param"] if isinstance(saved, Mapping) else torch.as_tensor(saved)
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptimizerSlice:
    """A rank's slice of a parameter in its optimizer: `count` elements of `flat` from `at` on, which are those of the
    whole parameter from `start` on."""

    flat: Tensor
    at: int
    start: int
    count: int

    def put(self, flat: Tensor, whole: Tensor) -> None:
        """Copy this rank's part of `whole` into a tensor with the layout of `flat`."""
        part = whole.flatten()[self.start : self.start + self.count]
        flat.view(-1)[self.at : self.at + len(part)].copy_(part)  # the last shard of ZeRO-3 ends in padding


def _place(engine: Any, weight: Any, rank: int) -> OptimizerSlice | None:
    """None for a rank that has no part of `weight`."""
    optimizer = engine.optimizer
    if weights.partitioned(weight):
        group, at, count = optimizer.grad_position[optimizer.get_param_id(weight)]
        return OptimizerSlice(
            flat=optimizer.fp32_partitioned_groups_flat[group], at=at, start=rank * count, count=count
        )
    if not engine.zero_optimization():
        return OptimizerSlice(flat=weight, at=0, start=0, count=weight.numel())
    mapping = weight._hp_mapping
    if mapping is None:
        return None
    flat, own = optimizer.single_partition_of_fp32_groups[mapping.param_group_index], mapping.hp_fragment_address
    return OptimizerSlice(flat=flat, at=own.start, start=mapping.lp_fragment_address.start, count=own.numel)


def _moments(engine: Any, flat: Tensor, steps: int) -> Mapping[str, Tensor]:
    """The optimizer's state of one of its tensors, made where it has taken no step yet."""
    states = zero.adamw(engine).state
    if flat not in states:
        states[flat] = {part: torch.zeros_like(flat) for part in MOMENTS} | {"step": torch.tensor(float(steps))}
    moments: Mapping[str, Tensor] = states[flat]
    return moments


def _model_states(state: Path) -> Mapping[str, Any]:
    file = next(state / name for name in MODEL_STATES if (state / name).exists())
    loaded: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return loaded
