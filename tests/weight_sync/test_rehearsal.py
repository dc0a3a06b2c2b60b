"""What a rehearsal and a reload ask of vLLM's loaders."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.engine


def load(parameter: nn.Parameter, loaded: Tensor) -> None:
    parameter.data.copy_(loaded)


def test_a_reload_takes_loaders_that_have_no_name() -> None:
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from rlhf.weight_sync.rehearsal import start_reload

    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight.weight_loader = partial(load)
    record_metadata_for_reloading(model)  # type: ignore[no-untyped-call]
    start_reload(model)
    assert model[0].weight.is_meta
    model[0].weight.weight_loader(model[0].weight, torch.ones(2, 2))
