"""Names that torch does not promise to keep: a new torch breaks this page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.distributed import ProcessGroupGloo
from torch.nn.attention.varlen import _varlen_attn, _varlen_attn_backward
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves

varlen_forward, varlen_backward = _varlen_attn, _varlen_attn_backward
cpu_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
cpu_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def storage_key(tensor: Tensor) -> int:
    """Return a key that identifies a storage, even an emptied one, which has no address."""
    return int(tensor.untyped_storage()._cdata)


def gloo_options(host: str, timeout_seconds: float) -> Any:
    """Return gloo's options with a device on the interface with this address. By default gloo uses the address that the
    host name resolves to, which may be an unrelated network in a run on one machine."""
    chosen: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    chosen._timeout = timedelta(seconds=timeout_seconds)
    chosen._devices = [ProcessGroupGloo.create_device(hostname=host)]
    return chosen
