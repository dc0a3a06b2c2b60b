"""What vLLM on this machine says of the experts that it chose."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.rollout.vllm.environment import engine_environment
from rlhf.rollout.vllm.vllm_engine import engine_args
from tests.rollout.vllm.made import made_settings

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("runner", "why"), [("0", "requires Model Runner V2"), ("1", "Model Runner V2 requires Triton")]
)
def test_vllm_on_a_cpu_refuses_to_say_its_routing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str, why: str
) -> None:
    """The day this fails there is something to replay."""
    for name, value in {**engine_environment("cpu"), "VLLM_USE_V2_MODEL_RUNNER": runner}.items():
        monkeypatch.setitem(os.environ, name, value)
    tiny = TinyModelConfig(architecture="qwen3_moe", hidden_size=64, intermediate_size=96)
    arguments = engine_args(made_settings(save_tiny(tiny, 0, tmp_path)))
    with pytest.raises(ValueError, match=why):
        replace(arguments, enable_return_routed_experts=True).create_engine_config()
