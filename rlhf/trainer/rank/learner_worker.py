"""One learner rank as a worker: it joins the others and loads what is trained. Numpy and plain data in and out.

It runs in a Ray worker or in this process. All ranks receive the same calls in the same order; a call that computes is
a collective. torch, transformers and DeepSpeed are imported by `start`, so that constructing a worker is cheap.
"""

from __future__ import annotations

import asyncio
import importlib
import linecache
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from rlhf.cluster.interfaces import LOOPBACK, own_address
from rlhf.trainer.rank.process_memory import freed_at_once
from rlhf.trainer.settings import LearnerSettings, Trained
from rlhf.weight_sync.types import GroupAddress, Manifest, Seconds

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlhf.trainer.rank.pair_ranks import PreferenceRank, RewardRank
    from rlhf.trainer.rank.policy_rank import Rank

FOLDER = f"{Path(__file__).parent}{os.sep}"


def import_ranks() -> None:
    """Import torch, transformers and DeepSpeed: this takes most of a rank's start time."""
    importlib.import_module("rlhf.trainer.rank.policy_rank")


class LearnerWorker:
    """Holds one rank: `policy`, `preferences` and `pairs` are it, for callers who know what it learns. Call `start`
    first; only `group_address` may come before it."""

    def __init__(
        self, name: str = "learner-0", *, loopback: bool = False, bases: dict[str, list[PreTrainedModel]] | None = None
    ) -> None:
        """With `loopback` all peers of this worker are on its machine, and no other machine can connect. Workers of one
        process with the same `bases`, a mapping that begins empty, share the weights of each model."""
        self.name, self._loopback, self._bases = name, loopback, bases
        self._rank: Rank | RewardRank | None = None
        self.policies = SimpleNamespace()

    def divide(self, names: Sequence[str]) -> None:
        """Hold several policies, each in a worker of its own, `policies.NAME`, to be started in turn. Those over one
        model share it."""
        self.stop()
        bases: dict[str, list[PreTrainedModel]] = {}
        workers = {name: LearnerWorker(f"{self.name}/{name}", loopback=self._loopback, bases=bases) for name in names}
        self.policies = SimpleNamespace(**workers)

    def manifest(self) -> Manifest:
        """Return the manifest of `send`: a policy's tensors are called `POLICY/NAME`."""
        return Manifest(
            tensors=tuple(
                replace(tensor, name=f"{policy}/{tensor.name}")
                for policy, part in vars(self.policies).items()
                for tensor in part.policy.manifest().tensors
            )
        )

    def send(self) -> Seconds:
        """Send the adapters of all policies to the engines that the first one has joined, or help to gather them."""
        parts: Mapping[str, LearnerWorker] = vars(self.policies)
        named = ((f"{name}/{tensor}", value) for name in parts for tensor, value in parts[name].policy.published())
        return next(iter(parts.values())).policy.sender.send(named, self.manifest())

    def group_address(self, backend: str = "gloo") -> GroupAddress:
        """Return an address at which other processes can connect to this worker: its host's, and a port that is held
        until the store opens there; with nccl also the unique id by which members find each other."""
        host = LOOPBACK if self._loopback else own_address()
        from rlhf.weight_sync.store import reserve

        address = reserve(host)
        if backend == "nccl":
            from rlhf.weight_sync.nccl import nccl_unique_id

            return replace(address, nccl_id=nccl_unique_id())
        return address

    def start(self, rank: int, world_size: int, address: GroupAddress, settings: LearnerSettings) -> dict[str, Any]:
        """Join the other ranks and load the model. Returns facts: parameters, context length, seconds.

        A worker that has started can be started again, with other settings but the same ranks.
        """
        began = time.monotonic()
        if settings.device == "cpu":  # read when DeepSpeed is imported, which transformers may do too
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        from rlhf.trainer.rank.zero import join

        join(rank, world_size, address, settings.device, settings.trainer.deepspeed.timeout_seconds)
        self._rank = None  # frees a former model before the next one is loaded
        from rlhf.trainer.rank.pair_ranks import PreferenceRank, RewardRank
        from rlhf.trainer.rank.policy_rank import Rank

        kinds: Mapping[Trained, Callable[[int, int, LearnerSettings], Rank | RewardRank]]
        base = None if self._bases is None else self._bases.setdefault(settings.model_path, [])
        kinds = {"policy": partial(Rank, base=base), "preference": PreferenceRank, "reward_model": RewardRank}
        with freed_at_once():
            self._rank = kinds[settings.trains](rank, world_size, settings)
        return self._rank.facts() | {"seconds": round(time.monotonic() - began, 2)}

    async def whereabouts(self) -> str:
        """Say at which line of this folder the rank's thread is. The event loop answers, also while that thread waits
        for other ranks."""
        stacks = [traceback.walk_stack(frame) for frame in sys._current_frames().values()]
        for stack in stacks:
            for frame, line in stack:
                code = frame.f_code
                if code.co_filename.startswith(FOLDER) and code is not LearnerWorker.whereabouts.__code__:
                    text = linecache.getline(code.co_filename, line).strip()
                    return f"is in {code.co_name} at `{text}` ({Path(code.co_filename).name}:{line})"
        return "has nothing to do"

    async def give_up(self, address: GroupAddress) -> None:
        """Have all members leave the transfer group at this address of rank 0, also while its thread waits for them."""
        from rlhf.weight_sync.store import give_up

        await asyncio.to_thread(give_up, address)

    def stop(self) -> None:
        """Release the model and its optimizer. The process group stays until the process ends: DeepSpeed keeps handles
        to it, and a later `start` in this process reuses it."""
        for part in vars(self.policies).values():
            part.stop()
        if self._rank is not None:
            self._rank.stop()
            self._rank = None

    @property
    def model(self) -> Rank | RewardRank:
        """Whatever is trained. Raises `RuntimeError` before `start`."""
        if self._rank is None:
            raise RuntimeError(f"{self.name} was asked to work before start()")
        return self._rank

    @property
    def policy(self) -> Rank:
        return cast("Rank", self.model)

    @property
    def preferences(self) -> PreferenceRank:
        return cast("PreferenceRank", self.model)

    @property
    def pairs(self) -> RewardRank | PreferenceRank:
        return cast("RewardRank | PreferenceRank", self.model)
