"""Check the communication of processes: NCCL within a node, and Ray, clocks and the shared folder between nodes."""

from __future__ import annotations

import multiprocessing
import resource
import secrets
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed

from rlhf.apps.gpu_checks.machine import Finding, GpuMachine

START_SECONDS = 90.0
"""Deadline for all ranks to meet and to add up."""
MOST_SKEW_SECONDS = 1.0
"""Beyond this, times in spans and logs of different nodes cannot be compared."""
ANSWER_SECONDS = 60.0


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


def clocks_and_folder(machine: GpuMachine) -> Finding:
    """Check that every node of the running Ray cluster answers, has this node's time, reads a file that this node has
    just written, and may lock memory, as RDMA does."""
    secret, file = secrets.token_hex(8), machine.shared / "shared.txt"
    file.write_text(secret)
    started = time.time()
    answers = ask_nodes(file)
    ended = time.time()
    skew = max((max(started - answer.seconds, answer.seconds - ended, 0.0) for answer in answers), default=0.0)
    blind = [answer.node for answer in answers if answer.read != secret]
    limited = [answer.node for answer in answers if not answer.locks_memory]
    return Finding(
        good=len(answers) == machine.nodes and not blind and not limited and skew <= MOST_SKEW_SECONDS,
        expected=f"{machine.nodes} nodes, clocks within {MOST_SKEW_SECONDS:g} s, the same folder, ulimit -l unlimited",
        found=f"{len(answers)} nodes, clocks {skew:.2f} s apart, {blind or 'none'} without the folder, "
        f"{limited or 'none'} with another ulimit -l",
        figures={"clock_skew_s": skew},
    )


class NodeAnswer(NamedTuple):
    """A node's name, its time (seconds since 1970), its copy of the shared file, and whether it may lock memory."""

    node: str
    seconds: float
    read: str
    locks_memory: bool


def ask_nodes(file: Path) -> list[NodeAnswer]:
    """Run `node_answer` on every living node of the cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address="auto", log_to_driver=False)
    task: Any = ray.remote(num_cpus=0)(node_answer)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    pending = [task.options(scheduling_strategy=place).remote(file) for place in places]
    answers: list[NodeAnswer] = ray.get(pending, timeout=ANSWER_SECONDS)
    return answers


def node_answer(file: Path) -> NodeAnswer:
    """Answer as this node."""
    read = file.read_text() if file.exists() else ""
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return NodeAnswer(socket.gethostname(), time.time(), read, locked == resource.RLIM_INFINITY)
