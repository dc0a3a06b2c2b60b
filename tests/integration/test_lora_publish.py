"""Adapters in a real engine: the start check sees a part that stays behind, and what has no place is refused.

`test_lora_plans` has what an engine computes with them after every publish.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import EngineBroken, ModelError, WeightSyncError
from rlhf.models.config import LoraConfig, TinyModelConfig
from rlhf.models.lora import add_lora
from rlhf.models.tiny import save_tiny
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.types import Manifest
from tests.integration.test_publish import spoil
from tests.integration.torch_learner import LINEAR, ThreadedEngine, TorchLearner

pytestmark = pytest.mark.engine

LORA = LoraConfig(rank=8, target_modules=LINEAR, weight_sync="adapter")


class LoraLearner(TorchLearner):
    """A `WeightSource` over a Hugging Face folder with adapters; only these learn."""

    form = "adapter"

    def __init__(self, folder: Path, rank: int = LORA.rank) -> None:
        super().__init__(folder, "float32")
        add_lora(self.model, LORA.model_copy(update={"rank": rank}))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ThreadedEngine]]:
    """One engine with adapters, which learners join one after another."""
    os.environ.update(engine_environment("cpu"))
    folder = save_tiny(TinyModelConfig(hidden_size=64, heads=2), 0, tmp_path_factory.mktemp("adapted"))
    engine = ThreadedEngine(folder, "float32", lora=LORA)
    yield folder, engine
    engine.stop()


@pytest.mark.parametrize("frozen", ["lora_A", "lora_B"])
async def test_the_start_check_catches_a_part_of_the_adapters_that_stays_behind(
    adapted: tuple[Path, ThreadedEngine], frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, engine = adapted
    spoil(
        monkeypatch,
        lambda arrived, first: ((name, first[name] if frozen in name else tensor) for name, tensor in arrived),
    )
    publisher = Publisher(
        LoraLearner(folder), [engine], canary=canary(256, 256, tolerance_for("float32")), phase_timeout_seconds=60
    )
    await publisher.connect()
    await publisher.publish()
    with pytest.raises(WeightSyncError, match="it does not follow perturbed weights"):
        await publisher.verify()


async def test_adapters_that_the_engine_has_no_place_for_are_refused_before_any_byte_moves(
    adapted: tuple[Path, ThreadedEngine],
) -> None:
    """The last one: it breaks the engine."""
    folder, engine = adapted
    manifest = await LoraLearner(folder).manifest()
    tensors = [spec for spec in manifest.tensors if "layers.0.self_attn.q_proj.lora_A" not in spec.name]
    refused = (ModelError, EngineBroken)  # the first if no test before has let it sample
    with pytest.raises(refused, match=r"no tensor fills \['model\.layers\.0\.self_attn\.q_proj\.lora_A"):
        await engine.prepare(Manifest(tensors=tuple(tensors)))
