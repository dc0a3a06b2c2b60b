"""`python -m tests.goldens.gpu [--write]`: the configurations of all cases as JSON; `--write` makes them golden.

To be run when vLLM or DeepSpeed is changed, or a setting on GPUs on purpose; the difference is for a person to read.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

GIGABYTE = 2**30
CARD, MEMORY, CAPABILITY = "NVIDIA H100 80GB HBM3", 80 * GIGABYTE, (9, 0)
QUESTIONS = ("cutlass_scaled_mm_supports_block_fp8", "cutlass_scaled_mm_supports_fp8", "cutlass_group_gemm_supported")


class Memory:
    total, free, used = MEMORY, MEMORY, 0


class Extension(types.ModuleType):
    """An extension module without functions: nothing of it is called here."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def see_gpus(count: int) -> None:
    """From here on this process has `count` H100s, as far as vLLM can see. Called before anything imports vLLM."""
    for name in ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn"):
        sys.modules[name] = Extension(name)
    _answer_for_nvml(count)
    _answer_for_torch(count)
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatform

    vllm.platforms._current_platform = CudaPlatform()
    import vllm.config.vllm as config
    import vllm.device_allocator.cumem as allocator
    import vllm.model_executor.models.registry as registry

    allocator.cumem_available = True  # an extension that sleep needs
    config.HAS_TRITON = True
    # vLLM inspects a model's class in a child process, which would see no GPU.
    registry._run_in_subprocess = lambda work: work()


def be_in_a_ray_actor() -> None:
    """From here on vLLM finds itself in a Ray actor with a placement group, as an engine's worker is."""
    import ray.util
    import vllm.engine.arg_utils as arg_utils
    from ray.util.placement_group import PlacementGroup

    arg_utils.is_in_ray_actor = lambda: True
    ray.util.get_current_placement_group = PlacementGroup.empty


def _answer_for_nvml(count: int) -> None:
    import vllm.third_party.pynvml as nvml

    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: CAPABILITY,
        "nvmlDeviceGetName": lambda handle: CARD,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: Memory,
        "nvmlDeviceGetP2PStatus": lambda *of: nvml.NVML_P2P_STATUS_OK,
    }
    for name, answer in answers.items():
        setattr(nvml, name, answer)


def _answer_for_torch(count: int) -> None:
    import torch

    torch.cuda.device_count = torch.cuda._device_count_nvml = lambda: count
    torch.cuda._is_compiled = lambda: True
    library = torch.library.Library("_C", "FRAGMENT")
    for name in QUESTIONS:
        library.define(f"{name}(int capability) -> bool")
        library.impl(name, lambda capability: True, "CompositeExplicitAutograd")
    KEPT.append(library)


KEPT: list[Any] = []
"""A library of operators ends with its object."""


NODE = 8


def main() -> None:
    """See the GPUs of one node, and ask for every case."""
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    see_gpus(NODE)
    be_in_a_ray_actor()
    from tests.goldens.gpu.cases import CASES, GOLDEN, engine_config, learner_config, model_folder, recipe_of

    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(Path(folder))
        recipes = {name: recipe_of(case) for name, case in CASES.items()}
        found = {
            name: {"engine": engine_config(recipe, model), "learner": learner_config(recipe, model)}
            for name, recipe in recipes.items()
        }
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if "--write" in sys.argv[1:]:
        GOLDEN.write_text(text)
    print(text, end="")


main()
