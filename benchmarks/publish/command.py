"""`python -m benchmarks publish`: a weight sync of Qwen2.5-0.5B's shape, compared with raw gloo and vLLM's own reload
of the same bytes, one after another; every process has one thread for arithmetic. vLLM reloads in a process as it
comes, and in the engine that is published to, which keeps freed memory (`rlhf.models.cpu_memory`)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.publish.baselines import own_reload, raw_gloo
from benchmarks.publish.figures import Measured, Round, missed, result, table
from benchmarks.publish.model import CONTEXT_TOKENS, PARAMETERS, VOCABULARY, save_model
from benchmarks.publish.processes import ProcessWorker
from rlhf.engines.config import RolloutConfig
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.vllm.environment import engine_environment
from rlhf.engines.vllm.settings import EngineSettings
from rlhf.models.config import ModelConfig
from rlhf.models.cpu_memory import CPU_MEMORY
from rlhf.tracing import CURRENT, Clock, CurrentSpan
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.process_memory import rank_environment
from rlhf.trainer.settings import LearnerSettings
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher

SECONDS = 300.0
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan: the learner's precision, ZeRO stage and ranks."""

    dtype: str
    stage: int
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.dtype}, ZeRO {self.stage}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


class CountingLearner(RemoteLearner):
    """A learner whose weights can count as those of its next version: of which sequences the canary asks goes by it."""

    def count_on(self) -> None:
        self._version += 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """Processes that hold the model, joined."""

    engine: ProcessWorker
    workers: Sequence[ProcessWorker]
    learner: CountingLearner
    publisher: Publisher
    clock: Clock


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    measured: list[Measured] = []
    for dtype in options.dtype:
        with tempfile.TemporaryDirectory() as made:
            save_model(Path(made), dtype)
            for case in (Case(dtype=dtype, stage=s, ranks=r) for s in options.zero for r in options.ranks):
                measured.append(asyncio.run(figures(case, Path(made), options.rounds)))
                print(f"{case.name}: {measured[-1].ratio:.2f} times its bound; rounds:", flush=True)
                for one in measured[-1].rounds:
                    reload = f"reload {one.reload:.2f} ({one.kept:.2f} kept)"
                    print(f"  gloo {one.gloo:.2f}  {reload}  publish {one.publish:.2f}", flush=True)
    print(f"\nSeconds, medians of {options.rounds} rounds.\n\n{table(measured)}\n")
    print("RESULT", json.dumps(result(measured)), flush=True)
    if out := missed(measured):
        sys.exit(f"missed: {'; '.join(out)}")


async def figures(case: Case, folder: Path, rounds: int) -> Measured:
    """Start the processes of one plan, and measure."""
    settings = EngineSettings(
        model_path=str(folder),
        model=ModelConfig(path=str(folder), dtype=case.dtype),
        rollout=RolloutConfig(
            max_context_tokens=CONTEXT_TOKENS, kv_cache_megabytes=64, weight_sync_timeout_seconds=SECONDS
        ),
        weight_transfer="gloo",
    )
    plain = {name: value for name, value in engine_environment("cpu").items() if name not in CPU_MEMORY}
    engine_class, rank_class = (
        "rlhf.engines.vllm.engine_worker:EngineWorker",
        "rlhf.trainer.rank.learner_worker:LearnerWorker",
    )
    engine = ProcessWorker("engine-0", engine_class, engine_environment("cpu"), settings=settings)
    reloads = await reloads_as_it_comes(ProcessWorker("vllm", engine_class, plain, settings=settings), folder, rounds)
    workers = [ProcessWorker(f"learner-{n}", rank_class, rank_environment("cpu")) for n in range(case.ranks)]
    try:
        stage = await joined(case, folder, engine, workers)
        return Measured(plan=case.name, rounds=await measured_rounds(case, folder, stage, reloads))
    finally:
        for worker in (engine, *workers):
            worker.end()


async def reloads_as_it_comes(vllm: ProcessWorker, folder: Path, rounds: int) -> list[float]:
    """Seconds of vLLM's own reload in an engine of its own, which is gone before the learner comes: memory for both
    would not be there."""
    try:
        await vllm.call("start", timeout_seconds=SECONDS)
        return [await asyncio.wrap_future(vllm.run(own_reload, folder)) for _ in range(rounds)]
    finally:
        vllm.end()


async def joined(case: Case, folder: Path, engine: ProcessWorker, workers: Sequence[ProcessWorker]) -> Stage:
    """Load the model everywhere, and bring the engine to the learner's weights once. Without the check at the start of
    a run, which holds every weight twice: float32 on two ranks would not fit into 24 GB."""
    config = TrainerConfig.model_validate({"deepspeed": {"ranks": case.ranks, "zero_stage": case.stage}})
    model = ModelConfig.model_validate({"path": str(folder), "dtype": case.dtype})
    learner = CountingLearner(workers, config, publish_timeout_seconds=SECONDS)
    target = RemoteEngine(engine, RolloutConfig(weight_sync_timeout_seconds=SECONDS))
    await asyncio.gather(
        learner.start(LearnerSettings(model_path=str(folder), model=model, trainer=config)), target.start()
    )
    clock = Clock()
    CURRENT.set(CurrentSpan(clock))
    tokens = canary(VOCABULARY, CONTEXT_TOKENS, tolerance_for(case.dtype))
    publisher = Publisher(learner, [target], canary=tokens, phase_timeout_seconds=SECONDS)
    await publisher.connect()
    began = time.perf_counter()
    await publisher.publish()
    spent = "  ".join(f"{span.name.partition('/')[2]} {span.seconds:.2f}" for span in clock.drain())
    print(f"{case.name}: the first takes {time.perf_counter() - began:.2f} s: {spent}", flush=True)
    return Stage(engine=engine, workers=workers, learner=learner, publisher=publisher, clock=clock)


async def measured_rounds(case: Case, folder: Path, stage: Stage, reloads: Sequence[float]) -> list[Round]:
    """As often as there are `reloads`: raw gloo, vLLM's own reload in the engine, and a publish."""
    meeting = await stage.learner.rendezvous(2)
    count = PARAMETERS * ELEMENT_BYTES[case.dtype]
    found = []
    for reload in reloads:
        members = [
            asyncio.wrap_future(worker.run(raw_gloo, rank, meeting, count))
            for rank, worker in enumerate((stage.workers[0], stage.engine))
        ]
        gloo = max(await asyncio.gather(*members))
        kept = await asyncio.wrap_future(stage.engine.run(own_reload, folder))
        stage.learner.count_on()
        began = time.perf_counter()
        await stage.publisher.publish()
        publish = time.perf_counter() - began
        found.append(Round(gloo=gloo, reload=reload, kept=kept, publish=publish, spans=spans_of(stage.clock)))
    return found


def spans_of(clock: Clock) -> dict[str, float]:
    """Seconds of the last publish by span."""
    spent: dict[str, float] = {}
    for span in clock.drain():
        name = span.name.partition("/")[2]
        spent[name] = spent.get(name, 0.0) + span.seconds
    return spent


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks publish", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often every side runs")
    parser.add_argument("--dtype", nargs="+", choices=ELEMENT_BYTES, default=list(ELEMENT_BYTES))
    parser.add_argument("--zero", nargs="+", type=int, choices=(0, 1, 2, 3), default=[0, 3])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    return parser.parse_args(arguments)
