"""The settings of a recipe that decide how much memory it needs, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.recipe.kinds import OF_EXAMPLES
from rlhf.recipe.planning.shape import DTYPE_BYTES
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import engine_device, engine_sizes, learner_device, shares_one_gpu, transfer_backend
from rlhf.trainer.credit.registry import needs_reference

PROMPT_TOKENS = 512
"""Tokens of a prompt; recipes do not contain the length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLayout:
    """The learner's ranks. `width` is the bytes of a weight, `tokens` the tokens of a micro-batch on one rank, and
    `lora` the rank of the adapters or 0. Every `checkpointing`-th layer is recomputed (0: no layer). `zero` is the
    `zero_optimization` of DeepSpeed's configuration. With `beside_engines` the ranks send weights to engines."""

    device: str
    ranks: int
    stage: int
    width: int
    tokens: int
    checkpointing: int
    sequence_parallel: int
    offload_optimizer: bool
    offload_parameters: bool
    reference: bool
    critic: bool
    average: bool
    lora: int
    bucket_bytes: int
    beside_engines: bool
    zero: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """Engines of one size, whose workers have this `role`. An engine takes `utilisation` of a GPU, or `cache_bytes` of
    KV cache on a CPU, and receives weights by `backend` in buckets of `bucket_bytes`. `context` is the longest
    sequence, if the recipe sets it."""

    role: str
    device: str
    engines: int
    parallel: int
    width: int
    sequences: int
    batched_tokens: int
    context: int | None
    utilisation: float
    cache_bytes: int
    backend: str = "gloo"
    bucket_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """A run. `engines` has one item for each size, the smallest first, whose processes hold most. `prompt` and `reply`
    are lengths in tokens, `longest` that of the longest sequence that is trained, `replies` the replies to one prompt,
    `samples` the samples of an update. `colocated` engines
    and ranks take turns on the same GPUs; with `shared` they use parts of one GPU at once."""

    learner: LearnerLayout
    engines: tuple[EngineLayout, ...]
    colocated: bool
    shared: bool
    prompt: int
    reply: int
    longest: int
    replies: int
    samples: int


SEQUENCES = {"cpu": 256, "cuda": 1024}
"""Sequences at once unless the recipe sets them; for a GPU vLLM's largest choice."""


def layout_of(recipe: Recipe, zero: Mapping[str, Any], *, context: int, prompt: int = PROMPT_TOKENS) -> RunLayout:
    """Return the layout of a recipe with the `zero_optimization` of DeepSpeed, for a model with this `context`."""
    trainer = recipe.trainer
    longest = longest_sequence(recipe, prompt, context)
    return RunLayout(
        learner=learner_layout(recipe, zero, longest),
        engines=engine_layouts(recipe) if recipe.plays else (),
        colocated=recipe.plays and recipe.cluster.placement == "colocated",
        shared=recipe.plays and shares_one_gpu(recipe),
        prompt=prompt, reply=recipe.sampling.max_tokens, longest=longest,
        replies=trainer.group_size if recipe.plays else 1,
        samples=trainer.groups_per_update * OF_EXAMPLES.get(recipe.kind, trainer.group_size),
    )  # fmt: skip


def longest_sequence(recipe: Recipe, prompt: int, context: int) -> int:
    """Return the tokens of the longest sequence that no split over micro-batches makes shorter: a prompt and its reply,
    or both of a pair; all turns of an episode that the policy sees at once; and what an agent fits into the context."""
    limit, reply, turns = min(context, recipe.rollout.max_context_tokens or context), recipe.sampling.max_tokens, 1
    if recipe.environment is not None:
        seen = recipe.environment.last_n
        turns = recipe.environment.max_turns if seen is None else min(seen + 1, recipe.environment.max_turns)
    one = limit if recipe.agent is not None else min(turns * (prompt + reply), limit)
    return one + (OF_EXAMPLES.get(recipe.kind, 1) - 1) * min(reply, limit)


def learner_layout(recipe: Recipe, zero: Mapping[str, Any], longest: int = 0) -> LearnerLayout:
    """Return the layout of a recipe's ranks, whose micro-batches hold a `longest` sequence."""
    trainer, model, device = recipe.trainer, recipe.model, learner_device(recipe)
    adapted = model.lora is not None or bool(recipe.policies)
    # In 16 bits gradients are summed in float32, which stage 0 cannot do (`rlhf.trainer.rank.zero`).
    least = 0 if model.dtype == "float32" else 1
    reference = needs_reference(trainer) or recipe.kind == "preference"
    return LearnerLayout(
        device=device,
        ranks=trainer.deepspeed.ranks,
        stage=max(trainer.deepspeed.zero_stage, least),
        width=DTYPE_BYTES[model.dtype],
        tokens=max(trainer.tokens_per_microbatch, -(-longest // trainer.deepspeed.sequence_parallel)),
        checkpointing=int(model.gradient_checkpointing),
        sequence_parallel=trainer.deepspeed.sequence_parallel,
        offload_optimizer=trainer.deepspeed.offload_optimizer == "cpu",
        offload_parameters=trainer.deepspeed.offload_parameters == "cpu",
        reference=reference and (not adapted or trainer.reference_path is not None),
        critic=trainer.critic is not None,
        average=trainer.ema_decay is not None,
        lora=sum(policy.lora.rank for policy in recipe.all_policies.values()) or (model.lora.rank if model.lora else 0),
        bucket_bytes=trainer.weight_sync.bucket_bytes(on_gpu=device == "cuda"),
        beside_engines=recipe.plays,
        zero=zero,
    )


def engine_layouts(recipe: Recipe) -> tuple[EngineLayout, ...]:
    """Return the layout of a recipe's engines for each size, the smallest first."""
    rollout, device = recipe.rollout, engine_device(recipe)
    return tuple(
        EngineLayout(
            role=role,
            device=device,
            engines=rollout.tensor_parallel_sizes.count(size),
            parallel=size,
            width=DTYPE_BYTES[recipe.model.dtype],
            sequences=rollout.max_sequences or SEQUENCES[device],
            batched_tokens=16384 if device == "cuda" else 2048,
            context=rollout.max_context_tokens,
            utilisation=rollout.gpu_memory_utilization,
            cache_bytes=rollout.kv_cache_megabytes * 2**20,
            backend=transfer_backend(recipe),
            bucket_bytes=recipe.trainer.weight_sync.bucket_bytes(on_gpu=device == "cuda"),
        )
        for size, role in sorted((size, role) for role, (_, size) in engine_sizes(recipe).items())
    )
