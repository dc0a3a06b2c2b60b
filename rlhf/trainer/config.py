"""How the policy learns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf.config import Config


class OptimizerConfig(Config):
    """AdamW and its schedule."""

    learning_rate: float = Field(1e-6, ge=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay to zero over all optimizer steps, after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps of linear warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the moments."""
    eps: float = Field(1e-8, gt=0)
    """Term added to the denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""


class LossConfig(Config):
    """The policy loss: PPO's clipped surrogate with separate bounds, token-level, and an optional KL term."""

    clip_low: float = Field(0.2, ge=0, le=1)
    """Ratios below `1 - clip_low` are clipped."""
    clip_high: float = Field(0.28, ge=0)
    """Ratios above `1 + clip_high` are clipped (clip-higher, arXiv 2503.14476)."""
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Mean over all action tokens of the batch, or over sequences of their token means."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the k3 estimate of KL(policy, reference) in the loss; 0 holds no reference."""


class FilterConfig(Config):
    """Dynamic sampling: groups whose rewards are all equal teach nothing and may be replaced (arXiv 2503.14476)."""

    equal_rewards: bool = False
    """Replace groups whose rewards are all equal."""
    refill_groups: int | None = Field(None, ge=0)
    """Groups an update may replace; when it is spent, groups are kept. Twice `groups_per_update` when absent."""


class DeepSpeedConfig(Config):
    """How learner ranks share the work."""

    ranks: int = Field(1, ge=1)
    """Learner processes."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What the ranks shard: nothing, optimizer state, gradients, parameters."""
    cpus_per_rank: float = Field(0.5, gt=0)
    """Cores a rank takes; threads are its floor, at least 1."""
    gpus_per_rank: float = Field(0, ge=0)
    """GPUs a rank takes."""
    timeout_seconds: float = Field(600, gt=0)
    """Deadline for one update, save or load."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for the ranks to start."""


class PublishConfig(Config):
    """How new weights reach the engines."""

    backend: Literal["auto", "gloo", "nccl", "ipc"] = "auto"
    """`auto`: gloo without GPUs, ipc where engine and rank share a GPU, nccl otherwise."""
    bucket_megabytes: float = Field(4, gt=0)
    """Tensors travel in packed buckets of this size."""
    drill: bool = True
    """At start, prove the path by publishing perturbed weights."""
    tolerance: float | None = Field(None, gt=0)
    """Largest difference of canary log-probs; 1e-4 in float32, 0.1 in 16 bits when absent."""


class TrainerConfig(Config):
    """Batch numbers from which all else is derived; nothing has to divide anything."""

    updates: int = Field(100, ge=1)
    """Budget of updates."""
    groups_per_update: int = Field(32, ge=1)
    """Groups (tasks) an update trains on."""
    group_size: int = Field(8, ge=2)
    """Samples (episodes) of one task; they are compared with one another, so at least two."""
    epochs: int = Field(1, ge=1)
    """Passes over the batch of one update."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps an epoch; a minibatch is whole groups."""
    tokens_per_microbatch: int = Field(4096, ge=1)
    """Tokens of one forward and backward pass on one rank."""
    max_staleness: int = Field(0, ge=0)
    """Updates by which the weights of a token may lag: 0 is synchronous."""
    old_logprobs: Literal["behaviour", "recomputed"] = "behaviour"
    """Denominator of the ratio: the engine's log-probs, or the learner's own before the update (corrected by truncated
    importance weights, as for 16-bit engines)."""
    importance_cap: float = Field(2.0, gt=0)
    """Largest importance weight with recomputed log-probs."""
    normalize_by_std: bool = True
    """Divide group-relative advantages by the group's standard deviation (GRPO, arXiv 2402.03300)."""
    shuffle_rewards: bool = False
    """A control experiment: deal the rewards of a batch anew among its samples, so that they teach nothing."""
    failure_budget: float = Field(0.5, ge=0, le=1)
    """Share of recent groups that may fail before the run ends with an error."""
    eval_every: int = Field(0, ge=0)
    """Evaluate every so many updates; 0 only before and after."""
    save_every: int = Field(0, ge=0)
    """Checkpoint every so many updates; 0 only at the end."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints kept, the newest ones."""
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    filter: FilterConfig = FilterConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    publish: PublishConfig = PublishConfig()

    @model_validator(mode="after")
    def _minibatches_hold_groups(self) -> TrainerConfig:
        if self.minibatches > self.groups_per_update:
            raise ValueError(
                f"trainer.minibatches is {self.minibatches} but an update has only {self.groups_per_update} groups; "
                "a minibatch is whole groups"
            )
        return self

    @property
    def samples_per_update(self) -> int:
        return self.groups_per_update * self.group_size

    @property
    def optimizer_steps(self) -> int:
        return self.updates * self.epochs * self.minibatches

    @property
    def tickets(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_update

    @property
    def refill_groups(self) -> int:
        return 2 * self.groups_per_update if self.filter.refill_groups is None else self.filter.refill_groups
