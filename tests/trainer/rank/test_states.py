"""Files of state are data: what they name is not called, whoever reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.errors import CheckpointError
from rlhf.trainer.rank.portable import _model_states, _read
from rlhf.trainer.rank.states import SWITCH, as_data


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.trace}",)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_a_state_of_another_plan_runs_nothing(tmp_path: Path, trace: Path) -> None:
    torch.save({"module": Bomb(trace)}, tmp_path / "mp_rank_00_model_states.pt")
    (tmp_path / "zero" / "w").mkdir(parents=True)
    torch.save(Bomb(trace), tmp_path / "zero" / "w" / "fp32.pt")
    for read in (lambda: _model_states(tmp_path), lambda: _read(tmp_path, "w", "fp32")):
        with pytest.raises(CheckpointError, match="holds more than data"), as_data(tmp_path):
            read()
    assert not trace.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_not_even_a_reader_that_asks_for_it_is_given_more_than_data(tmp_path: Path, trace: Path, zipped: bool) -> None:
    file = tmp_path / "state.pt"
    torch.save({"a": torch.ones(2), "b": Bomb(trace)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError), as_data(tmp_path):
        torch.load(file, weights_only=False)
    assert not trace.exists()
    assert SWITCH not in os.environ


def test_what_deepspeed_keeps_beside_tensors_is_read(tmp_path: Path) -> None:
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    state = {"zero_stage": ZeroStageEnum.weights, "loss_scaler": LossScaler(2.0), "flat": torch.ones(3)}
    torch.save(state, tmp_path / "state.pt")
    with as_data(tmp_path):
        read = torch.load(tmp_path / "state.pt", weights_only=False)
    assert (read["zero_stage"], read["loss_scaler"].cur_scale) == (ZeroStageEnum.weights, 2.0)
