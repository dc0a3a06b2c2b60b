"""What vLLM and DeepSpeed make of recipes for GPUs, from their own configuration code on a faked platform.

`python -m tests.goldens.gpu --write` makes the golden file anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.goldens.gpu.cases import CASES, GOLDEN
from tests.pace import scaled

pytestmark = pytest.mark.engine

Configs = dict[str, dict[str, dict[str, Any]]]
OF_LIBRARIES = ("TORCH", "VLLM_", "DS_", "RAY_")


@pytest.fixture(scope="module")
def made() -> Configs:
    """From a process of its own, which sees GPUs that are not there, and no variable that a test has set for a CPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_LIBRARIES)}
    told = subprocess.run(
        [sys.executable, "-m", "tests.goldens.gpu"], capture_output=True, text=True, timeout=scaled(120), env=kept
    )
    assert told.returncode == 0, told.stderr[-3000:]
    configs: Configs = json.loads(told.stdout[told.stdout.index("{") :])
    return configs


@pytest.mark.parametrize("case", CASES)
def test_the_libraries_decide_for_gpus_what_they_decided_when_it_was_read(made: Configs, case: str) -> None:
    assert made[case] == json.loads(GOLDEN.read_text())[case]
