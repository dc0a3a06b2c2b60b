"""The workers that a recipe needs: plain data for the placement plan, without torch, ray or vllm."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

from rlhf.cluster.roles import Role
from rlhf.engines.vllm.environment import engine_environment
from rlhf.env.config import ENVIRONMENT
from rlhf.recipe.schema import Recipe
from rlhf.reward.config import ScorerConfig
from rlhf.runs.trace_export import ENDPOINT
from rlhf.trainer.rank.process_memory import rank_environment

ENGINE, LEARNER, REWARD = "engine", "learner", "reward"


def roles_of(recipe: Recipe, *, fewer_engines: bool = False) -> tuple[Role, ...]:
    """Return learner ranks and, for RL, engines, reward models and environment servers, in the order of placement. With
    `fewer_engines` there may be as few as `rollout.min_engines`, if all are equal and have places of their own."""
    learner = Role(
        name=LEARNER,
        python_path=recipe.python_path,
        count=recipe.trainer.deepspeed.ranks,
        factory="rlhf.trainer.rank.learner_worker:LearnerWorker",
        imports="rlhf.trainer.rank.learner_worker:import_ranks",
        cpus=recipe.trainer.deepspeed.cpus_per_rank,
        gpus=recipe.trainer.deepspeed.gpus_per_rank,
        layout=recipe.cluster.learner_placement,
        env=rank_environment(learner_device(recipe)),
        # CUDA's current device and stream belong to a thread.
        concurrency=1 if learner_device(recipe) == "cuda" else 4,
        start_timeout_seconds=recipe.trainer.deepspeed.start_timeout_seconds,
        hint="trainer.deepspeed.ranks, trainer.deepspeed.cpus_per_rank or trainer.deepspeed.gpus_per_rank",
        size_hint="trainer.deepspeed.cpus_per_rank or trainer.deepspeed.gpus_per_rank",
    )
    if not recipe.plays:
        return (learner,)
    engines, *others = playing_roles(recipe)
    if recipe.cluster.placement == "colocated":
        engines = replace(engines, shares_with=LEARNER)
    elif fewer_engines and engines.name == ENGINE:
        engines = replace(engines, least=recipe.rollout.min_engines)
    return (learner, engines, *others)


def playing_roles(recipe: Recipe) -> tuple[Role, ...]:
    """Return the workers that episodes need, also in an evaluation."""
    roles = (*engine_roles(recipe), *reward_roles(recipe), *environment_roles(recipe))
    return tuple(replace(role, python_path=recipe.python_path) for role in roles)


def engine_roles(recipe: Recipe) -> tuple[Role, ...]:
    """Return the engines, one role for each size."""
    rollout, counts = recipe.rollout, Counter(recipe.rollout.tensor_parallel_sizes)
    own = {name: str(value) for name, value in rollout.env_vars.items()}
    return tuple(
        Role(
            name=name,
            count=counts[size],
            factory="rlhf.engines.vllm.engine_worker:EngineWorker",
            imports="rlhf.engines.vllm.engine_worker:import_engine",
            cpus=rollout.cpus_per_engine * size,
            gpus=rollout.gpus_per_engine * size,
            env=engine_environment(engine_device(recipe), recipe.model.dtype) | own,
            concurrency=8,
            start_timeout_seconds=rollout.start_timeout_seconds,
            hint="rollout.engines, rollout.tensor_parallel_size, rollout.cpus_per_engine or rollout.gpus_per_engine",
            size_hint="rollout.tensor_parallel_size, rollout.cpus_per_engine or rollout.gpus_per_engine",
            # The memory of one that takes turns on its GPUs with ranks could be taken only when they have left.
            replaced=recipe.cluster.kind == "ray" and recipe.cluster.placement != "colocated",
        )
        for name, (_, size) in engine_sizes(recipe).items()
    )


def engine_sizes(recipe: Recipe) -> dict[str, tuple[str, int]]:
    """Return the model of the engines of each role (`Recipe.bases`), and their tensor-parallel size, by the role's
    name."""
    sizes = dict.fromkeys(recipe.rollout.tensor_parallel_sizes)
    return {
        "-".join(filter(None, (ENGINE, base, f"tp{size}" if len(sizes) > 1 else ""))): (base, size)
        for base in recipe.bases
        for size in sizes
    }


def reward_roles(recipe: Recipe) -> tuple[Role, ...]:
    """Return the reward model's workers, if the reward has a model."""
    reward = recipe.reward.model_scorer
    if reward is None:
        return ()
    return (
        Role(
            name=REWARD,
            count=reward.workers,
            factory="rlhf.reward.model_worker:RewardModelWorker",
            cpus=reward.cpus_per_worker,
            gpus=reward.gpus_per_worker,
            env={"DS_ACCELERATOR": "cpu"} if reward_device(reward) == "cpu" else {},
            concurrency=1,
            start_timeout_seconds=reward.start_timeout_seconds,
            hint="reward.workers, reward.cpus_per_worker or reward.gpus_per_worker",
            replaced=True,
        ),
    )


def environment_roles(recipe: Recipe) -> tuple[Role, ...]:
    """Return the environment's servers that the recipe starts."""
    environment = recipe.environment
    if environment is None or not environment.servers or environment.is_replayed:
        return ()
    return (
        Role(
            name=ENVIRONMENT,
            count=environment.servers,
            factory="rlhf.env.server.worker:EnvironmentServer",
            cpus=environment.cpus_per_server,
            env={ENDPOINT: recipe.run.otlp} if recipe.run.otlp else {},
            start_timeout_seconds=environment.start_timeout_seconds,
            hint="environment.servers or environment.cpus_per_server",
            replaced=True,
        ),
    )


def reward_device(scorer: ScorerConfig) -> Literal["cpu", "cuda"]:
    """Return the device of reward models: `cuda` if they reserve GPUs."""
    return "cuda" if scorer.gpus_per_worker else "cpu"


def engine_device(recipe: Recipe) -> Literal["cpu", "cuda"]:
    """Return the device of engines: `cuda` if they reserve GPUs."""
    return "cuda" if recipe.rollout.gpus_per_engine else "cpu"


def learner_device(recipe: Recipe) -> Literal["cpu", "cuda"]:
    """Return the device of learner ranks: `cuda` if they reserve GPUs."""
    return "cuda" if recipe.trainer.deepspeed.gpus_per_rank else "cpu"


def transfer_backend(recipe: Recipe) -> Literal["gloo", "nccl", "ipc"]:
    """Resolve `auto`: gloo for adapters, within one process, unless both sides have GPUs, and where several engines or
    ranks may share a GPU, which nccl refuses; ipc for an engine and a rank on one GPU; else nccl."""
    chosen = recipe.trainer.weight_sync.backend
    if chosen != "auto":
        return chosen
    if recipe.cluster.kind == "local":
        return "gloo"
    if recipe.model.publishes_adapters or recipe.policies or "cpu" in (engine_device(recipe), learner_device(recipe)):
        return "gloo"
    if recipe.cluster.placement == "colocated" or shares_one_gpu(recipe):
        return "ipc"
    return "gloo" if has_parts_of_gpus(recipe) else "nccl"


def shares_one_gpu(recipe: Recipe) -> bool:
    """Whether the only rank and the only engine work at the same time on parts of one GPU."""
    alone = recipe.trainer.deepspeed.ranks == sum(recipe.rollout.tensor_parallel_sizes) == 1
    on_gpus = "cpu" not in (engine_device(recipe), learner_device(recipe))
    return alone and on_gpus and recipe.rollout.gpus_per_engine + recipe.trainer.deepspeed.gpus_per_rank <= 1


def has_parts_of_gpus(recipe: Recipe) -> bool:
    """Whether engines or ranks have less than a GPU each, so that Ray may place several on one."""
    return any(0 < gpus < 1 for gpus in (recipe.rollout.gpus_per_engine, recipe.trainer.deepspeed.gpus_per_rank))


def learner_starts_first(recipe: Recipe) -> bool:
    """Whether engines start only after the learner: on one GPU vLLM counts all memory that is allocated during its
    start as its own, and refuses to start when some is freed; in one process DeepSpeed makes the process group."""
    return recipe.cluster.kind == "local" or recipe.cluster.placement == "colocated" or has_parts_of_gpus(recipe)
