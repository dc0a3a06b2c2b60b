"""Check the vLLM arguments and variables in a recipe, without importing vLLM.

Names are read from vLLM's source. Everything that vLLM knows passes, except what this library sets: what the learner
and the weight sync depend on, and arguments that have another key in the recipe.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf.config import did_you_mean
from rlhf.errors import ConfigError

_ENGINES = "engines are workers of the recipe: use rollout.engines and rollout.tensor_parallel_size"
_STEPPED = "the worker steps the engine and relies on vLLM's own classes"
_REASONS: Mapping[str, str] = {
    "the learner trains and sends this model: use model.path": (
        "model model_weights revision code_revision hf_config_path config_format hf_overrides model_class_overrides "
        "runner convert served_model_name"
    ),
    "prompts and replies are tokens, and only texts in sampling.stop need a tokenizer": (
        "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init tokens_only"
    ),
    "learner and engines share one type: use model.dtype": "dtype",
    "use model.trust_remote_code": "trust_remote_code",
    "use rollout.max_context_tokens": "max_model_len",
    "use rollout.max_sequences": "max_num_seqs",
    "use rollout.gpu_memory_utilization": "gpu_memory_utilization",
    "use rollout.tensor_parallel_size": "tensor_parallel_size",
    "use rollout.structured_outputs": "structured_outputs_config",
    "use rollout.routing": "enable_return_routed_experts",
    "each request has its seed, from the recipe's seed": "seed",
    "the placement decides it: use rollout.tensor_parallel_size and rollout.gpus_per_engine": (
        "distributed_executor_backend device_ids ray_workers_use_nsight"
    ),
    _ENGINES: "pipeline_parallel_size prefill_context_parallel_size decode_context_parallel_size enable_elastic_ep",
    "an engine runs on one node: across nodes, vLLM's processes accept pickles from anyone who reaches their ports": (
        "nnodes node_rank master_addr master_port"
    ),
    _STEPPED: (
        "worker_cls worker_extension_cls scheduler_cls scheduling_policy stream_interval max_num_queued_reqs "
        "max_num_queued_tokens reasoning_parser _api_process_count _api_process_rank"
    ),
    "log-probs must be those of the whole distribution that was sampled from, as the learner computes it": (
        "generation_config override_generation_config logprobs_mode max_logprobs logits_processors watermark_config "
        "diffusion_config pooler_config"
    ),
    "weights come from the learner: use trainer.weight_sync": (
        "weight_transfer_config kv_transfer_config ec_transfer_config"
    ),
    "a weight sync reloads layer by layer, which vLLM cannot do with weights in the machine's memory": (
        "cpu_offload_gb cpu_offload_params offload_backend offload_params offload_group_size offload_num_in_group "
        "offload_prefetch_step"
    ),
    "adapters come from the learner: use model.lora": (
        "enable_lora max_loras max_lora_rank lora_target_modules lora_dtype fully_sharded_loras max_cpu_loras "
        "specialize_active_lora default_mm_loras"
    ),
    "models are trained on text alone: engines load only the language part": (
        "language_model_only mm_encoder_only enable_mm_embeds"
    ),
    "an engine sleeps where it shares its GPU with the learner: use cluster.placement": (
        "enable_sleep_mode sleep_preserve_parameter_names sleep_mode_offload_cudagraph"
    ),
}

DECIDED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Arguments that a recipe cannot give, with the reason. So are all whose names begin with `data_parallel`."""

DECIDED_VARIABLES: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": _STEPPED,
    "VLLM_TARGET_DEVICE": "the device follows from rollout.gpus_per_engine",
    "VLLM_CPU_KVCACHE_SPACE": "use rollout.kv_cache_megabytes",
    "CUDA_VISIBLE_DEVICES": "Ray gives every worker its GPUs: use rollout.gpus_per_engine",
    "OMP_NUM_THREADS": "threads follow from cores: use rollout.cpus_per_engine",
}
"""Variables that a recipe cannot give to engines, with the reason."""


def check_arguments(given: Iterable[str], setting: str, known: Callable[[], list[str]] | None = None) -> None:
    """Check names of vLLM's engine arguments; `known` lists those that vLLM has. Raises `ConfigError`."""
    for name in given:
        reason = _ENGINES if name.startswith("data_parallel") else DECIDED.get(name)
        if reason:
            raise ConfigError(f"{setting}.{name} is set by this library: {reason}")
        if name not in (there := (known or vllm_arguments)()):
            raise ConfigError(f"{setting}.{name} is not an argument of vLLM's engine{did_you_mean(name, there)}")


def check_variables(given: Iterable[str], setting: str, known: Callable[[], list[str]] | None = None) -> None:
    """Check names of variables for engines: those of vLLM exist. Others belong to other libraries. Raises
    `ConfigError`."""
    for name in given:
        if reason := DECIDED_VARIABLES.get(name):
            raise ConfigError(f"{setting}.{name} is set by this library: {reason}")
        if name.startswith("VLLM_") and name not in (there := (known or vllm_variables)()):
            raise ConfigError(f"{setting}.{name} is not a variable of vLLM{did_you_mean(name, there)}")


def vllm_arguments() -> list[str]:
    """Return the names of all arguments of the installed vLLM's engine."""
    classes = [node for node in _parsed("engine/arg_utils.py") if isinstance(node, ast.ClassDef)]
    (arguments,) = (node for node in classes if node.name == "EngineArgs")
    fields: list[Any] = [field for field in arguments.body if isinstance(field, ast.AnnAssign)]
    return [field.target.id for field in fields]


def vllm_variables() -> list[str]:
    """Return the names of all environment variables that the installed vLLM reads by its own list."""
    nodes: list[Any] = [node for node in _parsed("envs.py") if isinstance(node, ast.AnnAssign)]
    (listed,) = (node.value for node in nodes if node.target.id == "environment_variables")
    return [key.value for key in listed.keys]


def _parsed(file: str) -> list[Any]:
    package = find_spec("vllm")
    if package is None or package.origin is None:
        raise ConfigError("vllm is not installed: make setup")
    return ast.parse(Path(package.origin).parent.joinpath(file).read_text()).body
