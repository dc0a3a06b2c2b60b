"""Packed buckets: the tensors of a manifest share a few byte buffers, so the number of transfers does not grow with
theirs.

Sender and receivers cut the same manifest with the same bucket size, so they agree without communication.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlhf.errors import TransferError
from rlhf.weight_sync.types import Manifest, TensorSpec

ALIGNMENT = 64
"""Alignment in bytes: every tensor starts on a cache line, and so at a multiple of its element size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The half-open byte range of one tensor in its bucket."""

    spec: TensorSpec
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Tensors that are sent together, in order; `alone` is a tensor that is larger than a bucket should be."""

    slots: tuple[Slot, ...]
    alone: bool = False

    @property
    def bytes(self) -> int:
        """The size of the buffer's filled part."""
        return self.slots[-1].stop


def cut_buckets(manifest: Manifest, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Cut a manifest, in order, into buckets of at most `bucket_bytes`; a larger tensor has a bucket to itself."""
    buckets: list[Bucket] = []
    slots: list[Slot] = []
    for spec in manifest.tensors:
        slot = _slot(spec, slots[-1].stop if slots else 0)
        if slots and slot.stop > bucket_bytes:
            buckets.append(Bucket(slots=tuple(slots)))
            slots, slot = [], _slot(spec, 0)
        slots.append(slot)
    if slots:
        buckets.append(Bucket(slots=tuple(slots)))
    return tuple(replace(bucket, alone=bucket.bytes > bucket_bytes) for bucket in buckets)


class Buffers:
    """`count` byte buffers on `device` that packed buckets use in turn. A tensor that is larger than a bucket has
    its own memory. A GPU's memory is returned after each weight sync; the CPU's is kept, since new pages cost
    time."""

    def __init__(self, device: torch.device, count: int) -> None:
        self._device, self._count = device, count
        self._largest, self._ring = 0, dict[int, Tensor]()

    def reserve(self, buckets: Iterable[Bucket]) -> None:
        """Make room for these buckets; memory is taken when it is first used."""
        largest = max((bucket.bytes for bucket in buckets if not bucket.alone), default=0)
        if self._largest < largest:
            self._largest, self._ring = largest, {}

    def turn(self, index: int, bucket: Bucket) -> Tensor:
        """Memory for the bucket with this index, `uint8 [bucket.bytes]`: that of the one `count` before."""
        if bucket.alone:
            return torch.empty(bucket.bytes, dtype=torch.uint8, device=self._device)
        place = index % self._count
        if place not in self._ring:
            self._ring[place] = torch.empty(self._largest, dtype=torch.uint8, device=self._device)
        return self._ring[place][: bucket.bytes]

    def settle(self) -> None:
        """Free memory at the end of a weight sync."""
        if self._device.type != "cpu":
            self._ring = {}


def pack_bucket(bucket: Bucket, tensors: Iterator[tuple[str, Tensor]], buffer: Tensor) -> Tensor:
    """Copy the next tensors into `buffer` and return its filled part. Raises `TransferError` if they do not match the
    manifest."""
    for slot in bucket.slots:
        _view(slot, buffer).copy_(_next(slot, tensors))
    return buffer[: bucket.bytes]


def bytes_of(bucket: Bucket, tensors: Iterator[tuple[str, Tensor]], device: torch.device) -> Tensor:
    """Return the bytes of the next tensor, the only one of `bucket`, on `device`: its own memory where that is
    possible. Raises `TransferError` if it does not match the manifest."""
    (slot,) = bucket.slots
    return _next(slot, tensors).detach().to(device).contiguous().view(-1).view(torch.uint8)


def unpack_bucket(bucket: Bucket, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the tensors of a bucket as views of `buffer`: valid until it is reused."""
    return ((slot.spec.name, _view(slot, buffer)) for slot in bucket.slots)


def digest(manifest: Manifest, bucket_bytes: int) -> bytes:
    """Return a 32-byte hash that is equal if sender and receiver cut the same tensors into the same buckets."""
    return hashlib.sha256(repr((manifest, bucket_bytes)).encode()).digest()


def expect_digest(received: str, manifest: Manifest, bucket_bytes: int) -> None:
    """Raise `TransferError` unless `received`, the sender's digest in hexadecimal, is that of this manifest."""
    if received != digest(manifest, bucket_bytes).hex():
        raise TransferError("the learner sends another manifest than the one this engine acknowledged")


def _slot(spec: TensorSpec, after: int) -> Slot:
    start = -(-after // ALIGNMENT) * ALIGNMENT
    return Slot(spec=spec, start=start, stop=start + math.prod(spec.shape) * _dtype(spec).itemsize)


def _view(slot: Slot, buffer: Tensor) -> Tensor:
    return buffer[slot.start : slot.stop].view(_dtype(slot.spec)).view(slot.spec.shape)


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype = vars(torch).get(spec.dtype)
    if not isinstance(dtype, torch.dtype):
        raise TransferError(f"{spec.name}: torch has no dtype {spec.dtype!r}")
    return dtype


def _next(slot: Slot, tensors: Iterator[tuple[str, Tensor]]) -> Tensor:
    name, tensor = next(tensors, ("", None))
    if tensor is None:
        raise TransferError(f"the manifest lists {slot.spec.name}, but there is no tensor for it")
    _check(slot.spec, name, tensor)
    return tensor


def _check(spec: TensorSpec, name: str, tensor: Tensor) -> None:
    found = TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
    if found != spec:
        raise TransferError(
            f"the manifest lists {spec.name} {spec.dtype} {list(spec.shape)}, "
            f"but the next tensor is {found.name} {found.dtype} {list(found.shape)}"
        )
