"""How the policy learns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf.config import Config

AlgorithmName = Literal[
    "ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_pp", "remax", "distill"
]


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


class AdvantageConfig(Config):
    """From rewards to the advantage of every token: see docs/algorithms.md."""

    estimator: str = "group_relative"
    """`group_relative` (GRPO), `leave_one_out` (RLOO), `length_weighted` (OPO), `best_of_group`, `reinforce_pp`,
    `reinforce_pp_baseline`, `remax`, `gae` and `vtrace` (with a critic), `distillation` (towards `reference_path`), or
    your own `module:function`."""
    normalize_by_std: bool = True
    """Divide group-relative advantages by the group's standard deviation (GRPO, arXiv 2402.03300)."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount between two actions."""
    lam: float = Field(0.95, ge=0, le=1)
    """Lambda of generalised advantage estimation (arXiv 1506.02438)."""
    lam_length_alpha: float | None = Field(None, gt=0)
    """`gae`: advantages take lambda `1 - 1 / (alpha length)` of each episode's action tokens (VAPO, arXiv 2504.05118);
    `lam` is the critic's alone then, 1 in the paper."""
    per_turn: bool = False
    """`gae` with a whole turn as one action, instead of a token."""
    whiten: bool = False
    """Shift and scale the advantages of a batch to mean 0 and variance 1 over its action tokens."""
    rho_bar: float = Field(1.0, gt=0)
    """`vtrace`: largest importance weight of a step, for targets and policy gradient (arXiv 1802.01561)."""
    c_bar: float = Field(1.0, gt=0)
    """`vtrace`: largest weight by which a correction travels back."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of an estimator of your own."""


class LossConfig(Config):
    """The policy loss of a token, and how tokens become the loss of an optimizer step."""

    policy: str = "ppo"
    """`ppo`, `gspo`, `cispo`, `sapo`, `policy_gradient`, or your own `module:function`."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of a loss of your own."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """Ratios below `1 - clip_low` are clipped."""
    clip_high: float = Field(0.28, ge=0)
    """Ratios above `1 + clip_high` are clipped (clip-higher, arXiv 2503.14476)."""
    dual_clip: float | None = Field(None, gt=1)
    """`ppo`: a token of negative advantage costs at most this many times its advantage (arXiv 1912.09729)."""
    temperature_positive: float = Field(1.0, gt=0)
    """`sapo`: sharpness of the gate for positive advantages (arXiv 2511.20347)."""
    temperature_negative: float = Field(1.05, gt=0)
    """`sapo`: sharpness of the gate for negative advantages."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"] = "token_mean"
    """Mean over all action tokens of a step, over sequences of their token means or sums, or sums over sequences
    divided by `constant_tokens` times their number."""
    constant_tokens: int | None = Field(None, ge=1)
    """`constant`: what token sums are divided by (Dr.GRPO, arXiv 2503.20783); `sampling.max_tokens` when absent."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus of every action token."""
    router_aux_loss_coefficient: float | None = Field(None, ge=0)
    """Weight of the load-balancing loss of a mixture of experts (arXiv 2101.03961). When absent it is the
    `router_aux_loss_coef` of the model's config.json if that has `output_router_logits: true`, else 0."""


class KLConfig(Config):
    """Distance to the reference policy, the start model or `reference_path`."""

    coefficient: float = Field(0.0, ge=0)
    """Weight of KL(policy, reference); 0 holds no reference."""
    place: Literal["loss", "reward"] = "loss"
    """A term of every token's loss, or a price in every token's reward."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of a token's divergence (Schulman 2020)."""
    exact_gradient: bool = False
    """In the loss: the gradient of KL(policy, reference) whatever the estimator (arXiv 2506.09477)."""
    target: float | None = Field(None, gt=0)
    """Divergence in nats a token at which the coefficient is held by a controller (arXiv 1909.08593);
    fixed when absent."""
    horizon: int = Field(10_000, ge=1)
    """Samples over which the controller may change the coefficient by a fifth."""
    stop: float | None = Field(None, gt=0)
    """Leave out the remaining optimizer steps of an update once a step sees KL(behaviour, policy) above this, in nats a
    token."""


class CorrectionConfig(Config):
    """Weights of tokens whose behaviour policy is not the learner's, with `old_logprobs: recomputed`."""

    method: Literal["truncate", "mask", "none"] = "truncate"
    """`truncate`: weights above `high` are cut to it (TIS); `mask`: tokens or sequences outside [low, high] are
    dropped (IcePop, MIS); `none`: measured only."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio of a token, of its sequence (product), or the sequence's geometric mean."""
    low: float = Field(0.0, ge=0)
    """Lower bound of `mask`."""
    high: float = Field(2.0, gt=0)
    """Upper bound."""


class OverlongConfig(Config):
    """Replies that come near or pass `sampling.max_tokens` (DAPO, arXiv 2503.14476)."""

    buffer_tokens: int = Field(0, ge=0)
    """The reward falls over this many last tokens, by `penalty_factor` at the end; 0 is off."""
    penalty_factor: float = Field(1.0, ge=0)
    """What the reward of the longest reply loses."""
    mask_truncated: bool = False
    """Leave truncated episodes out of the loss (they still count in their group's baseline)."""


class CriticConfig(Config):
    """A value model with an optimizer of its own, in the policy's ranks."""

    path: str | None = None
    """A sequence-classification folder with one label to start from (a reward model); the start model with a head of
    zeros when absent."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move in one update before its loss stops falling; null for the plain square."""
    warmup_updates: int = Field(0, ge=0)
    """Updates at the start in which only the critic learns."""


class RewardModelConfig(Config):
    """The loss of pairs that a reward model is trained on (Bradley-Terry, arXiv 2203.02155)."""

    center_rewards_coefficient: float = Field(0.01, ge=0)
    """Weight of the square of a pair's summed scores, which holds them around 0 (arXiv 2312.09244)."""


class PreferenceConfig(Config):
    """The loss of pairs that a policy is trained on, kind: preference."""

    loss: Literal["dpo", "ipo", "kto"] = "dpo"
    """`dpo` (arXiv 2305.18290); `ipo`, by the mean over a reply's tokens (arXiv 2310.12036); `kto`, which takes the two
    replies of a pair as one that is desirable and one that is not (arXiv 2402.01306)."""
    beta: float = Field(0.1, gt=0)
    """How dear it is to leave the reference: the implicit reward is `beta` times the log-ratio to it."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """`dpo`: the share of pairs whose label is thought to be wrong (arXiv 2403.00409)."""
    desirable_weight: float = Field(1.0, gt=0)
    """`kto`: weight of preferred replies."""
    undesirable_weight: float = Field(1.0, gt=0)
    """`kto`: weight of the others."""

    @model_validator(mode="after")
    def _settings_are_those_of_the_loss(self) -> PreferenceConfig:
        if self.label_smoothing and self.loss != "dpo":
            raise ValueError(f"preference.label_smoothing is of dpo, but preference.loss is {self.loss}")
        if (self.desirable_weight, self.undesirable_weight) != (1, 1) and self.loss != "kto":
            raise ValueError(f"preference.desirable_weight and undesirable_weight are of kto, not of {self.loss}")
        return self


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
    sequence_parallel: int = Field(1, ge=1)
    """Ranks that share every row, each a part of its tokens, and of attention its heads: for sequences that one rank
    cannot hold."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """Keep the optimizer's state in the machine's memory and take its step there; needs `zero_stage` 1 or more."""
    offload_parameters: Literal["none", "cpu"] = "none"
    """Keep the weights' shards in the machine's memory between their uses; needs `zero_stage` 3."""
    cpus_per_rank: float = Field(0.5, gt=0)
    """Cores a rank takes; threads are its floor, at least 1."""
    gpus_per_rank: float = Field(0, ge=0)
    """GPUs a rank takes."""
    timeout_seconds: float = Field(600, gt=0)
    """Deadline for one update, save or load."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for the ranks to start."""

    @model_validator(mode="after")
    def _teams_are_whole(self) -> DeepSpeedConfig:
        if self.ranks % self.sequence_parallel:
            raise ValueError(
                f"deepspeed.sequence_parallel is {self.sequence_parallel}, but {self.ranks} rank(s) cannot be divided "
                f"into teams of {self.sequence_parallel}; use a multiple of it as deepspeed.ranks"
            )
        return self

    @model_validator(mode="after")
    def _offloads_what_is_sharded(self) -> DeepSpeedConfig:
        if self.offload_optimizer == "cpu" and self.zero_stage == 0:
            raise ValueError(
                "deepspeed.offload_optimizer is cpu, but at zero_stage 0 the optimizer updates the model's own weights "
                "where they are; use zero_stage 1, 2 or 3 (1 rank will do)"
            )
        if self.offload_parameters == "cpu" and self.zero_stage != 3:
            raise ValueError(
                f"deepspeed.offload_parameters is cpu, but at zero_stage {self.zero_stage} every forward pass uses the "
                "whole weights where they are; use zero_stage 3 (1 rank will do)"
            )
        return self


class WeightSyncConfig(Config):
    """How new weights reach the engines."""

    backend: Literal["auto", "gloo", "nccl", "ipc"] = "auto"
    """`auto`: gloo without GPUs, ipc where engine and rank share a GPU, nccl otherwise."""
    bucket_megabytes: float = Field(4, gt=0)
    """Tensors travel in packed buckets of this size."""
    verify_at_start: bool = True
    """At start, prove the path of the weights: send perturbed ones, and see the engines' log-probs follow."""
    tolerance: float | None = Field(None, gt=0)
    """Largest difference of canary log-probs; 1e-4 in float32 and measured in 16 bits when absent."""


class TrainerConfig(Config):
    """Batch numbers from which all else is derived; nothing has to divide anything."""

    algorithm: AlgorithmName | None = None
    """A preset: settings of this algorithm, which the recipe may override one by one."""
    updates: int = Field(100, ge=1)
    """Budget of updates."""
    groups_per_update: int = Field(32, ge=1)
    """Groups (tasks) an update trains on."""
    group_size: int = Field(8, ge=1)
    """Samples (episodes) of one task. Estimators that compare them with one another need two."""
    epochs: int = Field(1, ge=1)
    """Passes over the batch of one update."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps an epoch; a minibatch is whole groups."""
    tokens_per_microbatch: int = Field(4096, ge=1)
    """Tokens of one forward and backward pass on one rank."""
    max_staleness: int = Field(0, ge=0)
    """Updates by which the weights of a token may lag: 0 is synchronous."""
    old_logprobs: Literal["behaviour", "recomputed"] = "behaviour"
    """Denominator of the ratio: the engine's log-probs, or the learner's own before the update, with `correction`
    (decoupled PPO, arXiv 2110.00641). In 16 bits and with `max_staleness` above 0 it is the learner's unless the recipe
    says so, but for `cispo` and `vtrace`: see docs/algorithms.md."""
    mismatch: Literal["stop", "ignore"] = "stop"
    """What to do when learner and engine give tokens that the current weights sampled other log-probs than rounding
    explains (1e-4 nats in float32, measured in 16 bits): stop before anything is learnt from them, or go on."""
    reference_path: str | None = None
    """The reference policy, or the teacher: a folder or hub name with the policy's vocabulary; the start model when
    absent."""
    hold_reference: bool = False
    """Hold the reference policy also without `kl`, for a loss or an estimator of your own that reads its log-probs."""
    shuffle_rewards: bool = False
    """A control experiment: deal the rewards of a batch anew among its samples, so that they teach nothing."""
    failure_budget: float = Field(0.5, ge=0, le=1)
    """Share of the samples of recent groups that may be lost before the run ends with an error."""
    eval_every: int = Field(0, ge=0)
    """Evaluate every so many updates; 0 only before and after."""
    save_every: int = Field(0, ge=0)
    """Checkpoint every so many updates; 0 only at the end."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints kept, the newest ones."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Keep an exponential moving average of the policy, of this decay an update, and export it beside the policy."""
    optimizer: OptimizerConfig = OptimizerConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    kl: KLConfig = KLConfig()
    correction: CorrectionConfig = CorrectionConfig()
    overlong: OverlongConfig = OverlongConfig()
    critic: CriticConfig | None = None
    reward_model: RewardModelConfig = RewardModelConfig()
    preference: PreferenceConfig = PreferenceConfig()
    filter: FilterConfig = FilterConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    weight_sync: WeightSyncConfig = WeightSyncConfig()

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
    def policy_steps(self) -> int:
        """Optimizer steps of the policy, which waits while a critic learns alone."""
        waiting = self.critic.warmup_updates if self.critic else 0
        return max(self.updates - waiting, 0) * self.epochs * self.minibatches

    @property
    def tickets(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_update

    @property
    def refill_groups(self) -> int:
        return 2 * self.groups_per_update if self.filter.refill_groups is None else self.filter.refill_groups
