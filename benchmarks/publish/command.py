"""`python -m benchmarks publish`: a weight sync of Qwen2.5-0.5B's shape beside raw gloo and vLLM's own reload."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.publish.baselines import own_reload, raw_gloo
from benchmarks.publish.model import CONTEXT_TOKENS, PARAMETERS, save_model
from benchmarks.publish.processes import ProcessWorker
from rlhf.models.config import ModelConfig
from rlhf.rollout.engine import RemoteEngine
from rlhf.rollout.vllm.environment import engine_environment
from rlhf.runs.tracing import Clock
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.process_variables import rank_environment
from rlhf.trainer.settings import LearnerSettings
from rlhf.trainer.weight_sync.canary import canary, tolerance_for
from rlhf.trainer.weight_sync.publish import Publisher

SECONDS = 300.0
BYTES = {"float32": 4, "bfloat16": 2}


async def measured(folder: Path, dtype: str, stage: int, ranks: int, rounds: int) -> list[dict[str, float]]:
    """One plan: `rounds` times raw gloo, vLLM's own reload and a publish, in turns."""
    engine = ProcessWorker(
        "engine-0",
        "rlhf.rollout.vllm.engine_worker:EngineWorker",
        engine_environment("cpu"),
        settings={
            "model": str(folder),
            "dtype": dtype,
            "max_context_tokens": CONTEXT_TOKENS,
            "kv_cache_megabytes": 64,
            "weight_transfer": "gloo",
            "command_timeout_seconds": SECONDS,
        },
    )
    workers = [
        ProcessWorker(f"learner-{n}", "rlhf.trainer.rank.learner_worker:LearnerWorker", rank_environment("cpu"))
        for n in range(ranks)
    ]
    try:
        return await _rounds(folder, dtype, stage, engine, workers, rounds)
    finally:
        for worker in (engine, *workers):
            worker.end()


async def _rounds(
    folder: Path, dtype: str, stage: int, engine: ProcessWorker, workers: Sequence[ProcessWorker], rounds: int
) -> list[dict[str, float]]:
    config = TrainerConfig.model_validate({"deepspeed": {"ranks": len(workers), "zero_stage": stage}})
    learner = RemoteLearner(workers, config, publish_timeout_seconds=SECONDS)
    target = RemoteEngine(engine, publish_timeout_seconds=SECONDS)
    await asyncio.gather(
        learner.start(
            LearnerSettings(
                model_path=str(folder), model=ModelConfig.model_validate({"path": str(folder), "dtype": dtype}),
                trainer=config,
            )
        ),
        target.start(),
    )  # fmt: skip
    clock = Clock()
    sequences = canary(151_936, CONTEXT_TOKENS, tolerance_for(dtype))
    publisher = Publisher(learner, [target], canary=sequences, phase_timeout_seconds=SECONDS, clock=clock)
    await publisher.connect()
    drill = time.perf_counter()
    await publisher.verify()
    print(f"  verify at start {time.perf_counter() - drill:.2f} s", flush=True)
    meeting = await learner.rendezvous(2)
    found = []
    for _ in range(rounds):
        count = PARAMETERS * BYTES[dtype]
        sending, receiving = (w.run(raw_gloo, r, meeting, count) for r, w in enumerate((workers[0], engine)))
        gloo = max(await asyncio.wrap_future(sending), await asyncio.wrap_future(receiving))
        reload = await asyncio.wrap_future(engine.run(own_reload, folder))
        clock.drain()
        began = time.perf_counter()
        await publisher.publish()
        publish = time.perf_counter() - began
        phases: dict[str, float] = {}
        for span in clock.drain():
            phases[span.name] = phases.get(span.name, 0) + span.seconds
        found.append({"publish": publish, "gloo": gloo, "reload": reload, **phases})
        print("  " + "  ".join(f"{name} {seconds:.2f}" for name, seconds in found[-1].items()), flush=True)
    return found


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    missed, result = [], {}
    for dtype in options.dtype:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            save_model(folder, dtype)
            for stage in options.zero:
                for ranks in options.ranks:
                    plan = f"{dtype} zero {stage} ranks {ranks}"
                    print(plan, flush=True)
                    found = asyncio.run(measured(folder, dtype, stage, ranks, options.rounds))
                    publish, bound = (
                        statistics.median(one["publish"] for one in found),
                        statistics.median(max(one["gloo"], one["reload"]) for one in found),
                    )
                    result[plan] = {
                        "publish": round(publish, 2),
                        "bound": round(bound, 2),
                        "ratio": round(publish / bound, 2),
                    }
                    print(" ", result[plan], flush=True)
                    if publish > 2 * bound:
                        missed.append(plan)
    print("RESULT", json.dumps(result), flush=True)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks publish", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often every side runs")
    parser.add_argument("--dtype", nargs="+", choices=BYTES, default=list(BYTES))
    parser.add_argument("--zero", nargs="+", type=int, choices=(0, 1, 2, 3), default=[0, 3])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    return parser.parse_args(arguments)
