"""Engines follow the language part of a model that also sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf.engines.vllm.environment import engine_environment
from rlhf.models.config import LoraConfig
from rlhf.models.lora import lora_for_model
from tests.architectures.families import Family
from tests.architectures.measured import engine_after_update
from tests.integration.torch_learner import ROUNDING
from tests.models.seeing import save_seeing
from tests.warm.calls import WarmCalls

SECONDS = 300


def gap(kind: str, folder: Path, dtype: str, adapter: bool) -> float:
    os.environ.update(engine_environment("cpu"))
    given = LoraConfig.model_validate({"rank": 4, "alpha": 6, "weight_sync": "adapter"}) if adapter else None
    family = Family(name=kind, kind=kind, dtype=dtype)
    return engine_after_update(family, folder, lora_for_model(given, str(folder)))


@pytest.mark.engine
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("kind", "dtype", "adapter"),
    [
        ("qwen3_5", "bfloat16", False),
        pytest.param("gemma3", "float32", True, marks=pytest.mark.slow),
        pytest.param("qwen3_vl", "float32", False, marks=pytest.mark.slow),
        pytest.param("gemma4", "float32", False, marks=pytest.mark.slow),
        pytest.param("mistral3", "float32", False, marks=pytest.mark.slow),
    ],
)
def test_an_engine_without_towers_follows_an_update(kind: str, dtype: str, adapter: bool, tmp_path: Path) -> None:
    folder = save_seeing(kind, tmp_path / kind)
    process = WarmCalls()
    try:
        found = process.submit(gap, kind, folder, dtype, adapter).result(SECONDS)
    finally:
        process.end()
    assert found < ROUNDING[dtype]
