"""One learner rank in a process of its own, which loads, saves and resumes, and says what memory each took."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank.process_memory import freed_at_once
from rlhf.trainer.settings import LearnerSettings
from rlhf.weight_sync.types import GroupAddress

if TYPE_CHECKING:
    from rlhf.trainer.rank.policy_rank import Rank

MASTERS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
"""DeepSpeed's names of what a rank's optimizer steps, at stage 3 and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What a rank does: which model it is warmed up with, which it is measured with, and whether it writes `state`, or
    reads what others wrote."""

    rank: int
    ranks: int
    address: GroupAddress
    warm: LearnerSettings
    measured: LearnerSettings
    state: Path
    saves: bool


def run(plan: RankPlan) -> dict[str, float]:
    """The peak of each phase in bytes, above what the process held when it began."""
    worker = LearnerWorker()

    def start(settings: LearnerSettings) -> Rank:
        worker.start(plan.rank, plan.ranks, plan.address, settings)
        step(worker.policy)
        return worker.policy

    warm = start(plan.warm)  # imports, and the buffers of gloo and of matrix products of these widths
    warm.snapshot(plan.state.with_name("warm"), 0)
    asyncio.run(warm.written())
    warm.load(plan.state.with_name("warm"))
    worker.stop()
    del warm
    if not plan.saves:
        rank = start(plan.measured)
        return {"convert": measured("convert", lambda: rank.load(plan.state))}
    from rlhf.trainer.rank.policy_rank import _load

    peaks: dict[str, float] = {}
    with freed_at_once():
        peaks["load"] = measured("load", lambda: _load(plan.measured, plan.ranks, gradient_checkpointing=0))
    peaks["start"] = measured("start", lambda: start(plan.measured))
    peaks["save"] = measured("save", lambda: worker.model.snapshot(plan.state, 1))
    asyncio.run(worker.model.written())
    peaks["resume"] = measured("resume", lambda: worker.model.load(plan.state))
    return peaks


def step(rank: Rank) -> None:
    """Give the optimizer its moments, as its first step does."""
    import torch

    from rlhf.trainer.rank.state_slices import MOMENTS, adamw

    known = vars(rank.engine.optimizer)
    for flat in next(known[name] for name in MASTERS if name in known):
        made = {part: torch.full_like(flat, 1e-6) for part in MOMENTS}
        adamw(rank.engine).state[flat] = made | {"step": torch.ones(())}


def measured(named: str, act: Callable[[], Any]) -> float:
    """By how much the process's resident memory rose at its highest while it acted; printed by the phase's name."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps of earlier phases would hide what this one takes
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is resident
    before = resident("VmRSS")
    act()
    peak = resident("VmHWM") - before
    print(f"{os.getpid()} {named}: {peak / 2**20:,.0f} MiB", flush=True)
    return peak


def resident(name: str) -> float:
    """A line of this process's status, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return float(found.group(1)) * 1024


def worker(plan: RankPlan, answers: Any, ended: Any) -> None:
    """In a process of its own, which stays until all have ended: its peers may still be in a collective with it."""
    answers.put((plan.rank, run(plan)))
    ended.wait(600)
