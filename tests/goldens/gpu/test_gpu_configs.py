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


def test_an_engine_of_several_gpus_in_a_ray_actor_has_vllms_own_processes(made: Configs) -> None:
    executors = {case: config["engine"]["executor"] for case, config in made.items()}
    sizes = {case: config["engine"]["tensor_parallel_size"] for case, config in made.items()}
    assert executors == {case: "MultiprocExecutor" if size > 1 else "UniProcExecutor" for case, size in sizes.items()}


def test_engines_sleep_where_they_share_gpus_and_nowhere_else(made: Configs) -> None:
    assert {case for case, config in made.items() if config["engine"]["sleep_mode"]} == {
        case for case in CASES if "colocated" in case
    }
