"""What a learner rank needs to know: plain data, sent once at its start."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.models.config import ModelConfig
from rlhf.trainer.config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """`model_path` is the folder or hub name to load (of a made model: where it is kept); `temperature` that of the
    distribution the training tokens were sampled from; `device` is `cpu` or `cuda`."""

    model_path: str
    model: ModelConfig
    trainer: TrainerConfig
    temperature: float = 1.0
    device: str = "cpu"

    @property
    def bucket_bytes(self) -> int:
        return int(self.trainer.publish.bucket_megabytes * 2**20)
