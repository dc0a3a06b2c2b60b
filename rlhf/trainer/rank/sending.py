"""A rank's end of weight syncs: it sends the weights or helps to, and answers the canary from what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from rlhf.models.lora import hugging_face_name
from rlhf.models.policy import PolicyModel
from rlhf.models.streamed import partitioned
from rlhf.trainer.rank import weights
from rlhf.trainer.rank.zero import forward_only, without_gathering
from rlhf.trainer.settings import LearnerSettings
from rlhf.transfer.sender import WeightSender, only_sender, send_or_gather, sender_for
from rlhf.transfer.types import AHEAD_BYTES, Manifest, Rendezvous, Seconds


class Sending:
    """Sends `policy`'s weights. Where gathering shards takes most of a forward pass, on a CPU, the rank that sends may
    keep what it has gathered until the canary is answered: 0.3 s of one rank for 0.5 billion parameters, not 0.9 of
    two."""

    def __init__(self, policy: PolicyModel, rank: int, settings: LearnerSettings) -> None:
        self._policy, self._rank, self._settings = policy, rank, settings
        self._sender: WeightSender | None = None
        self._only: int | None = None
        self._sent: dict[str, Tensor] = {}

    def connect(self, rendezvous: Rendezvous) -> None:
        """The ranks that send (`sender_for`) join the transfer with the engines; the others have nothing to join."""
        self._sender, self._only = sender_for(rendezvous.backend, self._rank), only_sender(rendezvous.backend)
        if self._sender is not None:
            self._sender.connect(rendezvous)

    def send(self, form: weights.Form, manifest: Manifest, *, keep: bool) -> Seconds:
        """Send every weight to the engines, or help to gather them. Returns what took how long."""
        self._sent = {}
        tensors = weights.published_tensors(self._policy, self._settings.bucket_bytes, form, only=self._only)
        passing = self._kept(tensors) if keep and self._keeps() else tensors
        return send_or_gather(self._sender, passing, manifest)

    def logprobs(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32] | None:
        """Log-probs `[R, T - 1]` of the rows `[R, T]` by the weights as they were sent last, which are kept no longer;
        None where they were not kept."""
        sent, self._sent = self._sent, {}
        whole: dict[str, Tensor] = {}
        for name, weight in self._weights():
            tensor = sent.get(hugging_face_name(name) or "")
            if tensor is None or tensor.shape != weight.ds_shape:
                return None
            whole[f"model.{name}"] = tensor
        rows = rows_to_score(token_ids, self._policy.model.device)
        with forward_only(self._policy), without_gathering(self._policy):
            found, _ = functional_call(self._policy, whole, rows)
        return scores_of(found, token_ids)

    def close(self) -> None:
        """Leave the transfer."""
        if self._sender is not None:
            self._sender.close()

    def _weights(self) -> list[tuple[str, Any]]:
        return list(self._policy.model.named_parameters())

    def _keeps(self) -> bool:
        """Whether this rank alone sends, shards on a CPU, and one whole copy of them is not too much."""
        held = [weight for _, weight in self._weights()]
        return (
            self._only == self._rank
            and self._settings.device == "cpu"
            and self._settings.model.lora is None
            and self._settings.trainer.deepspeed.sequence_parallel == 1
            and all(map(partitioned, held))
            and sum(map(weights.weight_bytes, held)) <= AHEAD_BYTES
        )

    def _kept(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            self._sent[name] = tensor
            yield name, tensor


def rows_to_score(token_ids: NDArray[np.int32], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """What a policy is called with for the log-probs of all tokens of the rows `[R, T]` but the first, at temperature
    1."""
    rows = torch.tensor(token_ids, dtype=torch.long, device=device)  # what came by Ray is read-only
    places = torch.arange(rows.numel(), device=device).view_as(rows)
    return rows, places[:1].expand_as(rows), places[:, :-1].flatten(), places[:, 1:].flatten(), 1.0


def scores_of(logprobs: Tensor, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """The log-probs that the policy gave, `[R, T - 1]`."""
    found: NDArray[np.float32] = logprobs.view(len(token_ids), -1).cpu().numpy()
    return found
