"""Interfaces of the two sides of a weight sync: an engine that receives weights, and the learner that sends them.

Every method that waits has a deadline and raises a named error when it passes; see `rlhf.errors`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf.transfer.types import Manifest, Rendezvous, Seconds
from rlhf.types import Completion, PolicyVersion, Routing, TokenLogprobs


class PublishTarget(Protocol):
    """One engine in a weight sync. The phases are called in this order; any of them may raise or miss its deadline.

    `connect` joins the transfer group once. `prepare` pauses sampling (requests are kept) and acknowledges the
    manifest. `receive` takes the tensors while the learner sends them. `commit` sets the version and drops caches of
    the old weights. `token_logprobs` computes the canary's log-probs `[R, T - 1]` with the new weights. `extend`
    samples `tokens` tokens after a prompt and returns them as a completion. `resume` continues sampling.
    """

    name: str
    transfer_ranks: int

    async def connect(self, rendezvous: Rendezvous, first_rank: int) -> None: ...
    async def prepare(self, manifest: Manifest) -> None: ...
    async def receive(self, manifest: Manifest) -> Seconds: ...
    async def commit(self, version: PolicyVersion) -> None: ...
    async def token_logprobs(self, token_ids: NDArray[np.int32]) -> TokenLogprobs: ...
    async def extend(self, token_ids: NDArray[np.int32], tokens: int) -> Completion: ...
    async def resume(self) -> None: ...


class WeightSource(Protocol):
    """The learner in a weight sync. `perturb` changes every tensor far above tolerance for the check at the start of a
    run; `restore` brings back the exact old values. `version` is the number of updates in the weights. `token_logprobs`
    returns the log-probs `float32 [T - 1]` of tokens 1..T-1 at temperature 1, or `[R, T - 1]` for `[R, T]`, with the
    engine's experts `routing` for the first tokens if given; `rounded_logprobs` with another way of rounding.
    `sent_logprobs` returns those of rows by the tensors of the last `send` that was asked to `keep` them, once, or None
    where the learner keeps none because it answers as fast from its own weights."""

    @property
    def version(self) -> PolicyVersion: ...
    async def rendezvous(self, world_size: int) -> Rendezvous: ...
    async def connect(self, rendezvous: Rendezvous) -> None: ...
    async def manifest(self) -> Manifest: ...
    async def send(self, *, keep: bool = False) -> Seconds: ...
    async def sent_logprobs(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32] | None: ...
    async def token_logprobs(
        self, token_ids: NDArray[np.int32], routing: Routing | None = None
    ) -> NDArray[np.float32]: ...
    async def rounded_logprobs(
        self, token_ids: NDArray[np.int32], routing: Routing | None = None
    ) -> NDArray[np.float32]: ...
    async def perturb(self) -> None: ...
    async def restore(self) -> None: ...
