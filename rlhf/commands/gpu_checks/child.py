"""The process of one check: `python -m rlhf.commands.gpu_checks.child REQUEST.json ANSWER.json`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf.cluster.host import resolve_name
from rlhf.cluster.machine import this_machine
from rlhf.commands.gpu_checks.device import CudaDevice
from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.launched_run import train_run
from rlhf.commands.gpu_checks.machine import GpuMachine, RunEnd, Sizes, Train
from rlhf.commands.gpu_checks.nvml import driver_of, nvml_library
from rlhf.commands.gpu_checks.table import PACKAGE, Check
from rlhf.commands.gpu_checks.training import recipe_of
from rlhf.errors import PlacementError


def perform_request(request: Path, answer: Path) -> None:
    """Run the check of a request on this machine, and write its outcome."""
    asked = json.loads(request.read_text())
    finding = performed(Check(**_tuples(asked["check"])), this_gpu_machine(**asked["machine"]))
    answer.write_text(json.dumps(asdict(finding)))


def performed(check: Check, machine: GpuMachine) -> Finding:
    """Call the check's function."""
    finding: Finding = resolve_name(f"{PACKAGE}.{check.function}")(machine, *check.arguments)
    return finding


def this_gpu_machine(*, gpus: int, nodes: int, folder: str, slug: str, model: str | None) -> GpuMachine:
    """The machine that this process runs on. Raises `PlacementError` where it has no driver."""
    library = nvml_library()
    if library is None:
        raise PlacementError("this machine has no NVIDIA driver")
    cluster = {"cluster": {"address": "auto", "nodes": nodes}} if nodes > 1 else {}
    return GpuMachine(
        device=CudaDevice(),
        driver=driver_of(library),
        gpus=gpus,
        nodes=nodes,
        planned=int(this_machine().gpus),
        by_ray=counted_by_ray(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        folder=Path(folder),
        model=model,
        sizes=Sizes(),
        train=training_in(Path(folder), slug, model, Sizes(), more=cluster),
    )


def training_in(
    folder: Path, slug: str, model: str | None, sizes: Sizes, *, more: dict[str, Any], last: tuple[str, ...] = ()
) -> Train:
    """A way to train in `folder/slug`, with `more` in the recipe, and the overrides `last` after those of a check."""

    def train(name: str, overrides: Sequence[str], seconds: float, *, resume: bool = False, victim: str = "") -> RunEnd:
        from rlhf.commands.gpu_checks.made_model import made_model  # with transformers, which most checks do not need

        recipe = recipe_of(model or made_model(folder, sizes)) | more
        given = (*overrides, *last)
        return train_run(folder / slug, name, recipe, given, seconds, resume=resume, victim=victim)

    return train


def counted_by_ray() -> int | None:
    """GPUs that Ray finds on this machine; None without Ray."""
    try:
        from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
    except ImportError:
        return None
    return int(NvidiaGPUAcceleratorManager.get_current_node_num_accelerators())


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


if __name__ == "__main__":
    perform_request(*map(Path, sys.argv[1:]))
