"""`python -m benchmarks saves`: how long a rank cannot train while it saves, in two ways in turns.

`waited` writes files in place, syncs and checksums them, and only then trains on. `copied` copies them to host memory,
and another thread writes them meanwhile. On GPUs (`--device cuda`) the state is copied from the device.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.memory_of_ranks.command import make
from benchmarks.memory_of_ranks.rank import step
from rlhf.durable import files_below, synced
from rlhf.models.config import ModelConfig
from rlhf.trainer.config import DeepSpeedConfig, TrainerConfig
from rlhf.trainer.rank import snapshot
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank.process_memory import rank_environment
from rlhf.trainer.settings import LearnerSettings

BOUND = 0.5
"""Largest share of the time of a save that is waited for."""


def main(arguments: Sequence[str]) -> None:
    chosen = parse(arguments)
    os.environ |= rank_environment(chosen.device) | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=chosen.folder) as made:
        make(chosen.layers, Path(made) / "model")
        rank = started(Path(made) / "model", chosen.stage, chosen.dtype, chosen.device)
        figures = measured(rank, Path(made), chosen.rounds)
    for name, value in figures.items():
        print(f"{name:28} {value:8.3f}")
    print("RESULT", json.dumps(figures), flush=True)
    if figures["copied_over_waited"] > BOUND:
        sys.exit(f"missed: copied_over_waited is above {BOUND}")


def started(model: Path, stage: Any, dtype: Any, device: Any) -> Any:
    """Return a rank with moments, as after a step."""
    worker = LearnerWorker(loopback=True)
    settings = LearnerSettings(
        model_path=str(model),
        model=ModelConfig(path=str(model), dtype=dtype),
        trainer=TrainerConfig(deepspeed=DeepSpeedConfig(ranks=1, zero_stage=stage)),
        device=device,
    )
    worker.start(0, 1, worker.group_address(), settings)
    step(worker.policy)
    return worker.policy


def measured(rank: Any, root: Path, rounds: int) -> dict[str, float]:
    """Medians of the rounds, after one that is not counted: seconds, and GB of a checkpoint."""
    seen: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        waited, copied = root / f"waited-{number}", root / f"copied-{number}"
        os.sync()
        found = {"waited": seconds(lambda path=waited: wait_for_save(rank, path))}
        found["gigabytes"] = sum(file.stat().st_size for file in files_below(waited)) / 1e9
        found["pass_alone"] = min(seconds(lambda: forward(rank)) for _ in range(5))
        os.sync()
        found["copied"] = seconds(lambda path=copied: rank.snapshot(path, 0))
        found |= asyncio.run(written_beside(rank))
        for name, value in found.items() if number else ():
            seen.setdefault(name, []).append(value)
    figures = {name: round(median(values), 4) for name, values in seen.items()}
    return figures | {"copied_over_waited": round(figures["copied"] / figures["waited"], 4)}


def wait_for_save(rank: Any, path: Path) -> None:
    free, snapshot.free_memory = snapshot.free_memory, lambda: 0  # all files are written in place
    try:
        rank.snapshot(path, 0)
        synced(path, files_below(path))
    finally:
        snapshot.free_memory = free


async def written_beside(rank: Any) -> dict[str, float]:
    """The seconds until the snapshot is on disk, and of a forward pass meanwhile."""
    began, passes = time.perf_counter(), []
    writing = asyncio.ensure_future(rank.written())
    while not writing.done():
        passes.append(await asyncio.to_thread(seconds, lambda: forward(rank)))
    return {"written_after": time.perf_counter() - began, "pass_while_written": median(passes)}


def forward(rank: Any) -> None:
    import numpy as np

    rank.token_logprobs(np.ones((1, 128), np.int32))


def seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks saves", description=__doc__)
    parser.add_argument("--layers", type=int, default=6, help="layers of 16 M parameters; 6 are 95 M")
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where the model and checkpoints are made and deleted")
    return parser.parse_args(arguments)
