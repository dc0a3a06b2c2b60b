"""What is measured: a process of a run for each case, started with the environment that the cluster gives it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory.models import MODELS
from rlhf.engines.vllm.environment import engine_environment

SECONDS = 900
RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""glibc returns blocks above this size to the system at once. With its heap, freed blocks of up to 32 MiB stay resident
between those in use: up to half of the activations again (`rlhf.recipe.planning.processes.HEAP_SHARE`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: of a learner with `ranks` ranks at a ZeRO `stage`, or of an engine."""

    kind: str
    model: str
    stage: int = 0
    ranks: int = 1
    dtype: str = "float32"

    @property
    def name(self) -> str:
        sharded = f" ZeRO {self.stage} x {self.ranks}" if self.kind == "learner" else ""
        return f"{self.kind} {self.model} {self.dtype}{sharded}"

    def overrides(self, folder: Path) -> list[str]:
        """The recipe's overrides of this case; its model is in `folder`."""
        return [
            "model.tiny=null",
            "model.warmup=null",
            f"model.path={folder}",
            f"model.dtype={self.dtype}",
            f"trainer.tokens_per_microbatch={MODELS[self.model].tokens}",
            f"trainer.deepspeed.zero_stage={self.stage}",
            f"trainer.deepspeed.ranks={self.ranks}",
            "rollout.kv_cache_megabytes=64",
        ]


def all_cases(models: Sequence[str]) -> list[Case]:
    """Every stage with 1 and 2 ranks, and an engine, of each model."""
    return [
        case
        for model in models
        for case in (
            *(
                Case(kind="learner", model=model, stage=stage, ranks=ranks)
                for stage in (0, 1, 2, 3)
                for ranks in (1, 2)
            ),
            Case(kind="engine", model=model),
        )
    ]


def measured_bytes(case: Case, folder: Path) -> int:
    """The largest peak resident memory of the case's processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"host": "127.0.0.1", "port": free.getsockname()[1]}
    common: dict[str, Any] = {
        "kind": case.kind, "folder": str(folder), "overrides": case.overrides(folder), "address": address,
    }  # fmt: skip
    of_kind = {"DS_ACCELERATOR": "cpu"} if case.kind == "learner" else engine_environment("cpu")
    children = [_started(common | {"rank": rank}, of_kind) for rank in range(case.ranks)]
    return max(_peak(child) for child in children)


def _started(case: Mapping[str, Any], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.memory.process", json.dumps(case)],
        env={**os.environ, **environment, **RETURNED, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def _peak(child: subprocess.Popen[str]) -> int:
    said, _ = child.communicate(timeout=SECONDS)
    peaks = [line for line in said.splitlines() if line.startswith("PEAK ")]
    if child.returncode or not peaks:
        raise RuntimeError(f"a measured process ended with code {child.returncode}: {said[-500:]}")
    return int(peaks[0].split()[1])
