"""One learner rank: a DeepSpeed engine behind synchronous methods with numpy and plain types.

It runs in a Ray worker or in this process. All ranks receive the same calls in the same order; a call that computes is
a collective. torch, transformers and DeepSpeed are imported by `start`, so that constructing a worker is cheap.
"""

from __future__ import annotations

import importlib
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.accelerator import choose_accelerator
from rlhf.trainer.answers import RankAnswer
from rlhf.trainer.batch import MicroBatch, Minibatch
from rlhf.trainer.forward_outputs import ForwardRequest, RankForwardOutputs
from rlhf.trainer.settings import LearnerSettings, PairTerms, Trained, UpdateArguments
from rlhf.transfer.interfaces import LOOPBACK, own_address
from rlhf.transfer.types import Manifest, Meeting, Rendezvous
from rlhf.types import PolicyVersion, Routing, Written

if TYPE_CHECKING:
    from rlhf.trainer.preference_rank import PreferenceRank
    from rlhf.trainer.rank import Rank
    from rlhf.trainer.reward_rank import RewardRank


def import_ranks() -> None:
    """Import torch, transformers and DeepSpeed: this takes most of a rank's start time."""
    importlib.import_module("rlhf.trainer.rank")


class LearnerWorker:
    """Worker of one rank. Call `start` first; only `meeting` may come before it."""

    def __init__(self, name: str = "learner-0", *, loopback: bool = False) -> None:
        """With `loopback` all peers of this worker are on its machine, and no other machine can connect."""
        self.name, self._loopback = name, loopback
        self._rank: Rank | RewardRank | None = None

    def meeting(self, backend: str = "gloo") -> Meeting:
        """Where the other ranks can connect to this worker: its host's address, a port that is free now, and a new
        secret; with nccl the secret is its unique id, by which the members find each other."""
        host = LOOPBACK if self._loopback else own_address()
        if backend == "nccl":
            from rlhf.transfer.gpu_senders import nccl_unique_id

            secret = nccl_unique_id()
        else:
            secret = secrets.token_hex(32)
        with socket.socket() as free:
            free.bind((host, 0))
            return Meeting(address=host, port=free.getsockname()[1], secret=secret)

    def start(self, rank: int, world_size: int, meeting: Meeting, settings: LearnerSettings) -> dict[str, Any]:
        """Join the other ranks and load the model. Returns facts: parameters, context length, seconds.

        A worker that has started can be started again, with other settings but the same ranks.
        """
        began = time.monotonic()
        choose_accelerator(settings.device)
        from rlhf.trainer.zero import join

        join(rank, world_size, meeting, settings.device, settings.trainer.deepspeed.timeout_seconds)
        self._rank = None  # frees a former model before the next one is loaded
        policy, preference, reward_model = _kinds()
        kinds: Mapping[Trained, type[Rank | RewardRank]] = {
            "policy": policy,
            "preference": preference,
            "reward_model": reward_model,
        }
        self._rank = kinds[settings.trains](rank, world_size, settings)
        return self._rank.facts() | {"seconds": round(time.monotonic() - began, 2)}

    def forward_outputs(self, microbatches: Sequence[MicroBatch], wanted: ForwardRequest) -> RankForwardOutputs:
        """Log-probs of the ACTION tokens under the current weights and the reference, and values: those `wanted`."""
        return self._started.forward_outputs(microbatches, wanted)

    def update(self, minibatches: Sequence[Minibatch], arguments: UpdateArguments) -> RankAnswer:
        """One optimizer step for every minibatch of every epoch, of the policy and, with a critic, of the critic."""
        return self._started.update(minibatches, arguments)

    def imitate(self, minibatches: Sequence[Minibatch]) -> RankAnswer:
        """One optimizer step for every minibatch, on the supervised loss of the ACTION tokens."""
        return self._started.imitate(minibatches)

    def prefer(self, minibatches: Sequence[Minibatch], terms: PairTerms) -> RankAnswer:
        """One optimizer step for every minibatch, of a reward model or of a policy, on the loss of its pairs."""
        return self._of_pairs.prefer(minibatches, terms)

    def judge(self, minibatches: Sequence[Minibatch], terms: PairTerms) -> RankAnswer:
        """The metrics that `prefer` would report, without training."""
        return self._of_pairs.judge(minibatches, terms)

    def diverge(self, minibatches: Sequence[Minibatch]) -> RankAnswer:
        """The divergence of a policy on pairs from its reference, on these replies."""
        return self._of_preferences.diverge(minibatches)

    def score_tokens(self, token_ids: NDArray[np.int32], routing: Routing | None) -> NDArray[np.float32]:
        """Log-probs `float32 [T - 1]` of tokens 1..T-1 at temperature 1."""
        return self._started.score_tokens(token_ids, routing)

    def rounding(self, token_ids: NDArray[np.int32], routing: Routing | None) -> NDArray[np.float32]:
        """How much another way of rounding changes `score_tokens`."""
        return self._started.rounding(token_ids, routing)

    def manifest(self) -> Manifest:
        """The manifest of the tensors that `send` will send."""
        return self._started.manifest()

    def connect(self, rendezvous: Rendezvous) -> None:
        """Rank 0 joins the transfer group with the engines; the other ranks do nothing."""
        self._started.connect(rendezvous)

    def send(self) -> None:
        """Send every weight to the engines: rank 0 sends, the other ranks take part in gathering."""
        self._started.send()

    def perturb(self) -> None:
        """Perturb every weight by far more than the tolerance, to verify the path of weight syncs."""
        self._started.perturb()

    def restore(self) -> None:
        """Undo `perturb`, bit for bit."""
        self._started.restore()

    def save(self, path: Path, version: PolicyVersion) -> dict[str, Written]:
        """Write DeepSpeed's state (weights, optimizer, schedule), the version, and a ready Hugging Face folder. Returns
        what this rank wrote, by path within `path`; it is on the disk."""
        return self._model.save(path, version)

    def load(self, path: Path) -> PolicyVersion:
        """Continue exactly from `save`; returns its version. Raises `CheckpointError` for another plan's state."""
        return self._model.load(path)

    def export(self, path: Path) -> None:
        """Write only the Hugging Face folder."""
        self._model.export(path)

    def stop(self) -> None:
        """Release the model and its optimizer. The process group stays until the process ends: DeepSpeed keeps handles
        to it, and a later `start` in this process reuses it."""
        if self._rank is not None:
            self._rank.stop()
            self._rank = None

    @property
    def _model(self) -> Rank | RewardRank:
        if self._rank is None:
            raise RuntimeError(f"{self.name} was asked to work before start()")
        return self._rank

    @property
    def _started(self) -> Rank:
        policy, _, _ = _kinds()
        if not isinstance(self._model, policy):
            raise TypeError(f"{self.name} trains a reward model and was asked for a policy's work")
        return self._model

    @property
    def _of_preferences(self) -> PreferenceRank:
        _, preference, _ = _kinds()
        if not isinstance(self._model, preference):
            raise TypeError(f"{self.name} was asked to train a policy on pairs, and it trains something else")
        return self._model

    @property
    def _of_pairs(self) -> RewardRank | PreferenceRank:
        _, _, reward_model = _kinds()
        return self._model if isinstance(self._model, reward_model) else self._of_preferences


def _kinds() -> tuple[type[Rank], type[PreferenceRank], type[RewardRank]]:
    """The one place that imports the ranks."""
    from rlhf.trainer.preference_rank import PreferenceRank
    from rlhf.trainer.rank import Rank
    from rlhf.trainer.reward_rank import RewardRank

    return Rank, PreferenceRank, RewardRank
