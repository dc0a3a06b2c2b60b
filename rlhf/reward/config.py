"""What is rewarded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf.config import Config, compiled_pattern


class RewardConfig(Config):
    """One rule, a function of your own, or a reward model."""

    kind: Literal["exact", "regex", "math", "function", "model", "none"] = "exact"
    """`exact`: the reply equals the answer; `regex`: `pattern` is found, and the group of its last match (where it has
    one) equals the answer; `math`: math-verify finds the same value; `function`: your own; `model`: the score of a
    reward model; `none`: nothing is scored and every episode counts 0, for what reads no reward (kind: distill)."""
    pattern: str | None = None
    """Regular expression of kind `regex`."""
    function: str | None = None
    """`module:function` of kind `function`: `(response, row) -> float`, run in a worker process that can be killed."""
    model: str | None = None
    """Reward model of kind `model`: a folder or hub name of a sequence-classification model with one label, or the run
    folder of a recipe of kind: reward_model. Its tokenizer is the policy's."""
    workers: int = Field(1, ge=1)
    """Worker processes of kinds `regex`, `math`, `function` and `model`."""
    timeout_seconds: float = Field(10, gt=0)
    """Deadline for one response; a scorer that passes it is killed and the response is unscored. For kind `model`, the
    deadline for one batch of responses."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the reward model."""
    tokens_per_batch: int = Field(4096, ge=1)
    """Tokens that a reward model computes at once."""
    cpus_per_worker: float = Field(0.5, gt=0)
    """Cores a reward model's worker takes; threads are its floor, at least 1."""
    gpus_per_worker: float = Field(0, ge=0)
    """GPUs a reward model's worker takes."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for a reward model to load."""

    @model_validator(mode="after")
    def _complete(self) -> RewardConfig:
        if self.kind == "regex" and not self.pattern:
            raise ValueError("reward.pattern is required by kind: regex")
        if self.pattern:
            compiled_pattern(self.pattern)
        if self.kind == "function" and (not self.function or ":" not in self.function):
            raise ValueError("reward.function is required by kind: function, as module:function")
        if (self.kind == "model") != (self.model is not None):
            raise ValueError(
                "reward.model names the reward model of kind: model, and is required by it; give both or neither"
            )
        return self

    @property
    def needs_answer(self) -> bool:
        """Whether the rule compares with the task's answer."""
        if self.kind == "regex":
            return compiled_pattern(self.pattern or "").groups > 0
        return self.kind in ("exact", "math")
