"""Which workers a recipe needs: plain data for the placement plan, without torch, ray or vllm."""

from __future__ import annotations

from typing import Literal

from rlhf.cluster.plan import Role
from rlhf.recipe import Recipe
from rlhf.serving.environment import engine_environment

ENGINE, LEARNER = "engine", "learner"


def roles_of(recipe: Recipe) -> tuple[Role, ...]:
    """Learner ranks and, for RL, engines; in this order they are placed."""
    learner = Role(
        name=LEARNER,
        count=recipe.trainer.deepspeed.ranks,
        factory="rlhf.trainer.worker:LearnerWorker",
        cpus=recipe.trainer.deepspeed.cpus_per_rank,
        gpus=recipe.trainer.deepspeed.gpus_per_rank,
        env={"DS_ACCELERATOR": "cpu"} if learner_device(recipe) == "cpu" else {},
        start_timeout_seconds=recipe.trainer.deepspeed.start_timeout_seconds,
        hint="trainer.deepspeed.ranks, trainer.deepspeed.cpus_per_rank or trainer.deepspeed.gpus_per_rank",
    )
    return (learner,) if recipe.kind == "sft" else (learner, engine_role(recipe))


def engine_role(recipe: Recipe) -> Role:
    """The engines alone: what an evaluation needs."""
    rollout = recipe.rollout
    return Role(
        name=ENGINE,
        count=rollout.engines,
        factory="rlhf.serving.engine_worker:EngineWorker",
        cpus=rollout.cpus_per_engine * rollout.tensor_parallel_size,
        gpus=rollout.gpus_per_engine * rollout.tensor_parallel_size,
        env=engine_environment(engine_device(recipe)),
        concurrency=8,
        start_timeout_seconds=rollout.start_timeout_seconds,
        hint="rollout.engines, rollout.cpus_per_engine or rollout.gpus_per_engine",
    )


def engine_device(recipe: Recipe) -> Literal["cpu", "cuda"]:
    return "cuda" if recipe.rollout.gpus_per_engine else "cpu"


def learner_device(recipe: Recipe) -> Literal["cpu", "cuda"]:
    return "cuda" if recipe.trainer.deepspeed.gpus_per_rank else "cpu"


def transfer_backend(recipe: Recipe) -> Literal["gloo", "nccl", "ipc"]:
    """`auto` resolved: gloo unless both sides have GPUs; ipc where an engine and a rank share one."""
    chosen = recipe.trainer.publish.backend
    if chosen != "auto":
        return chosen
    if "cpu" in (engine_device(recipe), learner_device(recipe)):
        return "gloo"
    shared = recipe.rollout.gpus_per_engine + recipe.trainer.deepspeed.gpus_per_rank <= 1
    return "ipc" if shared else "nccl"
