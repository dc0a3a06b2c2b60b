"""The paths that torch and vLLM take on a processor without AVX-512 and bfloat16 instructions, on one that has them.

`RLHF_TEST_OLDER_PROCESSOR=1` (`make test-older-processor`) asks for it. The libraries' own variables choose the kernels
of torch and oneDNN; vLLM asks torch which of its three libraries to load, and is told what such a processor would say.
"""

from __future__ import annotations

import os

ASKED = "RLHF_TEST_OLDER_PROCESSOR"
KERNELS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def pretend() -> None:
    """Before torch computes anything in this process, if it was asked for."""
    if not os.environ.get(ASKED):
        return
    os.environ.update(KERNELS)
    import torch

    for question in ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        setattr(torch.cpu, question, lambda: False)
