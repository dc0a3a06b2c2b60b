"""Check the communication of processes within a node: NCCL."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed

from rlhf.apps.gpu_checks.machine import Finding, GpuMachine

START_SECONDS = 90.0
"""Deadline for all ranks to meet and to add up."""


def nccl_loads(machine: GpuMachine) -> Finding:
    """Load libnccl as vLLM does, separately from torch; if that fails, a broadcast of weights silently does nothing."""
    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

    try:
        version = str(NCCLLibrary().ncclGetVersion())
    except OSError as error:
        return Finding(good=False, expected="a version of libnccl", found=f"it does not load: {error}")
    return Finding(good=bool(version), expected="a version of libnccl", found=version, figures={"vllm_nccl": version})


def all_reduce(machine: GpuMachine) -> Finding:
    """Sum rank + 1 over one process for each GPU, and check every element."""
    ranks = machine.gpus
    add = partial(add_up, ranks, machine.folder / "meeting", machine.on_gpu, machine.sizes.copied_mb)
    with ProcessPoolExecutor(ranks, multiprocessing.get_context("spawn")) as processes:
        answers = list(processes.map(add, range(ranks), timeout=START_SECONDS))
    slowest = min(rate for _, rate in answers)
    wrong = [rank for rank, (right, _) in enumerate(answers) if not right]
    return Finding(
        good=not wrong,
        expected=f"the sum of {ranks} ranks on each of them",
        found=f"wrong on ranks {wrong}" if wrong else f"right, {slowest:.3g} GB/s of bus",
        figures={"bus_gb_per_s": slowest},
    )


def add_up(ranks: int, meeting: Path, on_gpu: bool, megabytes: int, rank: int) -> tuple[bool, float]:
    """Run one rank. Return whether the sum is right, and the bus bandwidth in GB/s as nccl-tests define it: 2 (n-1)/n
    of the bytes."""
    if on_gpu:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=torch.distributed.FileStore(str(meeting), ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=START_SECONDS),
    )
    values = torch.full((megabytes * 2**18,), float(rank + 1), device=f"cuda:{rank}" if on_gpu else "cpu")
    torch.distributed.all_reduce(values)
    right = bool((values == ranks * (ranks + 1) / 2).all())
    torch.distributed.barrier()
    started = time.perf_counter()
    for _ in range(5):
        torch.distributed.all_reduce(values)
    float(values[0])  # waits for the device
    seconds = (time.perf_counter() - started) / 5
    torch.distributed.destroy_process_group()
    return right, 2 * (ranks - 1) / ranks * values.numel() * 4 / seconds / 1e9
