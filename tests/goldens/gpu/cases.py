"""Recipes for GPUs, by name, and what vLLM and DeepSpeed make of each: plain values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf.config import build
from rlhf.recipe.schema import Recipe

LLAMA_8B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
PARAMETERS = 8_030_261_248

GOLDEN = Path(__file__).with_name("configs.json")
TAKEN_BACK = {"async_scheduling": False, "enforce_eager": True, "enable_chunked_prefill": False}
CASES: Mapping[str, Mapping[str, Any]] = {
    "1 GPU, half each": {"rollout": {"gpus_per_engine": 0.5}, "ranks": 1, "gpus_per_rank": 0.5},
    "8 GPUs, colocated, TP 2": {
        "rollout": {"gpus_per_engine": 1, "tensor_parallel_size": 2, "engines": 4, "gpu_memory_utilization": 0.85},
        "ranks": 8, "cluster": {"placement": "colocated"},
    },
    "8 GPUs, TP 2": {"rollout": {"gpus_per_engine": 1, "tensor_parallel_size": 2, "engines": 2}, "ranks": 4},
    "TP 2, four things taken back": {
        "rollout": {
            "gpus_per_engine": 1, "tensor_parallel_size": 2, "vllm": TAKEN_BACK,
            "env_vars": {"VLLM_USE_V2_MODEL_RUNNER": 0},
        },
        "ranks": 1,
    },
    "TP 1, fp8": {
        "rollout": {
            "gpus_per_engine": 1, "max_sequences": 128,
            "vllm": {"quantization": "fp8", "kv_cache_dtype": "fp8", "max_num_batched_tokens": 32768},
        },
        "ranks": 1,
        "trainer": {
            "mismatch": "ignore", "proximal_logprobs": "recomputed", "weight_sync": {"tolerance": 0.5},
        },
    },
    "TP 1, speculative": {
        "rollout": {
            "gpus_per_engine": 1,
            "vllm": {
                "speculative_config": {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
                "attention_backend": "FLASH_ATTN",
            },
        },
        "ranks": 1,
    },
}  # fmt: skip


def recipe_of(case: Mapping[str, Any]) -> Recipe:
    deepspeed = {"ranks": case["ranks"], "gpus_per_rank": case.get("gpus_per_rank", 1), "zero_stage": 3}
    return build(
        Recipe,
        {
            "name": "golden",
            "model": {"path": "llama-8b", "dtype": "bfloat16"},
            "data": {"train": {"path": "rows.jsonl"}},
            "rollout": case["rollout"],
            "cluster": case.get("cluster", {}),
            "reward": {"kind": "exact"},
            "trainer": {"deepspeed": deepspeed} | case.get("trainer", {}),
        },
    )


def model_folder(folder: Path) -> Path:
    """A folder with nothing but the shape of an 8B Llama."""
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


def engine_config(recipe: Recipe, model: Path) -> dict[str, Any]:
    """What vLLM decides for the recipe's engines."""
    from vllm.v1.executor import Executor

    from rlhf.controller.build import engine_settings
    from rlhf.engines.vllm.engine_arguments import engine_args, usage_context
    from rlhf.engines.vllm.settings import requests_have_seeds
    from rlhf.recipe.workers import engine_roles, engine_sizes

    (role,) = engine_roles(recipe)
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    os.environ.update(role.env)
    settings = engine_settings(recipe, str(model), (), publishes=True)
    settings = replace(settings, tensor_parallel_size=engine_sizes(recipe)[role.name][1])
    made = engine_args(settings).create_engine_config(usage_context(settings))
    scheduler, compilation, parallel = made.scheduler_config, made.compilation_config, made.parallel_config
    return {
        "executor": Executor.get_class(made).__name__,
        "worker": parallel.worker_cls,
        "model_runner": 2 if made.use_v2_model_runner else 1,
        "seeds": requests_have_seeds(settings, model_runner=2 if made.use_v2_model_runner else 1),
        "async_scheduling": scheduler.async_scheduling,
        "batches_at_once": made.max_concurrent_batches,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "max_model_len": made.model_config.max_model_len,
        "prefix_caching": made.cache_config.enable_prefix_caching,
        "kv_cache_dtype": made.cache_config.cache_dtype,
        "gpu_memory_utilization": made.cache_config.gpu_memory_utilization,
        "kv_cache_memory_bytes": made.cache_config.kv_cache_memory_bytes,
        "sleep_mode": made.model_config.enable_sleep_mode,
        "compilation": compilation.mode.name,
        "graphs": compilation.cudagraph_mode.name,
        "largest_graph": compilation.max_cudagraph_capture_size,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "nodes": parallel.nnodes,
        "dtype": str(made.model_config.dtype),
        "quantization": made.model_config.quantization,
        "attention_backend": made.attention_config.backend and made.attention_config.backend.name,
        "speculative": made.speculative_config and made.speculative_config.method,
        "logprobs_mode": made.model_config.logprobs_mode,
        "weight_transfer": made.weight_transfer_config and made.weight_transfer_config.backend,
    }


def learner_config(recipe: Recipe, model: Path) -> dict[str, Any]:
    """What DeepSpeed reads from the configuration of the recipe's ranks."""
    from deepspeed.runtime import config as deepspeed

    from rlhf.controller.build import learner_settings
    from rlhf.trainer.rank.zero_config import deepspeed_config

    settings = learner_settings(recipe, str(model))
    ranks = recipe.trainer.deepspeed.ranks
    deepspeed.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: ranks)
    read = deepspeed.DeepSpeedConfig(deepspeed_config(settings, recipe.trainer.optimizer, ranks, PARAMETERS))
    zero = read.zero_config
    return {
        "train_batch_size": read.train_batch_size,
        "bfloat16": read.bfloat16_config.enabled,
        "gradient_clipping": read.gradient_clipping,
        "grad_accum_dtype": read.grad_accum_dtype,
        "communication_data_type": str(read.communication_data_type),
        "zero": json.loads(zero.model_dump_json(exclude_unset=True)),
    }
