"""How episodes are played: sampling, engines, deadlines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlhf.config import Config
from rlhf.types import Sampling

REFUSED = {
    "top_p": "1 (off)",
    "top_k": "-1 (off)",
    "min_p": "0 (off)",
    "repetition_penalty": "1 (off)",
    "presence_penalty": "0 (off)",
    "frequency_penalty": "0 (off)",
}


class SamplingConfig(Config):
    """The distribution that training samples from; the learner's log-softmax uses the same."""

    temperature: float = Field(1.0, ge=0.01, le=10)
    """Softmax temperature. vLLM samples no colder than 0.01."""
    max_tokens: int = Field(16, ge=1)
    """Longest reply in tokens."""
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Tokens at which a reply ends, beside the end of a turn of the model's chat template."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts with which a reply ends, the last token that makes one included."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_truncated_distributions(cls, values: Any) -> Any:
        for key in REFUSED:
            if isinstance(values, dict) and key in values:
                raise ValueError(
                    f"{key} is refused for training: log-probs must be those of the whole distribution "
                    "that was sampled from; use temperature"
                )
        return values

    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


class RolloutConfig(Config):
    """Engines and episodes."""

    engines: int = Field(1, ge=1)
    """vLLM engines."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs (or CPU processes) an engine is cut over."""
    cpus_per_engine: float = Field(0.5, gt=0)
    """Cores an engine takes; threads are its floor, at least 1. Shares below 1 let engines and ranks take turns."""
    gpus_per_engine: float = Field(0, ge=0)
    """GPUs an engine takes, for each tensor-parallel rank."""
    kv_cache_megabytes: int = Field(256, ge=8)
    """Memory of an engine's KV cache on a CPU."""
    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)
    """Share of a GPU's memory that an engine takes."""
    max_sequences: int = Field(256, ge=1)
    """Sequences an engine runs at once."""
    max_context_tokens: int | None = Field(None, ge=8)
    """Longest prompt plus reply; the model's own limit when absent."""
    routing: Literal["auto", "replay", "compare", "ignore"] = "auto"
    """Mixture of experts: the learner takes the experts that the engine chose for each token (`replay`), or chooses
    itself and the difference is measured (`compare`), or not (`ignore`). `auto` replays where the choices of a family
    were measured to be those of the engine, on CPUs with engines of one process, and ignores them elsewhere."""
    max_concurrent_groups: int | None = Field(None, ge=1)
    """Groups played at once; as many as there are tickets when absent."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for an engine to start."""
    generate_timeout_seconds: float = Field(300, gt=0)
    """Time that one reply may take once the engine has it, pauses for weight syncs not counted. One that takes longer
    is cut off there: truncated, with what was said so far."""
    weight_sync_timeout_seconds: float = Field(120, gt=0)
    """Deadline for each phase of a weight sync."""
