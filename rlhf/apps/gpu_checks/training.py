"""Check short runs of `rlhf train`: their tasks, their recipe, and their expected results."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rlhf.apps.gpu_checks.machine import Finding, GpuMachine
from rlhf.types import Message, Task

LOSS_OFF = 0.03
"""Largest difference of a first loss from the run in float32, relative."""
SUPERVISED = ("kind=sft", "data.train.response_column=response", "trainer.deepspeed.gpus_per_rank=1")


def copied_digits(*, rows: int = 64) -> list[Task]:
    """Make `rows` tasks of repeating a digit, with the reply to imitate in the column `response`."""
    digits = [str(row % 10) for row in range(rows)]
    return [
        Task(id=f"digit-{row}", messages=(Message(role="user", content=digit),), answer=digit, row={"response": digit})
        for row, digit in enumerate(digits)
    ]


def evenness(response: str, row: Mapping[str, Any]) -> float:
    """Return the share of a reply's characters with an even code point, which any model can raise."""
    return sum(ord(character) % 2 == 0 for character in response) / max(len(response), 1)


def recipe_of(model: str, nodes: int = 1) -> dict[str, Any]:
    """Return the recipe that all runs share."""
    recipe: dict[str, Any] = {
        "model": {"path": model, "dtype": "bfloat16"},
        "data": {"train": {"tasks": f"{__name__}:copied_digits"}},
        "sampling": {"max_tokens": 16},
        "reward": {"kind": "function", "function": f"{__name__}:evenness"},
        "rollout": {"gpus_per_engine": 0.5, "gpu_memory_utilization": 0.35, "max_context_tokens": 512},
        "trainer": {
            "updates": 2,
            "groups_per_update": 8,
            "group_size": 8,
            "optimizer": {"learning_rate": 1e-5},
            "deepspeed": {"gpus_per_rank": 0.5},
        },
        "run": {"live": False, "loggers": []},
    }
    return recipe | ({"cluster": {"address": "auto", "nodes": nodes}} if nodes > 1 else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of `rlhf train`: its exit code, the last line of its output, and the run folder's content."""

    code: int
    output: str
    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    def finished(self, updates: int) -> bool:
        """Whether the run ended well after this number of updates."""
        return self.code == 0 and self.summary.get("outcome") == "finished" and self.summary.get("updates") == updates

    @property
    def described(self) -> str:
        return f"exit code {self.code} after {self.summary.get('updates', 0)} updates: {self.output}"

    def values(self, metric: str) -> list[float]:
        """Return a metric of every update that has it."""
        return [float(update[metric]) for update in self.metrics if update.get(metric) is not None]


def train_run(machine: GpuMachine, name: str, overrides: Sequence[str]) -> RunEnd:
    """Train the checks' recipe with `overrides` in the run folder `name`. The check's deadline ends it."""
    command, run, log = run_command(machine, name, overrides)
    with log.open("ab") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    return run_end(code, run, log)


def run_command(machine: GpuMachine, name: str, overrides: Sequence[str]) -> tuple[list[str], Path, Path]:
    """Write the recipe of a run; return its command, its folder, and the file for its output."""
    from rlhf.apps.gpu_checks.made_model import checked_model  # with transformers, which most checks do not need

    file, run, log = (machine.folder / f"{name}{end}" for end in (".yaml", "", ".log"))
    file.write_text(yaml.safe_dump(recipe_of(checked_model(machine), machine.nodes)))
    changed = [*overrides, *machine.overrides, f"run.dir={run}"]
    return [sys.executable, "-m", "rlhf", "train", str(file), *changed], run, log


def run_end(code: int, run: Path, log: Path) -> RunEnd:
    """Read the folder of a run, which may have ended early."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    summary, metrics = run / "summary.json", run / "metrics.jsonl"
    return RunEnd(
        code=code,
        output=(errors or lines or ["it printed nothing"])[-1],
        summary=json.loads(summary.read_text()) if summary.exists() else {},
        metrics=[json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else [],
    )


def publishes(machine: GpuMachine, *overrides: str) -> Finding:
    """Train two updates and publish their weights; the start check, every canary and the mismatch guard must pass."""
    end = train_run(machine, "publish", overrides)
    gaps, syncs = end.values("weight_sync/logprob_difference"), end.values("seconds/weight_sync")
    expected = "2 updates, each verified by the canary"
    if not end.finished(2) or len(gaps) != 2 or not all(map(math.isfinite, gaps)):
        return Finding(good=False, expected=expected, found=end.described)
    return Finding(
        good=True,
        expected=expected,
        found=f"engines and learner {max(gaps):.2g} nats apart, {max(syncs):.1f} s a weight sync",
        figures={"logprob_difference": max(gaps), "weight_sync_s": max(syncs)},
    )


def learner_plan(machine: GpuMachine, *overrides: str) -> Finding:
    """Train supervised under this plan, and compare its first loss with that of one rank in float32."""
    exact = float32_run(machine)
    end = train_run(machine, "plan", (*SUPERVISED, *overrides))
    for run in (exact, end):
        if not run.finished(2) or not run.values("sft/nll"):
            return Finding(good=False, expected="2 updates, and their loss", found=run.described)
    reference, loss = exact.values("sft/nll")[0], end.values("sft/nll")[0]
    return Finding(
        good=abs(loss - reference) <= LOSS_OFF * abs(reference),
        expected=f"a first loss within {LOSS_OFF:.0%} of float32's, {reference:.4f}",
        found=f"{loss:.4f}",
        figures={"loss": loss, "update_s": max(end.values("seconds/update"))},
    )


def float32_run(machine: GpuMachine) -> RunEnd:
    """Return the run in float32, the same for all plans of a report."""
    shared = replace(machine, folder=machine.shared)
    if not (machine.shared / "float32" / "summary.json").exists():
        return train_run(shared, "float32", (*SUPERVISED, "model.dtype=float32"))
    return run_end(0, machine.shared / "float32", machine.shared / "float32.log")
