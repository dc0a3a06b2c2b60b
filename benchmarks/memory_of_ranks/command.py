"""`python -m benchmarks memory_of_ranks`: peak memory of two ranks under ZeRO-3 that load, save, resume and convert.

A rank may hold its shard, one layer (or one embedding, where that is larger) and a tenth more. `shard` is what it keeps
of the model: weights, and during training masters, moments and gradients. Figures are peaks of the resident memory
above what the process held when the phase began, the larger of the two ranks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.memory_of_ranks.rank import RankPlan, worker
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.trainer.config import DeepSpeedConfig, TrainerConfig, WeightSyncConfig
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank.process_memory import rank_environment
from rlhf.trainer.settings import LearnerSettings

RANKS, MARGIN, MEBI = 2, 1.1, 2**20


def main(arguments: Sequence[str]) -> None:
    chosen = parse(arguments)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as made:
        folder = Path(made)
        for name, layers in (("small", 1), ("large", chosen.layers)):
            alone(make, layers, folder / name)
        elements, largest_layer = sizes(folder / "large")
        peaks = ranks(folder, stage=3, saves=True) | ranks(folder, stage=1, saves=False)
    weights = 4 * elements / RANKS
    trained = 5 * weights  # weights, masters, two moments, gradients
    added = {"load": weights, "start": trained + weights, "save": 0.0, "resume": 0.0, "convert": 0.0}
    print(
        f"{elements / 1e6:.0f} M parameters in float32, {RANKS} ranks; MiB: shard of the weights {weights / MEBI:,.0f}"
    )
    missed = []
    for phase, peak in peaks.items():
        bound = MARGIN * added[phase] + 4 * largest_layer + (0 if added[phase] else (MARGIN - 1) * trained)
        print(f"{phase:8}  keeps {added[phase] / MEBI:6,.0f}  peak {peak / MEBI:6,.0f}  bound {bound / MEBI:6,.0f}")
        missed += [phase] if peak > bound else []
    print("RESULT", json.dumps({phase: round(peak / MEBI) for phase, peak in peaks.items()}), flush=True)
    if missed:
        sys.exit(f"missed: {', '.join(missed)} took more than a shard, a layer and a tenth")


def ranks(folder: Path, *, stage: int, saves: bool) -> dict[str, float]:
    """The peaks of every phase, the larger of the ranks, each a process of its own."""
    address = LearnerWorker(loopback=True).group_address()
    context = multiprocessing.get_context("spawn")
    answers, ended = context.Queue(), context.Barrier(RANKS)
    os.environ |= rank_environment("cpu") | {"OMP_NUM_THREADS": "1"}
    plans = [
        RankPlan(
            rank=rank,
            ranks=RANKS,
            address=address,
            warm=settings(folder / "small", stage),
            measured=settings(folder / "large", stage),
            state=folder / "state",
            saves=saves,
        )
        for rank in range(RANKS)
    ]
    processes = [context.Process(target=worker, args=(plan, answers, ended)) for plan in plans]
    for process in processes:
        process.start()
    found = [answers.get(timeout=900)[1] for _ in processes]
    for process in processes:
        process.join(60)
    return {phase: max(one[phase] for one in found) for phase in found[0]}


def settings(model: Path, stage: int) -> LearnerSettings:
    """A policy and, while it starts, a reference of the same size."""
    trainer = TrainerConfig(
        hold_reference=stage == 3,
        deepspeed=DeepSpeedConfig(ranks=RANKS, zero_stage=stage),  # type: ignore[arg-type]
        weight_sync=WeightSyncConfig(),
    )
    return LearnerSettings(model_path=str(model), model=ModelConfig(path=str(model)), trainer=trainer)


def make(layers: int, folder: Path) -> None:
    from rlhf.models.tiny import save_tiny

    shape = TinyModelConfig(hidden_size=1024, intermediate_size=4096, layers=layers, heads=16, kv_heads=8)
    save_tiny(shape, 0, folder)


def sizes(folder: Path) -> tuple[int, int]:
    """Elements of a model, and of its largest layer."""
    from math import prod

    from rlhf.models.model_files import tensor_shapes

    shapes = tensor_shapes(folder) or {}
    layers: dict[str, int] = {}
    for name, shape in shapes.items():
        layer = ".".join(name.split(".")[:3])
        layers[layer] = layers.get(layer, 0) + prod(shape)
    return sum(layers.values()), max(layers.values())


def alone(act: object, *arguments: object) -> None:
    """Run in a process of its own, whose memory is nobody else's."""
    process = multiprocessing.get_context("spawn").Process(target=act, args=arguments)  # type: ignore[arg-type]
    process.start()
    process.join()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory_of_ranks", description=__doc__)
    parser.add_argument("--layers", type=int, default=19, help="layers of 16 M parameters; 19 are 300 M")
    parser.add_argument("--folder", default=None, help="where models and checkpoints are made and deleted")
    return parser.parse_args(arguments)
