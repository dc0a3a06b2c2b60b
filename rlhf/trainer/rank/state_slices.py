"""The state of a DeepSpeed engine on disk, in pieces: ranges of flattened parameters and of their moments.

Every rank writes its own slices, and reads the ranges that it needs. So any number of ranks at any ZeRO stage can read
a checkpoint, which is never whole in memory.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import CheckpointError
from rlhf.models.deepspeed_internals import elements, fragment, local_part, partitioned
from rlhf.trainer.rank.snapshot import Create, on_disk
from rlhf.trainer.rank.tensor_files import StoredTensor, TensorWriter, stored_tensors
from rlhf.weight_sync.types import TensorSpec

MASTER, MOMENTS, STEP, FROZEN = "master", ("exp_avg", "exp_avg_sq"), "step", "weight"

MASTERS = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition")
"""Names of a rank's master weights in DeepSpeed's optimizers of stages 1 and 2."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateSlice:
    """The elements from `start` on of the flattened `part` of parameter `name`, in the one-dimensional `values`: a view
    of where they live. `own` on the rank that writes them."""

    name: str
    part: str
    start: int
    values: Tensor
    own: bool

    @property
    def key(self) -> str:
        return f"{self.part}:{self.name}"


def write_slices(file: Path, pieces: Iterable[StateSlice], create: Create = on_disk) -> list[Path]:
    """Write this rank's own pieces; returns the file, if there is one."""
    own = [piece for piece in pieces if piece.own and len(piece.values)]
    if not own:
        return []
    specs = [
        TensorSpec(
            name=piece.key, dtype=str(piece.values.dtype).removeprefix("torch."), shape=tuple(piece.values.shape)
        )
        for piece in own
    ]
    writer = TensorWriter(file, specs, {"starts": json.dumps({piece.key: piece.start for piece in own})}, create)
    for piece in own:
        writer.write(piece.values)
    writer.close()
    return [file]


class SliceIndex:
    """The places of all slices in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored: dict[str, list[tuple[int, StoredTensor]]] = defaultdict(list)
        for file in sorted(folder.glob("*.safetensors")):
            tensors, metadata = stored_tensors(file)
            starts = json.loads(metadata.get("starts", "{}"))
            for tensor in tensors:
                self._stored[tensor.name].append((starts.get(tensor.name, 0), tensor))

    def has(self, part: str, name: str) -> bool:
        return f"{part}:{name}" in self._stored

    def fill(self, piece: StateSlice) -> None:
        """Read a piece into its place. Raises `CheckpointError` if elements of it are missing."""
        at, end = piece.start, piece.start + len(piece.values)
        for start, stored in sorted(self._stored[piece.key], key=lambda found: found[0]):
            until = min(end, start + stored.count)
            if start <= at < until:
                stored.read(at - start, piece.values[at - piece.start : until - piece.start])
                at = until
        if at < end:
            raise CheckpointError(
                f"{self._folder} lacks {piece.part} of {piece.name}; the run that wrote it had another model"
            )


def engine_slices(engine: Any, rank: int, *, frozen: bool) -> Iterator[StateSlice]:
    """Iterate over the state of a rank between two updates. A parameter that is trained has its float32 master weights,
    and moments once it has taken a step; its weight in the model's precision follows from the master weights. A
    `frozen` one has its weight, where wanted."""
    for name, weight in engine.module.named_parameters():
        place = optimizer_slice(engine, weight, rank) if weight.requires_grad else None
        if frozen and not weight.requires_grad:
            yield weight_slice(name, weight, FROZEN, local_part(weight), rank)
        elif place is not None:
            yield place.piece(name, MASTER, place.flat)
            state = optimizer_states(engine).get(place.flat, {})
            for part in MOMENTS if state else ():
                yield place.piece(name, part, state[part])
            if state:
                yield StateSlice(name=name, part=STEP, start=0, values=state["step"].view(1), own=place.own)


def weight_slice(name: str, weight: Any, part: str, values: Tensor, rank: int) -> StateSlice:
    """Return this rank's shard of `values`, which are laid out like `weight`, without the last shard's padding; or the
    whole, which rank 0 writes."""
    flat = values.detach().view(-1)
    if not partitioned(weight):
        return StateSlice(name=name, part=part, start=0, values=flat, own=rank == 0)
    start = min(rank * len(flat), elements(weight))
    return StateSlice(name=name, part=part, start=start, values=flat[: elements(weight) - start], own=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptimizerSlice:
    """A rank's slice of a parameter in its optimizer: `count` elements of `flat` from `at` on, which are those of the
    whole parameter from `start` on."""

    flat: Tensor
    at: int
    start: int
    count: int
    own: bool = True

    def piece(self, name: str, part: str, flat: Tensor) -> StateSlice:
        """Return this slice of a tensor with the layout of `flat`."""
        values = flat.detach().view(-1)[self.at : self.at + self.count]
        return StateSlice(name=name, part=part, start=self.start, values=values, own=self.own)


def optimizer_slice(engine: Any, weight: Any, rank: int) -> OptimizerSlice | None:
    """None for a rank that has no part of `weight`."""
    optimizer = engine.optimizer
    if partitioned(weight):
        group, at, count = optimizer.grad_position[optimizer.get_param_id(weight)]
        start = min(rank * count, elements(weight))  # the last shard of ZeRO-3 ends in padding
        return OptimizerSlice(
            flat=optimizer.fp32_partitioned_groups_flat[group],
            at=at,
            start=start,
            count=min(count, elements(weight) - start),
        )
    if not engine.zero_optimization():
        return OptimizerSlice(flat=weight, at=0, start=0, count=weight.numel(), own=rank == 0)
    mapping = fragment(weight)
    if mapping is None:
        return None
    known, own = vars(optimizer), mapping.hp_fragment_address
    flats = next(known[name] for name in MASTERS if name in known)
    flat: Tensor = flats[mapping.param_group_index]
    return OptimizerSlice(flat=flat, at=own.start, start=mapping.lp_fragment_address.start, count=own.numel)


def optimizer_states(engine: Any) -> dict[Tensor, dict[str, Tensor]]:
    """Return the states of the AdamW optimizer inside DeepSpeed's wrappers, by the tensors that it steps."""
    states: dict[Tensor, dict[str, Tensor]] = adamw(engine).state
    return states


def adamw(engine: Any) -> torch.optim.Optimizer:
    """Return the AdamW optimizer inside DeepSpeed's wrappers."""
    inner: torch.optim.Optimizer = engine.optimizer.optimizer if engine.zero_optimization() else engine.optimizer
    return inner


def prepare_states(engine: Any, index: SliceIndex, rank: int) -> None:
    """Make room for the moments that were saved, and none where there were none."""
    states = optimizer_states(engine)
    for name, weight in engine.module.named_parameters():
        place = optimizer_slice(engine, weight, rank) if weight.requires_grad else None
        if place is None:
            continue
        if not index.has(STEP, name):
            states.pop(place.flat, None)
        elif not states.get(place.flat):
            made = {part: torch.zeros_like(place.flat) for part in MOMENTS}
            states[place.flat] = made | {"step": torch.zeros((), device=place.flat.device)}


def scalars(engine: Any) -> Mapping[str, Any]:
    """Return the state that is not in tensors: the position in the schedule and, in float16, the scale of the loss."""
    return {"schedule": {"last_epoch": engine.lr_scheduler.last_epoch}, "loss_scaler": dict(_scaler(engine))}


def put_scalars(engine: Any, saved: Mapping[str, Any]) -> None:
    """Continue from `scalars`."""
    vars(engine.lr_scheduler).update(saved["schedule"])
    if _scaler(engine):
        vars(engine.optimizer.loss_scaler).update(saved["loss_scaler"])


def _scaler(engine: Any) -> Mapping[str, Any]:
    if not engine.fp16_enabled():
        return {}
    return {n: value for n, value in vars(engine.optimizer.loss_scaler).items() if isinstance(value, int | float)}
