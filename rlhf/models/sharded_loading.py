"""Loads a model tensor by tensor into the shards of several ranks, so that no process ever holds the whole. It is built
on the meta device; then transformers' own loader sets one parameter at a time. Only one rank reads files; a `Sharding`
hands each parameter out at once and frees it. The others load blanks: memory that is never touched."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PreTrainedModel

from rlhf.models.transformers_internals import checkpoint_files

ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' switch: tensors are read when they are set, instead of in threads that read ahead without a bound."""
Described = Mapping[str, tuple[Sequence[int], str]]
"""Shapes and types of a folder's tensors by name, as JSON has them."""


class Sharding(Protocol):
    """How the ranks share a model. Every method is a collective."""

    @property
    def reads(self) -> bool:
        """Whether this rank reads the files."""

    def broadcast_text(self, message: str) -> str:
        """Return the reading rank's `message`, on every rank. Never an object: those travel as pickles."""

    def take(self, parameter: nn.Parameter) -> None:
        """Keep this rank's shard of the reading rank's parameter, and free the parameter's own memory."""

    def broadcast_buffer(self, buffer: Tensor) -> None:
        """Give every rank the reading rank's content of a buffer, in place."""


def pretrained(auto: Any, path: str, sharding: Sharding | None, **settings: Any) -> tuple[PreTrainedModel, Any]:
    """`auto.from_pretrained(path, **settings)` with its report, in shards if there is a `sharding`."""
    if sharding is None:
        model, found = auto.from_pretrained(path, output_loading_info=True, **settings)
        return model, found
    trust = settings.pop("trust_remote_code", False)
    with torch.device("meta"):
        built = auto.from_config(settings["config"], trust_remote_code=trust)

    def take(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # those on the meta device are only promised
            sharding.take(parameter)

    before = {ONE_BY_ONE: os.environ[ONE_BY_ONE]} if ONE_BY_ONE in os.environ else {}
    with ExitStack() as stack:
        tensors = _tensors(built, path, sharding, stack)
        stack.callback(lambda: os.environ.update(before) if before else os.environ.pop(ONE_BY_ONE))
        os.environ[ONE_BY_ONE] = "1"
        stack.callback(register_module_parameter_registration_hook(take).remove)
        model, found = type(built).from_pretrained(None, state_dict=tensors, output_loading_info=True, **settings)
    for buffer in model.buffers():
        sharding.broadcast_buffer(buffer)
    model.config.name_or_path = model.name_or_path = path
    return model, found


class _Blank:
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype

    def __getitem__(self, index: Any) -> Tensor:
        return torch.empty(self._shape, dtype=self._dtype)[index]


def _tensors(model: PreTrainedModel, path: str, sharding: Sharding, stack: ExitStack) -> dict[str, Any]:
    """Return the folder's tensors by name, blank on the ranks that do not read. Raises `OSError` on every rank."""
    opened: dict[str, Any] = {}
    described: Described | str = {}
    if sharding.reads:
        try:
            opened = _opened(model, path, stack)
            described = {name: _described(tensor) for name, tensor in opened.items()}
        except (OSError, ValueError, SafetensorError) as error:
            described = str(error)
    described = json.loads(sharding.broadcast_text(json.dumps(described)))
    if isinstance(described, str):
        raise OSError(described)
    return opened or {name: _Blank(tuple(shape), getattr(torch, dtype)) for name, (shape, dtype) in described.items()}


def _opened(model: PreTrainedModel, path: str, stack: ExitStack) -> dict[str, Any]:
    """Tensors that are read when they are indexed. Files are read and not mapped, since pages of a mapped file count as
    this process's memory for as long as it is open."""
    tensors: dict[str, Any] = {}
    for file in checkpoint_files(model, path):
        if file.endswith(".safetensors"):
            content = stack.enter_context(safe_open(file, framework="pt", backend="pread"))
            tensors |= {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118  # not a mapping
        else:
            tensors |= torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return tensors


def _described(tensor: Any) -> tuple[Sequence[int], str]:
    if isinstance(tensor, Tensor):
        shape, dtype = list(tensor.shape), tensor.dtype
    else:
        shape = list(tensor.get_shape())
        dtype = tensor[..., :0].dtype if shape else tensor[...].dtype
    return shape, str(dtype).removeprefix("torch.")
