"""Load state files as pure data: a checkpoint written or changed by someone else cannot run code here.

DeepSpeed, like its converter, reads its files with `weights_only=False`, which unpickles any class that they name.
torch has a switch that overrides its callers, and a list of the classes that a file may name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from rlhf.errors import CheckpointError
from rlhf.trainer.rank.accelerator import deepspeed_module

SWITCH = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@contextmanager
def as_data(folder: Path) -> Iterator[None]:
    """Inside, `torch.load` returns only tensors, plain values and the classes of `deepspeed_classes`, for every caller
    in this process.

    Raises `CheckpointError` for a file of `folder` that names anything else.
    """
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        with torch.serialization.safe_globals(deepspeed_classes()):
            yield
    except UnpicklingError as error:
        named = next((line for line in str(error).splitlines() if "GLOBAL" in line), str(error).splitlines()[0])
        raise CheckpointError(
            f"{folder}: a file of state holds more than data, which is not read ({named.strip()[:300]}); "
            "use a checkpoint that this project wrote"
        ) from None
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def deepspeed_classes() -> list[Any]:
    """The classes that DeepSpeed's files name: they hold numbers, and run no code when constructed."""
    scaler, stages, fragments = map(
        deepspeed_module, ("runtime.fp16.loss_scaler", "runtime.zero.config", "utils.tensor_fragment")
    )
    return [scaler.DynamicLossScaler, scaler.LossScaler, stages.ZeroStageEnum, fragments.fragment_address]
