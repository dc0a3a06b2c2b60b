"""A rank's part of a model that is loaded in shards."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from rlhf.trainer.rank.sharding import ZeroSharding


def untouched() -> ZeroSharding:
    """A sharding whose DeepSpeed leaves every parameter as it is."""
    sharding = object.__new__(ZeroSharding)
    sharding._init = SimpleNamespace(_convert_to_zero_parameters=lambda parameters: None)
    return sharding


def test_taking_one_part_of_a_tensor_leaves_the_others_their_memory() -> None:
    """transformers cuts some checkpoints' tensors into several weights (HRM: q, k, v, gate), which share memory."""
    whole = torch.arange(8.0)
    first, second = whole.chunk(2)
    untouched().take(nn.Parameter(first))
    bytes_left = whole.untyped_storage().nbytes()
    assert bytes_left == 32
    assert second.tolist() == [4, 5, 6, 7]


def test_taking_a_whole_tensor_frees_its_memory_whoever_holds_on_to_it() -> None:
    whole = torch.arange(8.0)
    untouched().take(nn.Parameter(whole))
    assert whole.untyped_storage().nbytes() == 0
