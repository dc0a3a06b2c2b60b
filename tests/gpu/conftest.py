"""A machine with a GPU; `make test-gpu` runs these tests there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlhf.apps.gpu_checks.machine import GpuMachine
from rlhf.cluster.machine import this_machines_gpus


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the made model."""
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture
def machine(shared: Path, tmp_path: Path) -> GpuMachine:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return GpuMachine(gpus=len(this_machines_gpus()), nodes=1, folder=tmp_path, shared=shared)
