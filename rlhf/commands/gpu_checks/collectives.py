"""Checks of NCCL: that it loads as vLLM loads it, and that all ranks of a node add up right."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed

from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import GpuMachine

START_SECONDS = 90.0
"""Deadline for all ranks to meet and to add up."""
REPEATS = 5


def nccl_loads(machine: GpuMachine) -> Finding:
    """vLLM opens libnccl by name, apart from torch; where it cannot, a broadcast of weights silently does nothing."""
    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

    try:
        found = str(NCCLLibrary().ncclGetVersion())
    except OSError as error:
        return Finding(good=False, expected="a version of libnccl", found=f"it does not load: {error}")
    return Finding(good=bool(found), expected="a version of libnccl", found=found, figures={"vllm_nccl": found})


def all_reduce(machine: GpuMachine) -> Finding:
    """One process a GPU; each adds its rank + 1, and every element must be the sum of all."""
    size, meeting = machine.gpus, machine.folder / f"meeting_{time.monotonic_ns()}"
    words = [str(size), str(meeting), machine.device.backend, str(machine.sizes.copied_mb)]
    program = [sys.executable, "-m", "rlhf.commands.gpu_checks.collectives"]
    ranks = [subprocess.Popen([*program, str(rank), *words], stdout=subprocess.PIPE, text=True) for rank in range(size)]
    deadline = time.monotonic() + START_SECONDS
    try:
        said = [rank.communicate(timeout=max(deadline - time.monotonic(), 0.1))[0].strip() for rank in ranks]
    except subprocess.TimeoutExpired:
        said = [f"no answer within {START_SECONDS:g} s"]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    right = len(said) == size and all(one.startswith("right") for one in said)
    rates = [float(one.split()[1]) for one in said] if right else [0.0]
    return Finding(
        good=right,
        expected=f"the sum of {size} ranks on each of them",
        found=f"right, {min(rates):.3g} GB/s of bus" if right else f"{said}",
        figures={"bus_gb_per_s": min(rates)},
    )


def add_up(rank: int, size: int, meeting: str, backend: str, megabytes: int) -> str:
    """One rank: `right` and the bus bandwidth in GB/s (2 (n-1)/n of the bytes, as nccl-tests count), or `wrong`."""
    place = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = torch.distributed.FileStore(meeting, size)  # type: ignore[attr-defined]
    patience = timedelta(seconds=START_SECONDS)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    values = torch.full((megabytes * 2**18,), float(rank + 1), device=place)
    torch.distributed.all_reduce(values)
    right = bool((values == size * (size + 1) / 2).all())
    torch.distributed.barrier()
    started = time.perf_counter()
    for _ in range(REPEATS):
        torch.distributed.all_reduce(values)
    float(values[0])  # waits for the device
    seconds = (time.perf_counter() - started) / REPEATS
    rate = 2 * (size - 1) / size * values.numel() * 4 / seconds / 1e9
    torch.distributed.destroy_process_group()
    return f"{'right' if right else 'wrong'} {rate:.4g}"


if __name__ == "__main__":
    RANK, SIZE, MEETING, BACKEND, MEGABYTES = sys.argv[1:]
    print(add_up(int(RANK), int(SIZE), str(Path(MEETING)), BACKEND, int(MEGABYTES)), flush=True)
