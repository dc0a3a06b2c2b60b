"""Policies with LoRA in a real engine: merged weights or adapters alone, proved like any publish."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rlhf.errors import EngineBroken, WeightSyncError
from rlhf.models.config import LoraConfig, TinyModelConfig
from rlhf.models.lora import add_lora, without_adapter
from rlhf.models.tiny import save_tiny
from rlhf.rollout.vllm.environment import engine_environment
from rlhf.rollout.vllm.settings import GenerateRequest
from rlhf.weight_sync.canary import canary, difference, tolerance_for
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.types import Manifest
from tests.integration.test_publish import spoil
from tests.integration.torch_learner import LINEAR, ROUNDING, ThreadedEngine, TorchLearner, assert_sampled_by

pytestmark = pytest.mark.engine

BUCKET_BYTES = 2**16


@dataclass(frozen=True)
class Case:
    """A model, its precision, and how its adapters are published."""

    architecture: str
    tied: bool
    dtype: str
    lora: LoraConfig

    def __str__(self) -> str:
        return f"{self.architecture}-{'tied' if self.tied else 'untied'}-{self.dtype}-{self.lora.weight_sync}"


ATTENTION_ONLY = LoraConfig(rank=4, alpha=6, target_modules=("q_proj", "v_proj"), weight_sync="adapter")
ADAPTER = Case("qwen2", True, "float32", LoraConfig(rank=8, target_modules=LINEAR, weight_sync="adapter"))
PARTIAL = Case("llama", False, "float32", ATTENTION_ONLY)
CASES = [
    Case(architecture, tied, dtype, LoraConfig(rank=8, target_modules=LINEAR, weight_sync=publish))
    for architecture, tied in (("qwen2", True), ("llama", False), ("qwen3", True), ("qwen3", False))
    for dtype in ("float32", "bfloat16")
    for publish in ("merged", "adapter")
]


class LoraLearner(TorchLearner):
    """A `WeightSource` over a Hugging Face folder with adapters; only these learn."""

    def __init__(self, folder: Path, case: Case) -> None:
        super().__init__(folder, case.dtype)
        add_lora(self.model, case.lora)
        self.form = case.lora.weight_sync


@contextmanager
def started(case: Case, folder: Path) -> Iterator[tuple[LoraLearner, ThreadedEngine]]:
    os.environ.update(engine_environment("cpu"))
    config = TinyModelConfig(architecture=case.architecture, hidden_size=64, heads=2, tie_word_embeddings=case.tied)
    save_tiny(config, 0, folder)
    adapters = case.lora.weight_sync == "adapter"
    engine = ThreadedEngine(
        folder,
        case.dtype,
        lora=case.lora if adapters else None,
    )
    try:
        yield LoraLearner(folder, case), engine
    finally:
        engine.stop()


async def joined(learner: LoraLearner, engine: ThreadedEngine) -> Publisher:
    publisher = Publisher(
        learner, [engine], canary=canary(256, 256, tolerance_for(learner.dtype)), phase_timeout_seconds=60
    )
    await publisher.connect()
    return publisher


async def follows_every_publish(case: Case, folder: Path) -> None:
    tolerance = ROUNDING[case.dtype]
    with started(case, folder) as (learner, engine):
        publisher = await joined(learner, engine)
        await publisher.verify()
        for version in range(1, 4):
            learner.update(3e-2)
            assert await publisher.publish() == version
            assert publisher.logprob_difference <= tolerance
        tokens = np.arange(3, 40, dtype=np.int32)
        served = (await engine.token_logprobs(tokens)).logprobs
        with without_adapter(learner):
            base = await learner.token_logprobs(tokens)
        assert difference([served], [await learner.token_logprobs(tokens)]) <= tolerance
        assert difference([served], [base]) > 2 * tolerance, "the adapter does something"


@pytest.mark.parametrize("case", [PARTIAL, *(pytest.param(case, marks=pytest.mark.slow) for case in CASES)], ids=str)
async def test_after_every_publish_the_engine_computes_what_the_learner_does(case: Case, tmp_path: Path) -> None:
    await follows_every_publish(case, tmp_path)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ThreadedEngine]]:
    """One engine with adapters, which learners join one after another."""
    folder = tmp_path_factory.mktemp("adapted")
    with started(ADAPTER, folder) as (_, engine):
        yield folder, engine


async def test_requests_in_flight_go_on_with_the_new_adapter_and_each_token_says_which(
    adapted: tuple[Path, ThreadedEngine],
) -> None:
    folder, engine = adapted
    learner = LoraLearner(folder, ADAPTER)
    publisher = await joined(learner, engine)
    learner.update(0.05)
    await publisher.publish()
    prompt = np.arange(60, 70, dtype=np.int32)
    engine.worker.submit([GenerateRequest("asked", prompt, temperature=1.0, max_tokens=200, seed=1)])
    await asyncio.sleep(0.1)
    old = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    learner.update(0.05)
    await publisher.publish()
    (reply,) = (await asyncio.to_thread(engine.worker.collect, 60)).values()
    whole = np.concatenate([prompt, reply.token_ids])
    new_scores = (await learner.token_logprobs(whole))[len(prompt) - 1 :]
    learner.model.load_state_dict(old)
    old_scores = (await learner.token_logprobs(whole))[len(prompt) - 1 :]
    assert_sampled_by(reply, {1: old_scores, 2: new_scores})


@pytest.mark.parametrize("frozen", ["lora_A", "lora_B"])
async def test_the_start_check_catches_a_part_of_the_adapters_that_stays_behind(
    adapted: tuple[Path, ThreadedEngine], frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, engine = adapted
    spoil(
        monkeypatch,
        lambda arrived, first: ((name, first[name] if frozen in name else tensor) for name, tensor in arrived),
    )
    publisher = await joined(LoraLearner(folder, ADAPTER), engine)
    await publisher.publish()
    with pytest.raises(WeightSyncError, match="it does not follow perturbed weights"):
        await publisher.verify()


async def test_adapters_that_the_engine_has_no_place_for_are_refused_before_any_byte_moves(
    adapted: tuple[Path, ThreadedEngine],
) -> None:
    """The last one: it breaks the engine."""
    folder, engine = adapted
    manifest = await LoraLearner(folder, ADAPTER).manifest()
    tensors = [spec for spec in manifest.tensors if "layers.0.self_attn.q_proj.lora_A" not in spec.name]
    with pytest.raises(EngineBroken, match=r"would not be sent \['model\.layers\.0\.self_attn\.q_proj\.lora_A"):
        await engine.prepare(Manifest(tensors=tuple(tensors)))
