"""Emptied storages take no memory, and come back bit for bit under every tensor that is on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rlhf.models import offload
from rlhf.models.offload import HostCopy, InHostMemory, OffloadedStorages, copied


def in_host_memory(storages: Mapping[int, torch.UntypedStorage]) -> dict[int, HostCopy]:
    """Copies as those of a GPU's memory are."""
    return {key: InHostMemory(storage) for key, storage in storages.items()}


@pytest.mark.parametrize("copies", [copied, in_host_memory])
def test_views_of_an_offloaded_storage_have_their_bytes_again(monkeypatch: pytest.MonkeyPatch, copies: Any) -> None:
    monkeypatch.setattr(offload, "copied", copies)
    monkeypatch.setattr(offload, "CHUNK_BYTES", 1000)
    flat = torch.randn(3000)
    weight, expected = flat[100:2100].view(20, 100), flat.clone()
    storages = OffloadedStorages()
    assert storages.offload([weight, flat, torch.zeros(3)]) == 12_000
    assert flat.untyped_storage().nbytes() == 0
    assert weight.shape == (20, 100)
    assert storages.offload([weight]) == 0, "it is empty already"
    storages.restore()
    assert torch.equal(flat, expected)
    assert torch.equal(weight, expected[100:2100].view(20, 100))


def test_kept_and_restored_tensors_are_chosen_by_their_storage() -> None:
    weights, moments = torch.ones(5000), torch.full((5000,), 2.0)
    view = weights[7:]
    storages = OffloadedStorages()
    assert storages.offload([weights, moments], keep=[weights[:10]]) == 20_000
    assert float(weights.sum()) == 5000
    assert moments.untyped_storage().nbytes() == 0
    storages.offload([weights])
    storages.restore([view])
    assert float(weights.sum()) == 5000
    assert moments.untyped_storage().nbytes() == 0
    storages.restore()
    assert float(moments.sum()) == 10_000


def test_dropped_bytes_leave_the_shape_and_are_zero() -> None:
    cache = torch.ones(5000)
    storages = OffloadedStorages()
    storages.offload([cache], contents=False)
    storages.restore()
    assert cache.shape == (5000,)
    assert cache.untyped_storage().nbytes() == 20_000
    assert float(cache.abs().sum()) == 0


def test_weights_of_a_file_get_a_storage_that_can_be_emptied_and_shared_ones_stay() -> None:
    array, shared = np.ones(5000, dtype=np.float32), torch.from_numpy(np.ones(5000, dtype=np.float32))
    weight, view = torch.nn.Parameter(torch.from_numpy(array)), shared[:10]
    storages = OffloadedStorages()
    assert storages.offload([weight, shared, view]) == 20_000
    assert weight.untyped_storage().nbytes() == 0
    storages.restore()
    assert float(weight.detach().sum()) == float(shared.sum()) == 5000


def test_a_small_weight_does_not_keep_the_mapping_of_the_file_that_all_were_loaded_from(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"norm": torch.ones(16), "weight": torch.ones(5000)}, file)
    with safe_open(file, "pt") as opened:
        weights = {name: torch.nn.Parameter(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
    assert str(file) in Path("/proc/self/maps").read_text()
    OffloadedStorages().offload(weights.values())
    assert str(file) not in Path("/proc/self/maps").read_text()
    assert float(weights["norm"].detach().sum()) == 16


def test_many_storages_are_in_one_file() -> None:
    tensors = [torch.full((1200 + n,), float(n)) for n in range(50)]
    opened, storages = len(os.listdir("/proc/self/fd")), OffloadedStorages()
    storages.offload(tensors)
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    storages.restore(tensors[7:9])
    assert [float(tensors[n].mean()) for n in (7, 8)] == [7.0, 8.0]
    storages.restore()
    assert len(os.listdir("/proc/self/fd")) == opened
    assert all(torch.equal(tensor, torch.full((1200 + n,), float(n))) for n, tensor in enumerate(tensors))
