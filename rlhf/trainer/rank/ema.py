"""The exponential moving average of the policy's weights: a smoother policy, for evaluation and export.

After every update `average = decay * average + (1 - decay) * weight`, in float32, on what each rank holds: its shards
under ZeRO-3, else the whole. With LoRA the adapters are averaged; the base is frozen, so its average is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from rlhf.errors import CheckpointError
from rlhf.models.deepspeed_internals import local_part, release
from rlhf.models.lora import HasModel
from rlhf.trainer.rank.snapshot import Create, on_disk
from rlhf.trainer.rank.state_slices import SliceIndex, StateSlice, weight_slice, write_slices
from rlhf.weight_sync.weights import held_weights


class Average:
    """Starts at the policy's weights, after DeepSpeed has taken them over."""

    def __init__(self, policy: HasModel, decay: float, rank: int) -> None:
        self._decay = decay
        self._weights = {name: weight for name, weight in held_weights(policy) if weight.requires_grad}
        self._rank = rank
        self._averages = {name: local_part(weight).detach().float().clone() for name, weight in self._weights.items()}

    def update(self) -> None:
        """Update every average with its current weight."""
        for name, weight in self._weights.items():
            self._averages[name].lerp_(local_part(weight).detach().float(), 1 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the policy's weights are replaced by the averages; afterwards they are restored, bit for bit."""
        learnt = {name: local_part(weight).detach().clone() for name, weight in self._weights.items()}
        _set(self._weights, self._averages)
        try:
            yield
        finally:
            _set(self._weights, learnt)

    def save(self, folder: Path, create: Create = on_disk) -> list[Path]:
        """Write this rank's part: its shards, or on rank 0 the whole. Returns the file, if there is one."""
        return write_slices(folder / f"rank-{self._rank:05d}.safetensors", self._slices(), create)

    def load(self, folder: Path) -> None:
        """Continue exactly from `save`, also with another number of ranks. Raises `CheckpointError` for a checkpoint
        without these averages."""
        if not any(folder.glob("*.safetensors")):
            raise CheckpointError(
                f"{folder} is missing: that run kept no average of its weights; set trainer.ema_decay=null"
            )
        index = SliceIndex(folder)
        for part in self._slices():
            index.fill(part)

    def _slices(self) -> Iterator[StateSlice]:
        for name, weight in self._weights.items():
            yield weight_slice(name, weight, "average", self._averages[name], self._rank)


def _set(weights: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    release(weights.values())
    with torch.no_grad():
        for name, weight in weights.items():
            local_part(weight).copy_(values[name])
