"""Gathers weights that ZeRO-3 holds in shards. Collective: all ranks gather the same ones, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from torch import Tensor

from rlhf.models.sharded_loading import partitioned


def gathered(weights: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """Inside, `weights` are whole on every rank; changes are lost where they are shards."""
    if not any(partitioned(weight) for weight in weights):
        return nullcontext()
    gather: AbstractContextManager[Any] = import_module("deepspeed").zero.GatheredParameters(list(weights))
    return gather
