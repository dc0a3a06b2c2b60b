"""What is rewarded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf.config import Config, compiled_pattern


class RewardConfig(Config):
    """One rule, or a function of your own."""

    kind: Literal["exact", "regex", "math", "function"] = "exact"
    """`exact`: the reply equals the answer; `regex`: `pattern` is found, and the group of its last match (where it has
    one) equals the answer; `math`: math-verify finds the same value; `function`: your own."""
    pattern: str | None = None
    """Regular expression of kind `regex`."""
    function: str | None = None
    """`module:function` of kind `function`: `(response, row) -> float`, run in a worker process that can be killed."""
    workers: int = Field(1, ge=1)
    """Worker processes of kinds `regex`, `math` and `function`."""
    timeout_seconds: float = Field(10, gt=0)
    """Deadline for one response; a scorer that passes it is killed and the response is unscored."""

    @model_validator(mode="after")
    def _complete(self) -> RewardConfig:
        if self.kind == "regex" and not self.pattern:
            raise ValueError("reward.pattern is required by kind: regex")
        if self.pattern:
            compiled_pattern(self.pattern)
        if self.kind == "function" and (not self.function or ":" not in self.function):
            raise ValueError("reward.function is required by kind: function, as module:function")
        return self

    @property
    def needs_answer(self) -> bool:
        """Whether the rule compares with the task's answer."""
        if self.kind == "regex":
            return compiled_pattern(self.pattern or "").groups > 0
        return self.kind in ("exact", "math")
