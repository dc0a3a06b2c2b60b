"""Data types of a weight transfer: tensors, and the rendezvous with the secret that identifies its members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Seconds = Mapping[str, float]
"""What a part of a weight sync spent on what, by name: `gather` and `send` of a rank; `receive`, `reload` and `repack`
of an engine."""
AHEAD_BYTES = 2 * 2**30
"""The most that may arrive ahead of the reload on a CPU, beyond the next bucket: the sooner the learner has sent its
last, the more of its canary it answers while engines reload. An engine keeps this memory, or a model's size of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, dtype (as torch names it, for instance `bfloat16`) and full shape of one published tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a weight sync will send, in order. Engines acknowledge it before any data is sent."""

    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where processes of one run meet, and the `secret` by which they recognise each other."""

    address: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Rendezvous of a weight-transfer group. Rank 0 is the learner's; the engines' ranks are 1 to `world_size` - 1.

    With ipc there are `senders`, one for each rank of the learner, numbered on their own. All members must agree on
    `bucket_bytes`: tensors are sent in packed buckets of about this size. `secret` is known to the members only. With
    nccl it is nccl's unique id, in base64, which also contains the address.
    """

    backend: str
    address: str
    port: int
    world_size: int
    timeout_seconds: float
    secret: str = field(repr=False)
    bucket_bytes: int = 32 * 2**20
    senders: int = 1
