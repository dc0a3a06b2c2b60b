"""Environment variables that an engine's process needs before it imports torch or vllm."""

from __future__ import annotations

from typing import Literal


def engine_environment(device: Literal["cpu", "cuda"], threads: int) -> dict[str, str]:
    """For one engine process with `threads` threads.

    The engine runs inside its worker's process: vLLM's own child process costs half a minute of imports more, and
    dies unseen. Unbound threads make a step ten times slower. On a CPU the compiler is off, for it takes 10 s to save
    nothing on the sampler of a small model.
    """
    count = str(threads)
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
    }
    return environment | {"TORCH_COMPILE_DISABLE": "1"} if device == "cpu" else environment
