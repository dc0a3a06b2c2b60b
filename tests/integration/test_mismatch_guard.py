"""The guard between a real engine and real ranks: silent while both compute the same, and in the way of the first step
when the learner computes anything else, whatever it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import PolicyMismatch
from rlhf.models import policy as policy_module
from rlhf.models.config import LoraConfig
from rlhf.models.tiny import save_tiny
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.weight_sync.perturbation import add_noise
from tests.integration.learner_ranks import ProcessWorker
from tests.integration.sampled import CONTEXT, SHAPE, Sampled, hot_folder, sharp_folder, started
from tests.integration.test_learner import look, same, whole_weights
from tests.integration.torch_learner import LINEAR, ThreadedEngine

pytestmark = pytest.mark.engine

SIXTEEN = pytest.param("bfloat16", marks=pytest.mark.slow)
ADAPTER, MERGED = LoraConfig(rank=8, target_modules=LINEAR, weight_sync="adapter"), LoraConfig(rank=8)
Planted = Callable[[Rank], None]


def the_mask_of_packed_rows_is_left_out(rank: Rank) -> None:
    """Every token sees all before it in its row."""

    def causal(model: Any, position_ids: torch.Tensor) -> torch.Tensor:
        length = position_ids.shape[1]
        return torch.full((length, length), torch.finfo(model.dtype).min, dtype=model.dtype).triu(1)[None, None]

    rank.policy.rows = Rows(causal)


class Rows(policy_module.WholeRows):
    """Rows with another mask."""

    def __init__(self, mask: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def hidden(self, *arguments: Any) -> tuple[slice, torch.Tensor]:
        right, policy_module.packed_masks = policy_module.packed_masks, self.mask
        try:
            return super().hidden(*arguments)
        finally:
            policy_module.packed_masks = right


def only_the_learner_has_a_window(rank: Rank) -> None:
    for layer in rank.policy.model.base_model.layers:
        layer.self_attn.sliding_window = CONTEXT // 2


def only_the_learner_scales_its_rope(rank: Rank) -> None:
    rank.policy.model.base_model.rotary_emb.inv_freq.mul_(0.5)


def one_layer_s_norm_is_stale(rank: Rank) -> None:
    """As it would be if the engine had kept the start check's."""
    norm = rank.policy.model.base_model.layers[1].input_layernorm.weight
    with torch.no_grad():
        add_noise("model.layers.1.input_layernorm.weight", norm)


FAULTS: list[tuple[Planted, str]] = [
    (the_mask_of_packed_rows_is_left_out, r"rows of several sequences are not computed apart|all of them"),
    (only_the_learner_has_a_window, r"only long ones: the attention window or the rope scaling"),
    (only_the_learner_scales_its_rope, r"all of them"),
    (one_layer_s_norm_is_stale, r"all of them: engine and learner have other weights"),
]


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedEngine]:
    """An engine of the precision that is asked for."""
    os.environ.update(engine_environment("cpu"))
    folder = sharp_folder(tmp_path_factory.mktemp("served"))
    engine = ThreadedEngine(folder, request.param)
    yield engine
    engine.stop()


def folder_of(engine: ThreadedEngine) -> Path:
    return Path(engine.worker.settings.model_path)


def dtype_of(engine: ThreadedEngine) -> str:
    return engine.worker.settings.model.dtype


def begin(engine: ThreadedEngine, workers: list[ProcessWorker], **settings: Any) -> Sampled:
    return asyncio.run(started(engine, workers, folder_of(engine), dtype=dtype_of(engine), **settings))


@pytest.mark.parametrize("served", ["float32", SIXTEEN], indirect=True)
def test_healthy_updates_are_not_disturbed(served: ThreadedEngine, single: list[ProcessWorker]) -> None:
    run = begin(served, single, minibatches=2, proximal_logprobs="recomputed")
    for _ in range(3):
        assert asyncio.run(run.update()).metrics["optimizer/steps"] == 2


@pytest.mark.parametrize("served", ["float32", SIXTEEN], indirect=True)
@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_a_fault_of_the_learner_stops_the_first_update_before_its_first_step(
    served: ThreadedEngine, single: list[ProcessWorker], fault: Planted, told: str
) -> None:
    attention = "eager" if fault is the_mask_of_packed_rows_is_left_out else "sdpa"
    run = begin(served, single, attention=attention)
    look(single, fault)
    before = look(single, whole_weights)
    with pytest.raises(PolicyMismatch, match=rf"version 0 sampled .* at positions \d.*({told})"):
        asyncio.run(run.update())
    assert same(look(single, whole_weights), before)
    assert run.learner.version == 0


@pytest.mark.parametrize("served", ["float32", SIXTEEN], indirect=True)
def test_a_temperature_of_one_side_stops_the_first_update(served: ThreadedEngine, single: list[ProcessWorker]) -> None:
    run = begin(served, single, temperature=0.7)
    with pytest.raises(PolicyMismatch, match=r"all of them: .* another temperature"):
        asyncio.run(run.update())


@pytest.mark.slow
@pytest.mark.parametrize("served", ["float32"], indirect=True)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_stop_together(served: ThreadedEngine, pair: list[ProcessWorker], stage: int) -> None:
    run = begin(served, pair, stage=stage)
    asyncio.run(run.update())
    look(pair, only_the_learner_has_a_window)
    with pytest.raises(PolicyMismatch, match=r"only long ones"):
        asyncio.run(run.update())


@pytest.mark.parametrize("served", ["float32"], indirect=True)
def test_a_recipe_may_go_on_all_the_same(served: ThreadedEngine, single: list[ProcessWorker]) -> None:
    run = begin(served, single, temperature=0.7, mismatch="ignore")
    assert asyncio.run(run.update()).metrics["policy/logprob_difference_max"] > 0.1


def long_runs() -> Iterator[object]:
    for name, dtype, lora in (
        ("whole", "float32", None),
        ("whole", "bfloat16", None),
        ("hot", "bfloat16", None),
        ("merged", "float32", MERGED),
        ("adapter", "float32", ADAPTER),
        ("adapter", "bfloat16", ADAPTER),
    ):
        yield pytest.param(name, dtype, lora, id=f"{name}-{dtype}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "dtype", "lora"), long_runs())
def test_two_hundred_healthy_updates_raise_no_alarm(
    name: str, dtype: str, lora: LoraConfig | None, single: list[ProcessWorker], tmp_path: Path
) -> None:
    os.environ.update(engine_environment("cpu"))
    folder = hot_folder(tmp_path) if name == "hot" else save_tiny(SHAPE, 0, tmp_path)
    adapters = lora if lora and lora.weight_sync == "adapter" else None
    slots = {"lora": adapters}
    engine = ThreadedEngine(folder, dtype, **slots)
    try:
        run = begin(engine, single, lora=lora)
        start = look(single, whole_weights)
        largest = [asyncio.run(run.update()).metrics["policy/logprob_difference"] for _ in range(200)]
        moved = look(single, whole_weights)
        print(name, dtype, "mean differences: first, last, largest", largest[0], largest[-1], max(largest))
        assert run.learner.version == 200
        assert any(not torch.equal(moved[key], start[key]) for key in start)
    finally:
        engine.stop()
