"""The arguments of vLLM's engine for the settings of one engine: ours, and above them those of `rollout.vllm`.

`tests/goldens/gpu/` records what vLLM makes of them on GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.config import StructuredOutputsConfig, WeightTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext

from rlhf.engines.vllm.settings import CPU_SEQUENCES, EngineSettings

CPU_MEMORY_SHARE = 0.01
"""On a CPU vLLM checks that this share of RAM is free, and allocates `kv_cache_megabytes` of it."""
WORKER_EXTENSION = "rlhf.weight_sync.vllm_worker.WorkerExtension"
SLOT_RANKS = (1, 8, 16, 32, 64, 128, 256, 512)
"""The adapter ranks that vLLM supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """What the arguments depend on in a model: multi-head latent attention, and layers that carry a state."""

    latent_attention: bool = False
    carries_state: bool = False


def engine_args(settings: EngineSettings, kind: ModelKind = ModelKind()) -> EngineArgs:
    """Return the engine's arguments. `generation_config="vllm"`: a model folder's `generation_config.json` has no
    effect."""
    on_cpu, model, rollout = settings.device == "cpu", settings.model, settings.rollout
    ours: dict[str, Any] = {
        "model": settings.model_path,
        # To detect stop texts vLLM decodes while sampling, and grammars are made for the tokenizer's texts.
        "skip_tokenizer_init": not (settings.stop or rollout.structured_outputs or model.tower),
        "trust_remote_code": model.trust_remote_code,
        "dtype": model.dtype,
        "generation_config": "vllm",
        "language_model_only": model.tower is None,  # of a multimodal model, without its towers
        "mm_processor_cache_gb": 0,  # images come processed
        "mm_device_do_normalize": False,
        "logprobs_mode": "processed_logprobs",
        "max_model_len": rollout.max_context_tokens,
        "max_num_seqs": rollout.max_sequences or (CPU_SEQUENCES if on_cpu else None),
        "tensor_parallel_size": settings.tensor_parallel_size,
        # By default vLLM chooses Ray inside a Ray worker, finds a foreign placement group, and refuses.
        "distributed_executor_backend": "mp" if settings.tensor_parallel_size > 1 else None,
        "enforce_eager": on_cpu,
        "gpu_memory_utilization": CPU_MEMORY_SHARE if on_cpu else rollout.gpu_memory_utilization,
        "kv_cache_memory_bytes": rollout.kv_cache_megabytes * 2**20 if on_cpu else None,
        "weight_transfer_config": WeightTransferConfig(backend=settings.weight_transfer)
        if settings.weight_transfer
        else None,
        "worker_extension_cls": WORKER_EXTENSION,
        "enable_prefix_caching": not (on_cpu and kind.carries_state),  # states need chunked prefill
        # vLLM rewinds the generator of a prompt split over two steps, which a CPU generator cannot do: prompts stay
        # whole.
        "enable_chunked_prefill": not on_cpu,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enable_return_routed_experts": settings.records_routing and not on_cpu,
        "enable_sleep_mode": settings.sleeps and not on_cpu,
        "sleep_preserve_parameter_names": ["draft.*"] if settings.sleeps and not on_cpu else [],  # never sent
    }
    if rollout.structured_outputs:
        # By default vLLM keeps the backend of the first request, and later ones may not suit it.
        ours["structured_outputs_config"] = StructuredOutputsConfig(backend="xgrammar")
    if on_cpu and kind.latent_attention:
        # vLLM's CPU kernel for rotary embeddings misreads heads that only partly rotate, as in latent attention.
        ours["compilation_config"] = {"custom_ops": ["-rotary_embedding"]}
    return EngineArgs(**(ours | lora_arguments(settings) | rollout.vllm))


def usage_context(settings: EngineSettings) -> UsageContext:
    """Select the row of vLLM's tables of batch sizes: on a GPU that of offline inference. `ENGINE_CONTEXT`, the default
    of `LLMEngine`, has no row and means 2,048 tokens a step on every GPU."""
    return UsageContext.ENGINE_CONTEXT if settings.device == "cpu" else UsageContext.LLM_CLASS


def lora_arguments(settings: EngineSettings) -> dict[str, Any]:
    """Return vLLM's arguments for the adapters of the settings, of this rank or a lower one; empty without any."""
    lora = settings.model.lora
    if lora is None:
        return {}
    return {
        "enable_lora": True,
        "max_loras": len(settings.policies),
        "max_lora_rank": min(size for size in SLOT_RANKS if size >= lora.rank),
        "lora_target_modules": list(lora.target_modules),
    }
