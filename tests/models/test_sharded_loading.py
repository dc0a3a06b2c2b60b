"""A model loaded in shards is the model, and no more than one of its tensors is whole at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rlhf.errors import ModelError
from rlhf.models import sharded_loading
from rlhf.models.loading import load_policy
from rlhf.models.scalar import load_scalar
from tests.architectures.families import FAMILIES, save

BY_NAME = {family.name: family for family in FAMILIES}


class Shards:
    """One rank of two, which reads: it keeps half of every parameter, and what the whole was for the test."""

    reads = True

    def __init__(self) -> None:
        self.wholes: dict[int, Tensor] = {}
        self.events: list[str] = []

    def broadcast_text(self, message: str) -> str:
        return message

    def take(self, parameter: nn.Parameter) -> None:
        if id(parameter) in self.wholes:
            return
        self.wholes[id(parameter)] = parameter.data.clone()
        parameter.ds_tensor = parameter.data.flatten()[: -(-parameter.numel() // 2)].clone()  # type: ignore[attr-defined]
        parameter.data = torch.empty(0, dtype=parameter.dtype)
        self.events.append("take")

    def broadcast_buffer(self, buffer: Tensor) -> None:
        pass


class Recorded:
    """A tensor of a file that tells when it is read."""

    def __init__(self, tensor: Any, events: list[str]) -> None:
        self.get_shape, self._tensor, self._events = tensor.get_shape, tensor, events

    def __getitem__(self, index: Any) -> Tensor:
        if index is ...:
            self._events.append("read")
        found: Tensor = self._tensor[index]
        return found


def saved(folder: Path, name: str) -> str:
    save(BY_NAME[name], folder)
    return str(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3_moe", "deepseek_v3"])
def test_every_weight_and_buffer_is_that_of_the_whole_model(tmp_path: Path, name: str, dtype: str) -> None:
    path, shards = saved(tmp_path, name), Shards()
    whole, found = load_policy(path, dtype=dtype), load_policy(path, dtype=dtype, sharding=shards)
    assert [key for key, _ in found.named_parameters()] == [key for key, _ in whole.named_parameters()]
    for key, weight in found.named_parameters():
        torch.testing.assert_close(shards.wholes[id(weight)], whole.get_parameter(key).data, rtol=0, atol=0)
        assert weight.numel() == 0, "only the shard is there"
    for key, buffer in found.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(key))
    assert found.generation_config.to_dict() == whole.generation_config.to_dict()
    assert found.config.to_dict() == whole.config.to_dict()
    assert type(found) is type(whole)
    assert not found.training


def test_a_tensor_is_read_only_once_the_one_before_it_is_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that read ahead, as `from_pretrained` does, would fill the memory with what is not yet shared out."""
    shards, opened = Shards(), sharded_loading._opened
    monkeypatch.setattr(
        sharded_loading, "_opened", lambda *a: {name: Recorded(one, shards.events) for name, one in opened(*a).items()}
    )
    load_policy(saved(tmp_path, "llama"), sharding=shards)
    assert shards.events[:2] == ["read", "take"]
    assert shards.events == ["read", "take"] * (len(shards.events) // 2)


def test_a_rank_that_does_not_read_opens_no_file_and_makes_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = saved(tmp_path, "qwen3_moe"), []
    reader = Shards()
    monkeypatch.setattr(reader, "broadcast_text", lambda message: told.append(message) or message)
    load_policy(path, sharding=reader)
    listener = Shards()
    monkeypatch.setattr(listener, "reads", False)
    monkeypatch.setattr(listener, "broadcast_text", lambda message: told[0])
    monkeypatch.setattr(sharded_loading, "safe_open", None)
    found = load_policy(path, sharding=listener)
    assert len(listener.events) == len(reader.events)
    assert all(weight.numel() == 0 for weight in found.parameters())


@pytest.mark.parametrize("name", ["llama", "granite"])  # of transformers, and made here
def test_a_fresh_head_of_a_sharded_model_is_zero(tmp_path: Path, name: str) -> None:
    model = load_scalar(saved(tmp_path, name), fresh_head=True, sharding=Shards())
    head: Any = model.get_parameter("score.weight")
    assert not head.ds_tensor.any()
    assert head.ds_tensor.numel() == -(-model.config.hidden_size // 2)


def test_a_folder_that_lacks_a_weight_is_refused_in_shards_too(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = saved(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"has no weights for model\.norm\.weight"):
        load_policy(path, sharding=Shards())


def test_every_rank_is_told_of_weights_that_the_reading_one_cannot_open(tmp_path: Path) -> None:
    path = saved(tmp_path, "llama")
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"model\.path="):
        load_policy(path, sharding=Shards())


def test_weights_of_pickles_are_loaded_in_shards(tmp_path: Path) -> None:
    path, shards = saved(tmp_path, "llama"), Shards()
    whole = AutoModelForCausalLM.from_pretrained(path)
    torch.save(whole.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    found = load_policy(path, sharding=shards)
    for key, weight in found.named_parameters():
        assert torch.equal(shards.wholes[id(weight)], whole.get_parameter(key).data)
