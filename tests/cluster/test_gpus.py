"""The GPUs that a machine has and a process may use, without one: NVML is a stand-in."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from rlhf.cluster.local import LocalCluster
from rlhf.cluster.machine import Gpu, present_gpus, this_machine, visible_gpus
from rlhf.cluster.roles import Role
from tests.nvml import FakeGpu, FakeNvml, install_nvml

EIGHT = tuple(Gpu(index=at, uuid=f"GPU-{at}{at}aa", name="H100", bytes=80 << 30) for at in range(8))


def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return install_nvml(monkeypatch, FakeNvml([FakeGpu(gpu.uuid, name=gpu.name, total=gpu.bytes) for gpu in EIGHT]))


def test_the_driver_lists_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = eight_gpus(monkeypatch)
    assert present_gpus() == EIGHT
    assert nvml.opened == 0


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    eight_gpus(monkeypatch).loads = False
    assert present_gpus() == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert present_gpus() == ()


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("3, 1", [3, 1]),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("GPU-55,GPU-2", [5, 2]),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_shows_what_the_variable_names_up_to_the_first_that_is_none(visible: str | None, shown: list[int]) -> None:
    assert [gpu.index for gpu in visible_gpus(EIGHT, visible)] == shown


def test_a_part_of_a_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, FakeNvml([FakeGpu("GPU-1")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    assert this_machine().gpus == 2
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert this_machine().gpus == 1


async def test_a_run_in_this_process_without_gpus_hides_them_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    eight_gpus(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    seen = []
    for asked in (0, 1):
        cluster = LocalCluster()
        await cluster.start([Role(name="engine", count=1, cpus=0.1, gpus=asked, factory="m:E")], tmp_path)
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        await cluster.stop()
        assert this_machine().gpus == 2
    assert seen == ["", "2,3"]
