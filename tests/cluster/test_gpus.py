"""The GPUs that a machine has and a process may use, without one: NVML is a stand-in."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from rlhf.cluster import gpus
from rlhf.cluster.gpus import Gpu, present_gpus, visible_gpus
from rlhf.cluster.local import LocalCluster
from rlhf.cluster.machine import this_machine
from rlhf.cluster.resources import Role

EIGHT = tuple(Gpu(index=at, uuid=f"GPU-{at}{at}aa", name="H100", bytes=80 << 30) for at in range(8))


class Nvml:
    """What is asked of NVML: the same calls, with the same arguments by reference."""

    def __init__(self, count: int, loads: bool = True) -> None:
        self._count, self._loads, self.open = count, loads, 0

    def nvmlInit_v2(self) -> int:
        self.open += self._loads
        return 0 if self._loads else 9

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self._count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total = 80 << 30
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, text: Any, length: int) -> int:
        text.value = f"GPU-{handle.value - 1}{handle.value - 1}aa".encode()
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, text: Any, length: int) -> int:
        text.value = b"H100"
        return 0


def installed(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Nvml:
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: nvml)
    return nvml


def test_the_driver_lists_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = installed(monkeypatch, Nvml(8))
    assert present_gpus() == EIGHT
    assert nvml.open == 0


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert present_gpus("libno-such-library.so.1") == ()
    installed(monkeypatch, Nvml(8, loads=False))
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
    installed(monkeypatch, Nvml(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    assert this_machine().gpus == 2
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert this_machine().gpus == 1


async def test_a_run_in_this_process_without_gpus_hides_them_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    installed(monkeypatch, Nvml(8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    seen = []
    for asked in (0, 1):
        cluster = LocalCluster()
        await cluster.start([Role(name="engine", count=1, cpus=0.1, gpus=asked, factory="m:E")], tmp_path)
        seen.append(gpus.os.environ["CUDA_VISIBLE_DEVICES"])
        await cluster.stop()
        assert this_machine().gpus == 2
    assert seen == ["", "2,3"]
