"""A weight sync over IPC between four ranks and four engines, each a process, with CUDA's handle calls replaced.

The learner is the real one, with DeepSpeed and without ZeRO, so that each rank has weights of its own: here they
differ, which in a run they never do. The engines are vLLM's; shared CPU memory stands for that of four GPUs.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf.errors import RlhfError
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.rollout.config import RolloutConfig
from rlhf.rollout.engine import RemoteEngine
from rlhf.rollout.vllm.environment import engine_environment
from rlhf.trainer.config import DeepSpeedConfig, TrainerConfig, WeightSyncConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.weight_sync.types import Manifest
from tests.integration.ipc_members import EngineProcess, digest, mark, mark_rank, rank_on_gpu, spoil
from tests.integration.learner_ranks import ProcessWorker, rank_processes
from tests.rollout.vllm.made import made_settings

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
PLACES = ("GPU-c", "GPU-a", "GPU-d", "GPU-b")
"""Those of the engines, which are not those of the ranks with the same numbers."""
TOKENS = np.arange(60, 84, dtype=np.int32)
TOLERANCE = 1e-4


@dataclass
class Sides:
    """Ranks and engines that have met; `models` are what the ranks hold, worked out beside them."""

    learner: RemoteLearner
    ranks: list[ProcessWorker]
    engines: list[RemoteEngine]
    processes: list[EngineProcess]
    models: list[PreTrainedModel]
    manifest: Manifest

    def rank_of(self, engine: int) -> int:
        return GPUS.index(PLACES[engine])

    def mark(self, seed: int) -> None:
        for number, (rank, model) in enumerate(zip(self.ranks, self.models, strict=True)):
            rank.inspect(mark_rank, 10 * seed + number).result(60)
            mark(model, 10 * seed + number)

    def expected(self, engine: int) -> dict[str, str]:
        """Digests of what the engine's own rank holds."""
        return {name: digest(weight) for name, weight in self.models[self.rank_of(engine)].named_parameters()}

    async def publish(self, version: int) -> None:
        await asyncio.gather(*(engine.prepare(self.manifest) for engine in self.engines))
        await asyncio.gather(*(engine.receive(self.manifest) for engine in self.engines), self.learner.send())
        await asyncio.gather(*(engine.commit(version) for engine in self.engines))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    os.environ.update(engine_environment("cpu"))
    config = TinyModelConfig(hidden_size=64, intermediate_size=128, heads=2, kv_heads=1)
    folder = str(save_tiny(config, 0, tmp_path_factory.mktemp("model")))
    trainer = TrainerConfig(
        deepspeed=DeepSpeedConfig(ranks=len(GPUS), zero_stage=0, timeout_seconds=60),
        weight_sync=WeightSyncConfig(bucket_megabytes=0.05),
    )
    engine = made_settings(folder, kv_cache_megabytes=16, weight_transfer="ipc_buckets")
    with rank_processes(len(GPUS)) as ranks, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        processes = [EngineProcess(f"engine-{n}", gpu, Path(memory), engine) for n, gpu in enumerate(PLACES)]
        try:
            yield asyncio.run(met(folder, trainer, ranks, processes, Path(memory)))
        finally:
            for process in processes:
                process.process.end()


async def met(
    folder: str, trainer: TrainerConfig, ranks: list[ProcessWorker], processes: list[EngineProcess], memory: Path
) -> Sides:
    learner = RemoteLearner(ranks, trainer, transfer_backend="ipc")
    engines = [RemoteEngine(process, RolloutConfig()) for process in processes]
    await learner.start(LearnerSettings(model_path=folder, model=ModelConfig(path=folder), trainer=trainer))
    for rank, gpu in zip(ranks, GPUS, strict=True):
        rank.inspect(rank_on_gpu, gpu, memory).result(60)
    for engine in engines:
        await engine.start()
    meeting = await learner.rendezvous(1 + len(engines))
    assert (meeting.backend, meeting.senders) == ("ipc", len(ranks))
    joining = [engine.connect(meeting, place) for place, engine in enumerate(engines, start=1)]
    await asyncio.gather(learner.connect(meeting), *joining)
    models = [AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False) for _ in ranks]
    return Sides(learner, ranks, engines, processes, models, await learner.manifest())


def logprobs(model: PreTrainedModel) -> np.ndarray:
    ids = torch.tensor(TOKENS, dtype=torch.long)
    scores = torch.log_softmax(model(ids[None]).logits[0, :-1], dim=-1)
    return scores.gather(-1, ids[1:, None])[:, 0].numpy()


def test_every_engine_holds_every_tensor_of_the_rank_on_its_own_gpu_after_every_publish(sides: Sides) -> None:
    for version in range(3):
        sides.mark(version)
        asyncio.run(sides.publish(version))
        held = [process.digests(sides.manifest) for process in sides.processes]
        assert held == [sides.expected(engine) for engine in range(len(GPUS))]
        assert len({digest for one in held for digest in one.values()}) == len(GPUS) * len(sides.manifest.tensors)
    for number, engine in enumerate(sides.engines):
        answer = asyncio.run(engine.token_logprobs(TOKENS)).logprobs
        apart = [float(np.abs(answer - logprobs(model)).max()) for model in sides.models]
        own = apart.pop(sides.rank_of(number))
        assert own < TOLERANCE < 100 * TOLERANCE < min(apart)


def test_ranks_that_gather_something_else_fail_with_their_engines_and_with_no_other(sides: Sides) -> None:
    name, rows, never = "model.layers.1.mlp.up_proj.weight", 0, 1
    sides.mark(3)
    for engine, shortened in ((rows, True), (never, False)):
        sides.ranks[sides.rank_of(engine)].inspect(spoil, name, shortened).result(60)

    async def sync() -> list[object]:
        await asyncio.gather(*(engine.prepare(sides.manifest) for engine in sides.engines))
        sending = [sides.ranks[sides.rank_of(n)].call("policy.send", timeout_seconds=60) for n in range(len(GPUS))]
        receiving = [engine.receive(sides.manifest) for engine in sides.engines]
        return await asyncio.gather(*sending, *receiving, return_exceptions=True)

    ended = asyncio.run(sync())
    sent, received = ended[: len(GPUS)], ended[len(GPUS) :]
    assert f"the next tensor is {name} float32 [127, 64]" in str(sent[rows])
    assert "the next tensor is model.layers.1.mlp.down_proj.weight" in str(sent[never])
    for engine in (rows, never):
        assert "the other end of the weight sync failed" in str(received[engine])
        with pytest.raises(RlhfError, match="the other end of the weight sync failed"):
            asyncio.run(sides.engines[engine].token_logprobs(TOKENS))
    for engine in {*range(len(GPUS))} - {rows, never}:
        assert sides.processes[engine].digests(sides.manifest) == sides.expected(engine)
