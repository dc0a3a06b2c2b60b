"""What a deep sleep of vLLM would lose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlhf.engines.vllm.sleeping import Sleeper
from rlhf.models import offload

pytestmark = pytest.mark.engine


class Layer(nn.Module):
    """Holds tensors in every way that vLLM's layers do."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.e_score_correction_bias = nn.Parameter(torch.arange(3.0))
        self.register_buffer("scale", torch.ones(3))
        with torch.inference_mode():
            self.plain = torch.arange(3.0)
        self.masks = {"causal": [torch.arange(4)]}
        self.view = self.weight.detach()[1:]
        self.kv_cache = torch.ones(3)

    def tensors(self) -> dict[str, Tensor]:
        own = {"plain": self.plain, "mask": self.masks["causal"][0], "kv_cache": self.kv_cache}
        own["bias"] = self.e_score_correction_bias
        return own | {"weight": self.weight, "scale": self.scale, "view": self.view}


class Engine:
    """vLLM's, which is its only worker too: at level 2 its sleep loses everything that is on the device."""

    def __init__(self) -> None:
        self.layer = Layer()
        self.model_runner = SimpleNamespace(kv_caches=[])

    def get_model(self) -> nn.Module:
        return nn.Sequential(self.layer)

    def collective_rpc(self, call: Any) -> None:
        call(self)

    def sleep(self, level: int, mode: str) -> None:
        with torch.inference_mode():
            for tensor in self.layer.tensors().values():
                tensor.fill_(-level)

    def wake_up(self, tags: list[str]) -> None: ...


@pytest.mark.parametrize("on_cpu", [False, True])
def test_tensors_that_no_weight_sync_brings_outlast_a_deep_sleep(monkeypatch: pytest.MonkeyPatch, on_cpu: bool) -> None:
    monkeypatch.setattr(offload, "SMALLEST_BYTES", 0)
    engine = Engine()
    sleeper = Sleeper(engine, keeps_base=False, on_cpu=on_cpu)  # type: ignore[arg-type]
    sleeper.sleep()
    assert engine.layer.plain.tolist() == [-2, -2, -2]
    sleeper.wake("weights")
    found = {name: tensor.tolist() for name, tensor in engine.layer.tensors().items()}
    assert found["plain"] == found["bias"] == [0, 1, 2]
    assert found["mask"] == [0, 1, 2, 3]
    assert all(found[name][0] != 1 for name in ("weight", "scale", "view", "kv_cache"))
