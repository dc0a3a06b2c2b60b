"""Environment variables that an engine's process needs before it imports torch or vllm."""

from __future__ import annotations

from typing import Literal


def engine_environment(device: Literal["cpu", "cuda"]) -> dict[str, str]:
    """For the process of one engine; its threads are the cluster's business.

    The engine runs inside its worker's process: a child process of vLLM's own costs half a minute of imports more,
    and dies unseen. On a CPU the compiler is off, for it takes 10 s for the first sampled token and saves nothing
    after; tensor-parallel processes keep the threads they are given, for vLLM would want a NUMA node for each; and
    torch does not say to which node it bound its memory.
    """
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    on_cpu = {
        "TORCH_COMPILE_DISABLE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return environment | on_cpu if device == "cpu" else environment
