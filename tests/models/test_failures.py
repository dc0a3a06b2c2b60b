"""What a library raises is the model's or the machine's, and keeps its words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from rlhf.errors import ModelError, TransferError
from rlhf.models.config import TinyModelConfig
from rlhf.models.failures import naming_model
from rlhf.models.loading import load_policy
from rlhf.models.tiny import save_tiny


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AttributeError("'Lfm2Config' object has no attribute 'conv_dim'"),
         "AttributeError: 'Lfm2Config' object has no attribute 'conv_dim'"),
        (AssertionError(), "AssertionError"),
        (NotImplementedError("no kernel"), "NotImplementedError: no kernel"),
        (RuntimeError("shape '[2]' is invalid\nfor input"), "RuntimeError: shape '[2]' is invalid for input"),
        (ValueError("long\n" * 1000), f"ValueError: {'long ' * 57}lo…"),
        (SafetensorError("MetadataIncompleteBuffer"), "SafetensorError: MetadataIncompleteBuffer"),
        (FileNotFoundError(2, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
    ],
)  # fmt: skip
def test_a_library_that_does_not_know_a_model_is_one_line_with_its_cause(error: Exception, told: str) -> None:
    with pytest.raises(ModelError) as refused, naming_model("model.path=x: a library", OSError, SafetensorError):
        raise error
    assert str(refused.value) == f"model.path=x: a library: {told}"
    assert refused.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory for the weights"),
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: device-side assert triggered", 710),
        torch.distributed.DistNetworkError("The server socket has failed to listen on port 29500"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("NCCL error: unhandled system error"),
        OSError(12, "Cannot allocate memory"),
        OSError(28, "No space left on device"),
        OSError(str(OSError(5, "Input/output error"))),  # as ranks tell each other
        ConnectionResetError(104, "Connection reset by peer"),
        SafetensorError("Error while deserializing: I/O error: Input/output error (os error 5)"),
        RuntimeError("can't start new thread"),
        TransferError("a peer is gone"),
        KeyboardInterrupt(),
    ],
)
def test_a_failure_of_the_machine_keeps_its_name(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, naming_model("model.path=x: a library", OSError, SafetensorError):
        raise error
    assert raised.value is error


def test_a_loader_of_ones_own_that_does_not_know_the_model_is_named(tmp_path: Path) -> None:
    folder = save_tiny(TinyModelConfig(hidden_size=64), 0, tmp_path / "tiny")
    with pytest.raises(
        ModelError, match=rf"^model\.path={folder}: {__name__}:unknowing cannot load qwen2: KeyError: 1$"
    ):
        load_policy(str(folder), loader=f"{__name__}:unknowing")


def unknowing(path: str, **settings: object) -> None:
    raise KeyError(1)
