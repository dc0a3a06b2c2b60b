"""Settings of rollouts: sampling, engines, deadlines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlhf.config import Config
from rlhf.types import Sampling

REFUSED = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class SamplingConfig(Config):
    """The distribution that training samples from; the learner's log-softmax uses the same temperature."""

    temperature: float = Field(1.0, ge=0.01, le=2)
    """Softmax temperature, in the range of vLLM."""
    max_tokens: int = Field(16, ge=1)
    """Maximum length of a reply in tokens."""
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Token ids that end a reply, in addition to the end of a turn in the model's chat template."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a reply; the last token of such a text is part of the reply."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_truncated_distributions(cls, values: Any) -> Any:
        for key in REFUSED:
            if isinstance(values, dict) and key in values:
                raise ValueError(
                    f"{key} is refused for training: it changes the distribution, and log-probs must be those of the "
                    "whole one; use temperature"
                )
        return values

    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


class RolloutConfig(Config):
    """Settings of engines and episodes."""

    engines: int = Field(1, ge=1)
    """Number of vLLM engines."""
    tensor_parallel_size: int | tuple[int, ...] = 1
    """GPUs (or CPU processes) of one node that an engine is split over. A list has one for every engine, for instance
    `[1, 1, 2]`, and its length is then the default of `engines`."""
    cpus_per_engine: float = Field(0.5, gt=0)
    """CPU cores reserved for an engine. It runs this many threads, rounded down, at least 1. Below 1, engines and ranks
    share cores."""
    gpus_per_engine: float = Field(0, ge=0)
    """GPUs that an engine reserves, for each tensor-parallel rank."""
    kv_cache_megabytes: int = Field(256, ge=8)
    """Size of an engine's KV cache on a CPU."""
    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)
    """Share of a GPU's memory that an engine reserves."""
    max_sequences: int | None = Field(None, ge=1)
    """Maximum number of sequences that an engine runs at once. Default: 256 on a CPU, vLLM's choice on a GPU (1024 from
    70 GB on, except on an A100; else 256)."""
    max_context_tokens: int | None = Field(None, ge=8)
    """Maximum length of prompt plus reply in tokens; default: the model's own limit."""
    routing: Literal["auto", "replay", "compare", "ignore"] = "auto"
    """Mixture of experts: the learner uses the experts that the engine chose for each token (`replay`); or it chooses
    itself, and the difference is measured (`compare`) or not (`ignore`). `auto` replays for model families whose
    recorded choices were verified to match the engine's, on CPUs with engines of one process, and ignores them
    elsewhere."""
    max_concurrent_groups: int | None = Field(None, ge=1)
    """Number of groups played at once; default: the number of tickets."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for an engine to start."""
    generate_timeout_seconds: float = Field(300, gt=0)
    """Deadline for one reply, from when the engine receives the request, without pauses for weight syncs. A reply that
    exceeds it is truncated and keeps the tokens sampled so far."""
    weight_sync_timeout_seconds: float = Field(120, gt=0)
    """Deadline for each phase of a weight sync."""
    structured_outputs: bool = False
    """Obey an agent's `tool_choice` and `response_format`: vLLM holds such replies to a grammar. They are recorded and
    not trained, because the learner's distribution has no grammar. Without it these fields are ignored."""
    silence_timeout_seconds: float = Field(30, ge=1)
    """An engine whose process does not answer for this time is lost. A new engine replaces it, and other engines take
    over its requests."""
    min_engines: int = Field(1, ge=1)
    """The run ends when fewer engines than this are left and the lost ones could not be replaced."""
    vllm: dict[str, Any] = Field({})
    """Further arguments of vLLM's engine, by its own names (`EngineArgs`, those of `vllm serve` with underscores), for
    instance `{enforce_eager: true, max_num_batched_tokens: 32768}`. Arguments that this library sets itself are
    refused; the error names the key to use instead."""
    env_vars: dict[str, str | int] = Field({})
    """Further environment variables of the engines' processes, for instance `{VLLM_USE_V2_MODEL_RUNNER: 0}`."""

    @field_validator("tensor_parallel_size", mode="before")
    @classmethod
    def _are_sizes(cls, given: Any) -> Any:
        sizes = given if isinstance(given, list | tuple) else (given,)
        if not sizes or not all(type(size) is int and size >= 1 for size in sizes):
            raise ValueError("give a whole number above 0, or a list with one for every engine")
        return given

    @model_validator(mode="before")
    @classmethod
    def _count_listed_engines(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(sizes := values.get("tensor_parallel_size"), list | tuple):
            return {"engines": max(len(sizes), 1)} | values
        return values

    @model_validator(mode="after")
    def _every_engine_has_a_size(self) -> RolloutConfig:
        if len(self.tensor_parallel_sizes) != self.engines:
            raise ValueError(
                f"engines is {self.engines}, but tensor_parallel_size lists "
                f"{len(self.tensor_parallel_sizes)}; leave engines out, or list a size for every engine"
            )
        if self.min_engines > self.engines:
            raise ValueError(f"min_engines is {self.min_engines}, but there are only {self.engines} engines")
        return self

    @property
    def quantised(self) -> str:
        """The argument that makes engines coarser than the learner, or ""."""
        for name in ("quantization", "kv_cache_dtype"):
            if (value := self.vllm.get(name)) not in (None, "auto", "bfloat16", "float16"):
                return f"rollout.vllm.{name} is {value}"
        return ""

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """The tensor-parallel size of every engine."""
        size = self.tensor_parallel_size
        return (size,) * self.engines if isinstance(size, int) else size
