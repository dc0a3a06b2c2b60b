"""Names of DeepSpeed's configuration that a recipe may set in `trainer.deepspeed.config`, and names that it may not.

DeepSpeed itself is not imported: a wrong name is refused within the second that a recipe takes to check.
`tests/trainer/test_deepspeed_names.py` holds the names to DeepSpeed's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.config import did_you_mean

ALLOWED = frozenset(
    [
        "comms_logger",
        "communication_data_type",
        "csv_monitor",
        "dump_state",
        "flops_profiler",
        "fp16",
        "memory_breakdown",
        "steps_per_print",
        "tensorboard",
        "wall_clock_breakdown",
        "wandb",
        "zero_optimization",
    ]
)
ALLOWED_FP16 = frozenset(
    ["consecutive_hysteresis", "hysteresis", "initial_scale_power", "loss_scale", "loss_scale_window", "min_loss_scale"]
)
ALLOWED_ZERO = frozenset(
    [
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "enable_sanity_checks",
        "ignore_unused_parameters",
        "leaf_module",
        "log_trace_cache_warnings",
        "memory_efficient_linear",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage3_allgather_sequential",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "use_multi_rank_bucket_allreduce",
        "zero_hpz_partition_size",
        "zero_quantized_gradients",
        "zero_quantized_weights",
    ]
)
DECIDED: Mapping[str, str] = {
    "train_batch_size": "batches are trainer.groups_per_update and trainer.group_size",
    "train_micro_batch_size_per_gpu": "micro-batches are trainer.tokens_per_microbatch",
    "gradient_accumulation_steps": "trainer.tokens_per_microbatch determines the number of micro-batches of a step",
    "gradient_clipping": "set trainer.optimizer.max_grad_norm",
    "optimizer": "set trainer.optimizer",
    "scheduler": "set trainer.optimizer.schedule",
    "bf16": "set model.dtype",
    "amp": "set model.dtype",
    "torch_autocast": "set model.dtype",
    "data_types": "gradients of micro-batches always add up in float32",
    "gradient_predivide_factor": "gradients are summed in float32, where nothing overflows",
    "prescale_gradients": "gradients are summed in float32, where nothing overflows",
    "disable_allgather": "DeepSpeed itself does not read it",
    "checkpoint": "checkpoints are the run's own, see docs/resume.md",
    "activation_checkpointing": "set model.gradient_checkpointing and model.offload_activations",
    "expert_parallel": "weight syncs and checkpoints hold whole experts, see docs/recipes.md",
    "zero_allow_untested_optimizer": "the optimizer is torch's AdamW",
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's AdamW",
    "tensor_parallel": "learners share a model by ZeRO and trainer.deepspeed.sequence_parallel",
    "sequence_parallel_size": "set trainer.deepspeed.sequence_parallel",
    "elasticity": "the ranks of a run are trainer.deepspeed.ranks",
}
DECIDED_FP16: Mapping[str, str] = {"enabled": "set model.dtype", "auto_cast": "set model.dtype"}
DECIDED_ZERO: Mapping[str, str] = {
    "stage": "set trainer.deepspeed.zero_stage",
    "offload_optimizer": "set trainer.deepspeed.offload_optimizer",
    "offload_param": "set trainer.deepspeed.offload_parameters",
    "cpu_offload": "set trainer.deepspeed.offload_optimizer",
    "cpu_offload_param": "set trainer.deepspeed.offload_parameters",
    "zero_quantized_nontrainable_weights": "shards are sent and saved as they are held",
    "zenflow": "an update ends with all of its optimizer steps",
    "elastic_checkpoint": "any number of ranks reads a checkpoint anyway",
    "load_from_fp32_weights": "checkpoints hold the master weights",
    "stage3_gather_16bit_weights_on_model_save": "every checkpoint has a ready model folder",
    "legacy_stage1": "DeepSpeed itself refuses it",
}
KEY = "trainer.deepspeed.config"
SECTIONS: Mapping[str, tuple[frozenset[str], Mapping[str, str]]] = {
    "": (ALLOWED, DECIDED),
    "fp16": (ALLOWED_FP16, DECIDED_FP16),
    "zero_optimization": (ALLOWED_ZERO, DECIDED_ZERO),
}


def check_names(config: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a name that is unknown, or not the recipe's to set."""
    for section, (allowed, decided) in SECTIONS.items():
        values = config.get(section, {}) if section else config
        prefix = f"{KEY}.{section}" if section else KEY
        if not isinstance(values, Mapping):
            raise ValueError(f"{prefix} is a mapping of DeepSpeed's names, not {values!r}")
        for name in values:
            if name in decided:
                raise ValueError(f"{prefix}.{name} is not set there: {decided[name]}")
            if name not in allowed:
                hint = did_you_mean(name, [*allowed, *decided], f"; names are {', '.join(sorted(allowed))}")
                raise ValueError(f"unknown key {prefix + '.' + name!r}{hint}")
