"""Senders that use vLLM's own GPU transfer protocols (nccl and CUDA IPC). *Untested*: no machine has run them yet."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group
from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer, packed_nccl_broadcast_producer

from rlhf.errors import TransferError
from rlhf.transfer.buckets import cut_buckets
from rlhf.transfer.handles import Chunk, HandleExchange, handle_of
from rlhf.transfer.init_info import NCCL_BUFFERS
from rlhf.transfer.store import ROOT
from rlhf.transfer.types import Manifest, Rendezvous


def nccl_unique_id() -> str:
    """The unique id of a new nccl group, in base64: the address at which this process listens for members, and a number
    that they must know. *Untested.*"""
    return b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()


class NcclSender:
    """Broadcasts packed buffers to vLLM's `nccl` engines, on the current CUDA device. *Untested.*

    nccl itself has no deadline for a peer that hangs: the caller's deadline ends the run.
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._bucket_bytes = 0

    def connect(self, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._group = uid_init_process_group(
            b64decode(rendezvous.secret), ROOT, rendezvous.world_size, torch.accelerator.current_device_index()
        )

    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        if self._group is None:
            raise TransferError("send came before connect")
        packed_nccl_broadcast_producer(
            iterator=tensors,
            group=self._group,
            src=0,
            post_iter_func=_copy,
            buffer_size_bytes=self._bucket_bytes,
            num_buffers=NCCL_BUFFERS,
        )
        torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        if self._group is not None:
            self._group.destroy()
            self._group = None


class IpcSender:
    """Shares one packed buffer with `IpcReceiver`s on the same GPU, chunk by chunk. *Untested.*

    CUDA maps the memory. The handles are sent over a `HandleExchange`, where the engines also acknowledge each chunk.
    """

    def __init__(self) -> None:
        self._desk: HandleExchange | None = None
        self._bucket_bytes = 0

    def connect(self, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._desk = HandleExchange(ROOT, rendezvous)

    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        if self._desk is None:
            raise TransferError("send came before connect")
        chunks = packed_ipc_producer(
            iterator=tensors,
            gpu_uuid=str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid),
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=max(self._bucket_bytes, _largest(manifest)),
        )
        for chunk in chunks:
            self._desk.offer(
                Chunk(
                    names=chunk.names,
                    dtype_names=chunk.dtype_names,
                    shapes=chunk.shapes,
                    tensor_sizes=chunk.tensor_sizes,
                    handles={gpu: handle_of(arguments) for gpu, arguments in chunk.ipc_handle.items()},
                )
            )
        self._desk.end()
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._desk = None


def _copy(item: tuple[str, Tensor]) -> Tensor:
    # vLLM packs a buffer only when it is full, and by then a gathered tensor has been freed.
    return item[1].clone()


def _largest(manifest: Manifest) -> int:
    return max((bucket.bytes for bucket in cut_buckets(manifest, 1)), default=1)
