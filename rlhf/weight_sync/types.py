"""Data that the two sides of a weight sync exchange, and the interface of each side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import RlhfError, TransferError
from rlhf.images import PlacedImage
from rlhf.types import Completion, PolicyVersion, Routing, TokenLogprobs

Seconds = Mapping[str, float]
"""Seconds by activity: `gather` and `send` of a rank; `receive`, `reload` and `repack` of an engine."""
Load = Mapping[str, float]
"""How busy an engine was: its `steps`, the requests `running` and `waiting` in the mean step, the largest share of its
`kv_cache` in use, and of its `prompt_tokens` those that were cached."""
ENGINE_BACKENDS = {"gloo": "gloo", "nccl": "nccl_buckets", "ipc": "ipc_buckets"}
"""The backends' names in vLLM's factory (`rlhf.weight_sync.vllm_worker`). vLLM has a `nccl` and an `ipc` already."""


def engine_backend(backend: str) -> str:
    """Return the backend name to start an engine with (`WeightTransferConfig.backend`). Raises `TransferError`."""
    if backend not in ENGINE_BACKENDS:
        raise TransferError(f"there is no weight-transfer backend {backend!r}; use gloo, nccl or ipc")
    return ENGINE_BACKENDS[backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, dtype (as torch names it, for instance `bfloat16`) and full shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors that a weight sync will send, in order. Engines acknowledge it before any data is sent."""

    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAddress:
    """The address at which the members of a process group find each other; for nccl also its unique id in base64,
    which members must know."""

    host: str
    port: int
    nccl_id: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """A weight-transfer group. Rank 0 is the learner's; the engines' ranks are 1 to `world_size` - 1.

    With ipc there are `senders`, one for each rank of the learner, numbered from 0. All members must agree on
    `bucket_bytes`: tensors are sent in packed buckets of about this size.
    """

    backend: str
    address: GroupAddress
    world_size: int
    timeout_seconds: float
    bucket_bytes: int = 32 * 2**20
    senders: int = 1


class PublishTarget(Protocol):
    """One engine in a weight sync. The phases are called in this order; any of them may raise or miss its deadline.

    `connect` joins a transfer group, and leaves the one before. `prepare` pauses sampling (requests are kept),
    acknowledges the manifest, and returns how busy the engine was since the last weight sync. `receive` takes the
    tensors while the learner sends them. `commit` sets the version and drops caches of the old weights.
    `token_logprobs` computes the canary's log-probs `[R, T - 1]` with a policy's new weights, each row with the
    same `images`. `extend` samples `tokens`
    tokens after a prompt and returns them as a completion. `resume` continues sampling. `lose` takes the engine out of
    service. It holds the weights of `policies`.
    """

    name: str
    transfer_ranks: int
    policies: Sequence[str]

    async def connect(self, rendezvous: Rendezvous, first_rank: int) -> None: ...
    async def prepare(self, manifest: Manifest) -> Load: ...
    async def receive(self, manifest: Manifest) -> Seconds: ...
    async def commit(self, version: PolicyVersion) -> None: ...
    async def token_logprobs(
        self, token_ids: NDArray[np.int32], policy: str = "", images: Sequence[PlacedImage] = ()
    ) -> TokenLogprobs: ...
    async def extend(self, token_ids: NDArray[np.int32], tokens: int, policy: str = "") -> Completion: ...
    async def resume(self) -> None: ...
    def lose(self, error: RlhfError) -> None: ...


class WeightSource(Protocol):
    """The learner in a weight sync. `perturb` changes every tensor far above tolerance for the check at the start of a
    run; `restore` brings back the exact old values. `version` is the number of updates in the weights. `token_logprobs`
    returns the log-probs `float32 [T - 1]` of tokens 1..T-1 at temperature 1, or `[R, T - 1]` for `[R, T]`, with the
    engine's experts `routing` for the first tokens if given; `rounded_logprobs` with another way of rounding. `give_up`
    has all members leave the transfer group at once, where a dead peer would keep them waiting (nccl). A weight sync
    holds `turn`, as does what else the ranks do. `policies` are the names of those whose weights are sent, `""` where
    there is one."""

    turn: asyncio.Lock

    @property
    def policies(self) -> tuple[str, ...]: ...

    @property
    def version(self) -> PolicyVersion: ...
    async def rendezvous(self, world_size: int) -> Rendezvous: ...
    async def connect(self, rendezvous: Rendezvous) -> None: ...
    async def give_up(self) -> None: ...
    async def manifest(self) -> Manifest: ...
    async def send(self) -> Seconds: ...
    async def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]: ...
    async def rounded_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]: ...
    async def perturb(self) -> None: ...
    async def restore(self) -> None: ...
