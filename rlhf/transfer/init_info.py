"""The arguments that engines get through vLLM's `collective_rpc`, as plain dictionaries: the rendezvous and the
manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlhf.errors import TransferError
from rlhf.transfer.types import Manifest, Rendezvous, TensorSpec

ENGINE_BACKENDS = {"gloo": "gloo", "nccl": "nccl_buckets", "ipc": "ipc_buckets"}
"""Names of the backends in vLLM's factory, where `plugin` registers them. vLLM has `nccl` and `ipc` of its own."""


def engine_backend(backend: str) -> str:
    """The backend name to start an engine with (`WeightTransferConfig.backend`)."""
    if backend not in ENGINE_BACKENDS:
        raise TransferError(f"no weight-transfer backend is called {backend!r}; there are gloo, nccl and ipc")
    return ENGINE_BACKENDS[backend]


def init_info(rendezvous: Rendezvous, first_rank: int) -> dict[str, Any]:
    """The argument of `init_weight_transfer_engine` for an engine whose workers have ranks from `first_rank` on."""
    return {**asdict(rendezvous), "first_rank": first_rank}


def update_info(manifest: Manifest) -> dict[str, Any]:
    """The argument of `update_weights` for any backend: the manifest with vLLM's names."""
    return {
        "names": [spec.name for spec in manifest.tensors],
        "dtype_names": [spec.dtype for spec in manifest.tensors],
        "shapes": [list(spec.shape) for spec in manifest.tensors],
    }


def manifest_of(names: Sequence[str], dtype_names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Manifest:
    """The manifest from the arguments that `update_info` made."""
    return Manifest(
        tensors=tuple(
            TensorSpec(name=name, dtype=dtype, shape=tuple(shape))
            for name, dtype, shape in zip(names, dtype_names, shapes, strict=True)
        )
    )
