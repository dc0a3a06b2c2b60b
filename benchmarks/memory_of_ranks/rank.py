"""One learner rank in a process of its own, which loads, saves and resumes, and says what memory each took."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf.trainer.rank.accelerator import choose_accelerator
from rlhf.trainer.settings import LearnerSettings
from rlhf.transfer.types import Meeting

if TYPE_CHECKING:
    from rlhf.trainer.rank.policy_rank import Rank

T = TypeVar("T")
MASTERS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
"""DeepSpeed's names of what a rank's optimizer steps, at stage 3 and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What a rank does: which model it is warmed up with, which it is measured with, and whether it writes `state`, or
    reads what others wrote."""

    rank: int
    ranks: int
    meeting: Meeting
    warm: LearnerSettings
    measured: LearnerSettings
    state: Path
    saves: bool


def run(plan: RankPlan) -> dict[str, float]:
    """The peak of each phase in bytes, above what the process held when it began."""
    choose_accelerator("cpu")
    from rlhf.trainer.rank.policy_rank import Rank, _load
    from rlhf.trainer.rank.zero import join

    join(plan.rank, plan.ranks, plan.meeting, "cpu", 600)
    warm = Rank(plan.rank, plan.ranks, plan.warm)  # imports, buffers of gloo and of the allocator
    step(warm)
    warm.save(plan.state.with_name("warm"), 0)
    warm.load(plan.state.with_name("warm"))
    del warm
    peaks: dict[str, float] = {}
    if plan.saves:
        loaded, peaks["load"] = measured(lambda: _load(plan.measured, plan.ranks, gradient_checkpointing=0))
        del loaded
        rank, peaks["start"] = measured(lambda: Rank(plan.rank, plan.ranks, plan.measured))
        step(rank)
        _, peaks["save"] = measured(lambda: rank.save(plan.state, 1))
        _, peaks["resume"] = measured(lambda: rank.load(plan.state))
    else:
        rank = Rank(plan.rank, plan.ranks, plan.measured)
        step(rank)
        _, peaks["convert"] = measured(lambda: rank.load(plan.state))
    return peaks


def step(rank: Rank) -> None:
    """Give the optimizer its moments, as its first step does."""
    import torch

    from rlhf.trainer.rank.pieces import MOMENTS, adamw

    known = vars(rank.engine.optimizer)
    for flat in next(known[name] for name in MASTERS if name in known):
        made = {part: torch.full_like(flat, 1e-6) for part in MOMENTS}
        adamw(rank.engine).state[flat] = made | {"step": torch.ones(())}


def measured(act: Callable[[], T]) -> tuple[T, float]:
    """What `act` returns, and by how much the process's resident memory rose at its highest."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is resident
    before = resident("VmRSS")
    done = act()
    return done, resident("VmHWM") - before


def resident(name: str) -> float:
    """A line of this process's status, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return float(found.group(1)) * 1024


def worker(plan: RankPlan, answers: Any) -> None:
    answers.put((plan.rank, run(plan)))
