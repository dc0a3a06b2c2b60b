"""Checks that are short runs of `rlhf train`: what a run of this kind must come to on these GPUs."""

from __future__ import annotations

import json
import math
from typing import Any

from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import GpuMachine, RunEnd

RUN_SECONDS = 480.0
"""Deadline of one run; the check around it has a little more."""
LOSS_OFF = 0.03
"""Largest difference of a first loss from the run in float32, relative."""
DIFFERENCE = "weight_sync/logprob_difference"


def recipe_of(model: str) -> dict[str, Any]:
    """The recipe that all runs share; what differs are overrides."""
    return {
        "model": {"path": model, "dtype": "bfloat16"},
        "data": {"train": {"tasks": "rlhf.commands.gpu_checks.tasks:copied_digits"}},
        "sampling": {"max_tokens": 16},
        "reward": {"kind": "function", "function": "rlhf.commands.gpu_checks.tasks:evenness"},
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


TINY = (
    "tiny: {hidden_size: 128, intermediate_size: 512, layers: 2, heads: 2, kv_heads: 1, max_position_embeddings: 512}"
)
HABITS = "warmup: {demonstrations: rlhf.commands.gpu_checks.tasks:habits, updates: 60, batch_size: 32}"
SUPERVISED = ("kind=sft", "data.train.response_column=response", "trainer.deepspeed.gpus_per_rank=1")
FLOAT32 = ("model.dtype=float32",)


def publishes(machine: GpuMachine, *overrides: str) -> Finding:
    """Two updates whose weights the engines get: the start check, every canary and the mismatch guard must hold."""
    end = machine.train("publish", overrides, RUN_SECONDS)
    told = [float(one[DIFFERENCE]) for one in end.metrics if one.get(DIFFERENCE) is not None]
    syncs = [float(one["seconds/weight_sync"]) for one in end.metrics if one.get("seconds/weight_sync") is not None]
    good = _finished(end, 2) and len(told) == 2 and all(map(math.isfinite, told))
    return Finding(
        good=good,
        expected="2 updates, each proved by the canary",
        found=f"engines and learner {max(told):.2g} nats apart, {max(syncs, default=0):.1f} s a weight sync"
        if good
        else _told(end),
        figures={"logprob_difference": max(told, default=-1.0), "weight_sync_s": max(syncs, default=-1.0)},
    )


def learns(machine: GpuMachine, *overrides: str) -> Finding:
    """Ten updates of a warmed-up tiny model, after which the mean reward is higher than before."""
    given = ("model.path=null", f"model={{{TINY}, {HABITS}}}", "reward={kind: exact}", "sampling.max_tokens=4",
             "trainer.optimizer.learning_rate=5e-4", "trainer.updates=10", *overrides)  # fmt: skip
    end = machine.train("learns", given, RUN_SECONDS)
    rewards = [float(one["reward/mean"]) for one in end.metrics if one.get("reward/mean") is not None]
    good = _finished(end, 10) and len(rewards) == 10 and sum(rewards[-3:]) > sum(rewards[:3])
    return Finding(
        good=good,
        expected="10 updates, a higher reward in the last three than in the first three",
        found=f"{rewards[0]:.3f} to {rewards[-1]:.3f}" if len(rewards) == 10 else _told(end),
    )


def learner_plan(machine: GpuMachine, *overrides: str) -> Finding:
    """A supervised run under this plan: its first loss is that of a run in float32 with everything on one rank."""
    exact = _first_loss(_float32_run(machine))
    end = machine.train("plan", (*SUPERVISED, *overrides), RUN_SECONDS)
    loss = _first_loss(end)
    good = _finished(end, 2) and exact is not None and loss is not None and abs(loss - exact) <= LOSS_OFF * abs(exact)
    return Finding(
        good=good,
        expected=f"a first loss within {LOSS_OFF:.0%} of float32's, {_number(exact)}",
        found=_number(loss) if loss is not None and end.code == 0 else _told(end),
        figures={"loss": loss if loss is not None else "none", "update_s": _slowest(end)},
    )


def resumes(machine: GpuMachine, *overrides: str) -> Finding:
    """A run that saves after its first update goes on from there, in new processes, to its end."""
    first = machine.train("resumes", (*overrides, "trainer.updates=1"), RUN_SECONDS)
    second = machine.train("resumes", (*overrides, "trainer.updates=2"), RUN_SECONDS, resume=True)
    good = _finished(first, 1) and _finished(second, 2)
    return Finding(
        good=good,
        expected="1 update, then 1 more by --resume",
        found="1 and 1 more" if good else f"{_told(first)}; then {_told(second)}",
    )


def loses_engine(machine: GpuMachine, *overrides: str) -> Finding:
    """A run whose engine is killed between two updates, often while weights are on their way, ends by itself with an
    error that names the engine."""
    end = machine.train("killed", (*overrides, "trainer.updates=200"), RUN_SECONDS, victim="engine-0")
    return Finding(
        good=end.code == 1 and "engine-0" in end.said,
        expected="exit code 1, and an error that names engine-0",
        found=f"exit code {end.code}: {end.said}",
    )


def _float32_run(machine: GpuMachine) -> RunEnd:
    """The run that all plans are held against, made once a report."""
    kept = machine.folder / "float32.json"
    if not kept.exists():
        end = machine.train("float32", (*SUPERVISED, *FLOAT32), RUN_SECONDS)
        if end.code != 0:
            return end
        kept.write_text(json.dumps({"summary": dict(end.summary), "metrics": [dict(one) for one in end.metrics]}))
    return RunEnd(code=0, said="", **json.loads(kept.read_text()))


def _first_loss(end: RunEnd) -> float | None:
    return next((float(one["sft/nll"]) for one in end.metrics if one.get("sft/nll") is not None), None)


def _slowest(end: RunEnd) -> float:
    return max((float(one["seconds/update"]) for one in end.metrics if one.get("seconds/update")), default=-1.0)


def _finished(end: RunEnd, updates: int) -> bool:
    return end.code == 0 and end.summary.get("outcome") == "finished" and end.summary.get("updates") == updates


def _told(end: RunEnd) -> str:
    return f"exit code {end.code} after {end.summary.get('updates', 0)} updates: {end.said}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
