"""DeepSpeed chooses its accelerator when it is imported: by the environment that a rank sets as it starts."""

from __future__ import annotations

import importlib
import os
from typing import Any


def choose_accelerator(device: str) -> None:
    """On a CPU nothing is to be found out. Before the first import of DeepSpeed; transformers may import it too."""
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def deepspeed_module(name: str = "") -> Any:
    """DeepSpeed, or one of its modules."""
    import deepspeed

    return importlib.import_module(f"deepspeed.{name}") if name else deepspeed
