"""Runs on GPUs learn, go on after a save, and end by themselves when an engine is killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rlhf.apps.gpu_checks.machine import GpuMachine
from rlhf.apps.gpu_checks.table import COLOCATED, HALVES, WHOLE
from rlhf.apps.gpu_checks.training import publishes, run_command, run_end, train_run
from rlhf.types import Message

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.timeout(1000)]
TINY = (
    "tiny: {hidden_size: 128, intermediate_size: 512, layers: 2, heads: 2, kv_heads: 1, max_position_embeddings: 512}"
)
WARMUP = f"warmup: {{demonstrations: {__name__}:habits, updates: 60, batch_size: 32}}"
LEARNS = (
    "model.path=null", f"model={{{TINY}, {WARMUP}}}", "reward={kind: exact}", "sampling.max_tokens=4",
    "trainer.optimizer.learning_rate=5e-4", "trainer.updates=10",
)  # fmt: skip


def habits(count: int, seed: int) -> Iterator[tuple[Message, ...]]:
    """Conversations for a warm-up. Two of three teach the wrong reply, so that there is a reward to gain."""
    for number in range(count):
        digit = (number * 7 + seed) % 10
        reply = digit if number % 3 == 0 else (digit + 1) % 10
        yield Message(role="user", content=str(digit)), Message(role="assistant", content=str(reply))


def test_the_reward_rises(machine: GpuMachine) -> None:
    end = train_run(machine, "learns", (*LEARNS, *COLOCATED))
    assert end.finished(10), end.described
    rewards = end.values("reward/mean")
    assert sum(rewards[-3:]) > sum(rewards[:3])


@pytest.mark.parametrize(
    "overrides",
    [
        (*COLOCATED, "model.dtype=float32"),
        (
            "rollout.engines=2", "rollout.gpus_per_engine=0.25", "rollout.gpu_memory_utilization=0.2",
            "trainer.deepspeed.gpus_per_rank=0.5",
        ),
    ],
    ids=["float32, colocated", "2 engines and a rank on one GPU"],
)  # fmt: skip
def test_a_run_proves_its_weight_syncs(machine: GpuMachine, overrides: Sequence[str]) -> None:
    found = publishes(machine, *overrides)
    assert found.good, found.found


def test_a_run_that_saved_goes_on_in_new_processes(machine: GpuMachine) -> None:
    first = train_run(machine, "resumes", (*HALVES, "trainer.updates=1"))
    assert first.finished(1), first.described
    second = train_run(machine, "resumes", (*HALVES, "trainer.updates=2", "--resume"))
    assert second.finished(2), second.described


@pytest.mark.parametrize(
    ("gpus", "engines"),
    [(2, ()), (5, ("rollout.engines=2", "rollout.tensor_parallel_size=2"))],
    ids=["alone", "beside one of 2 GPUs"],
)
def test_a_run_whose_engine_is_killed_goes_on_with_another(
    machine: GpuMachine, gpus: int, engines: Sequence[str]
) -> None:
    if machine.gpus < gpus and machine.on_gpu:
        pytest.skip(f"needs {gpus} GPUs")
    overrides = (*WHOLE, *engines, "trainer.weight_sync.backend=nccl", "trainer.updates=40")
    code, run, log = killed_run(machine, overrides, victim="engine-0")
    end = run_end(code, run, log)
    assert end.code == 0
    assert "replaces engine-0" in end.output
    assert "replaces engine-1" not in end.output


def killed_run(machine: GpuMachine, overrides: Sequence[str], victim: str) -> tuple[int, Path, Path]:
    """Train, and kill the worker `victim` after the first update, often while weights are on their way."""
    command, run, log = run_command(machine, "killed", overrides)
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        metrics, victims_log = run / "metrics.jsonl", str(run / "logs" / f"{victim}.log")
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.1)
        for worker in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{worker.pid}/fd/1") == victims_log:
                    worker.kill()
        return process.wait(480), run, log
    finally:
        process.terminate()
        process.wait(60)
