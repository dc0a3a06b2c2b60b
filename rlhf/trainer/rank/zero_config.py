"""DeepSpeed's configuration, from a run's settings. Without torch, so that `rlhf plan` can read it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pydantic import ValidationError

from rlhf.errors import ConfigError
from rlhf.trainer.config import OptimizerConfig
from rlhf.trainer.settings import LearnerSettings


def deepspeed_config(
    settings: LearnerSettings, config: OptimizerConfig, world_size: int, parameters: int
) -> dict[str, Any]:
    """DeepSpeed's configuration file, as data."""
    sixteen = settings.model.dtype != "float32"
    # Stage 0 in 16 bits would add gradients up in 16 bits; stage 1 adds them in float32.
    stage = max(settings.trainer.deepspeed.zero_stage, 1 if sixteen else 0)
    own = settings.trainer.deepspeed.config
    given = {name: value for name, value in own.get("zero_optimization", {}).items() if value != "auto"}
    built: dict[str, Any] = {
        "communication_data_type": "fp32",
        "steps_per_print": None,
        **own,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": world_size,
        "gradient_clipping": config.max_grad_norm,
        "zero_optimization": _sharing(settings, stage, parameters) | given,
        "bf16": {"enabled": settings.model.dtype == "bfloat16"},
        "fp16": {**own.get("fp16", {}), "enabled": settings.model.dtype == "float16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own Adam for offloaded state is compiled at start; torch's fused one is not.
        "zero_force_ds_cpu_optimizer": False,
    }
    return _checked(built) if own else built


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration, its texts as DeepSpeed reads them. Raises `ConfigError` for values that DeepSpeed
    refuses; the recipe checks names."""
    sharing = config["zero_optimization"]
    try:
        read = deepspeed_module("runtime.zero.config").DeepSpeedZeroConfig(**sharing).model_dump(by_alias=True)
        numbers = {name: read[name] for name, value in sharing.items() if isinstance(value, str)}
        return config | {"zero_optimization": sharing | numbers}
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"trainer.deepspeed.config.zero_optimization.{name}: {first['msg']}") from None


def _sharing(settings: LearnerSettings, stage: int, parameters: int) -> dict[str, Any]:
    """Return DeepSpeed's settings of sharding and communication, for a model of this many `parameters`."""
    large = 50_000_000
    return {
        "stage": stage,
        "overlap_comm": settings.device == "cuda",
        "zero_hpz_partition_size": 1,
        "reduce_bucket_size": min(parameters, large),
        "stage3_prefetch_bucket_size": min(parameters // 10, large),
        "stage3_param_persistence_threshold": min(parameters // 1000, 100_000),
        **_offload(settings),
    }


def _offload(settings: LearnerSettings) -> dict[str, Any]:
    """Return which of optimizer and weights are kept in host memory, pinned if a GPU reads them."""
    deepspeed, place = settings.trainer.deepspeed, {"device": "cpu", "pin_memory": settings.device == "cuda"}
    chosen = {"offload_optimizer": deepspeed.offload_optimizer, "offload_param": deepspeed.offload_parameters}
    return {name: place for name, device in chosen.items() if device == "cpu"}


def deepspeed_module(name: str = "") -> Any:
    """DeepSpeed, or one of its modules. It is imported late: it reads the accelerator from the environment then."""
    return import_module(f"deepspeed.{name}" if name else "deepspeed")
