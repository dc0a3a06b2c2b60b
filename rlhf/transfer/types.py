"""What a transfer of weights speaks of: tensors, where its members meet, and what tells them from others."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, dtype (as torch names it, for instance `bfloat16`) and full shape of one published tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a publish will send, in order. Engines acknowledge it before any byte moves."""

    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where processes of one run meet, and the `secret` that tells them from others."""

    address: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the members of a weight-transfer group meet. Rank 0 is the learner's; engines follow from 1.

    `bucket_bytes` is what all members must agree on: tensors travel in packed buckets of about this size. `secret` is
    what nobody else knows; with nccl its unique id, in base64, which says where to meet too.
    """

    backend: str
    address: str
    port: int
    world_size: int
    timeout_seconds: float
    secret: str = field(repr=False)
    bucket_bytes: int = 4 * 2**20
