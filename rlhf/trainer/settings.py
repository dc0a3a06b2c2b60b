"""Settings of a learner rank: plain data, sent once at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlhf.models.config import ModelConfig, RoutingMode
from rlhf.trainer.config import TrainerConfig

Trained = Literal["policy", "preference", "reward_model"]
"""The task of the ranks: train a policy, a policy on pairs, or a reward model."""

Residency = Literal["everything", "weights", "nothing"]
"""The tensors that a rank keeps on its device: all that an update needs; those of forward passes and weight syncs; or
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """`model_path` is the folder or hub name to load (for a made model: where it is cached); `temperature` is that of
    the distribution the training tokens were sampled from; `device` is `cpu` or `cuda`. What is trained starts from
    `model_path`, also a reward model, with any head of the folder; `preference` trains a policy on pairs. `routing` is
    how the engines' expert choices are used."""

    model_path: str
    model: ModelConfig
    trainer: TrainerConfig
    temperature: float = 1.0
    device: str = "cpu"
    trains: Trained = "policy"
    routing: RoutingMode = "ignore"
    seed: int = 0
    """The seed of the run."""
    policy: str = ""
    """The policy's name among several over one base, which its state leaves out: the base never changes."""
    adapter: str | None = None
    """The folder of the adapter that the policy starts from; None is one that changes nothing yet."""
    frozen: bool = False
    """Whether the policy plays, but is not trained."""
    policies: tuple[LearnerSettings, ...] = ()
    """The settings of each of several policies, which then hold instead of these."""

    @property
    def bucket_bytes(self) -> int:
        return self.trainer.weight_sync.bucket_bytes(on_gpu=self.device != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateArguments:
    """Arguments that change between updates: passes over the batch, the weight of the KL term, and whether the policy
    takes steps (at first only the critic may be trained)."""

    epochs: int = 1
    kl_coefficient: float = 0.0
    policy_learns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTerms:
    """Inputs of the pair loss other than the model's: by how much the scores of each pair should differ, `margins`
    `float32 [pairs]` in the order of the batch, and KTO's reference point, `baseline`, in nats."""

    margins: NDArray[np.float32]
    baseline: float = 0.0
