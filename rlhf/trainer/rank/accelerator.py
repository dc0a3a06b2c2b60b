"""Select DeepSpeed's accelerator: DeepSpeed reads it from the rank's environment when it is imported."""

from __future__ import annotations

import importlib
import os
from typing import Any


def choose_accelerator(device: str) -> None:
    """Set the accelerator explicitly on a CPU, so that DeepSpeed does not probe for one. Call it before the first
    import of DeepSpeed; transformers may import it too."""
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def deepspeed_module(name: str = "") -> Any:
    """DeepSpeed, or one of its modules."""
    import deepspeed

    return importlib.import_module(f"deepspeed.{name}") if name else deepspeed
