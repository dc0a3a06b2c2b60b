"""What a learner rank needs to know: plain data, sent once at its start."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.trainer.config import DeepSpeedConfig, LossConfig, OptimizerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """`model_path` is a Hugging Face folder or hub name; `optimizer_steps` the length of the learning-rate schedule;
    `temperature` that of the distribution the training tokens were sampled from; `device` is `cpu` or `cuda`."""

    model_path: str
    optimizer_steps: int
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    temperature: float = 1.0
    old_logprobs: str = "behaviour"
    importance_cap: float = 2.0
    dtype: str = "float32"
    attention: str = "sdpa"
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    device: str = "cpu"
    bucket_bytes: int = 4 << 20
