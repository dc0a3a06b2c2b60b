"""What a learner rank needs to know: plain data, sent once at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlhf.models.config import ModelConfig, RoutingMode
from rlhf.trainer.config import TrainerConfig

Trained = Literal["policy", "preference", "reward_model"]
"""What ranks train: a policy, a policy on pairs, or a reward model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """`model_path` is the folder or hub name to load (of a made model: where it is kept); `temperature` that of the
    distribution the training tokens were sampled from; `device` is `cpu` or `cuda`. What is trained
    starts from `model_path`, a reward model too, whatever head that has; of `preference` it is a policy, on pairs.
    `routing` is what is done with the experts that engines chose."""

    model_path: str
    model: ModelConfig
    trainer: TrainerConfig
    temperature: float = 1.0
    device: str = "cpu"
    trains: Trained = "policy"
    routing: RoutingMode = "ignore"
    seed: int = 0
    """The run's."""

    @property
    def bucket_bytes(self) -> int:
        return int(self.trainer.weight_sync.bucket_megabytes * 2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateArguments:
    """What changes from update to update: passes over the batch, the weight of the KL term, and whether the policy
    takes steps (a critic may learn alone at first)."""

    epochs: int = 1
    kl_coefficient: float = 0.0
    policy_learns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTerms:
    """What the loss of pairs reads beside the model: by how much the scores of each pair should differ, `margins`
    `float32 [pairs]` in the order of the batch, and KTO's point of reference, `baseline`, in nats."""

    margins: NDArray[np.float32]
    baseline: float = 0.0
