"""Settings of engines for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf.engines.config import RolloutConfig
from rlhf.engines.vllm.settings import EngineSettings, RefusedRequest
from rlhf.models.config import ModelConfig
from rlhf.types import Completion, SampledTokens


def made_settings(folder: Path | str, **given: Any) -> EngineSettings:
    """Settings of an engine on the model in `folder`; each of `given` is a field of `RolloutConfig`, of `ModelConfig`
    or of `EngineSettings`."""
    rollout, model = (
        {n: v for n, v in given.items() if n in known.model_fields} for known in (RolloutConfig, ModelConfig)
    )
    own = {name: value for name, value in given.items() if name not in rollout and name not in model}
    size = rollout.pop("tensor_parallel_size", 1)
    return EngineSettings(
        model_path=str(folder),
        model=ModelConfig(path=str(folder), **model),
        rollout=RolloutConfig(**rollout),
        tensor_parallel_size=size,
        **own,
    )


def ended(collected: Sequence[tuple[str, Any]]) -> dict[str, Completion | RefusedRequest]:
    """What has ended of what an engine returned, by request."""
    return {name: reply for name, reply in collected if not isinstance(reply, SampledTokens)}
