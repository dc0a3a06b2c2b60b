"""Settings of training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlhf.config import Config
from rlhf.models.config import Packing
from rlhf.trainer.deepspeed_names import check_names

AlgorithmName = Literal[
    "ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_pp", "remax", "distill"
]
SaveEvery = Annotated[int, Field(ge=0)] | Literal["auto"]
FIRST_SAVE_SECONDS = 300.0
"""Time from the start of training to the first checkpoint with `save_every: auto`; its cost is not known before."""
WAITS_PER_SAVE = 50.0
"""Time between checkpoints with `save_every: auto`, as a multiple of the last one's own."""
KlEstimator = Literal["k1", "k2", "k3"]
"""Estimators of KL(policy, reference): see `rlhf.trainer.credit.kl`."""


class OptimizerConfig(Config):
    """AdamW and its learning-rate schedule."""

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
    """Maximum norm of the gradients: larger ones are scaled down to it."""


class AdvantageConfig(Config):
    """Estimator of advantages from rewards: see docs/algorithms.md."""

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
    """`gae`: advantages use lambda `1 - 1 / (alpha length)` of each episode's action tokens (VAPO, arXiv 2504.05118);
    `lam` is then only the critic's, 1 in the paper."""
    per_turn: bool = False
    """`gae` with a whole turn as one action, instead of a token."""
    whiten: bool = False
    """Shift and scale the advantages of a batch to mean 0 and variance 1 over its action tokens."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of your own estimator."""


class LossConfig(Config):
    """The policy loss of a token, and the aggregation of tokens into the loss of an optimizer step."""

    policy: str = "ppo"
    """`ppo`, `gspo`, `cispo`, `sapo`, `policy_gradient`, or your own `module:function`."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of your own loss."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """Ratios below `1 - clip_low` are clipped."""
    clip_high: float = Field(0.28, ge=0)
    """Ratios above `1 + clip_high` are clipped (clip-higher, arXiv 2503.14476)."""
    dual_clip: float | None = Field(None, gt=1)
    """`ppo`: the loss of a token with negative advantage is at most this many times its advantage (arXiv
    1912.09729)."""
    temperature_positive: float = Field(1.0, gt=0)
    """`sapo`: sharpness of the gate for positive advantages (arXiv 2511.20347)."""
    temperature_negative: float = Field(1.05, gt=0)
    """`sapo`: sharpness of the gate for negative advantages."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"] = "token_mean"
    """Mean over all action tokens of a step, or over sequences of their token means or token sums, or token sums
    divided by `constant_tokens` times the number of sequences."""
    constant_tokens: int | None = Field(None, ge=1)
    """`constant`: divisor of token sums (Dr.GRPO, arXiv 2503.20783); default: `sampling.max_tokens`."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus of every action token."""
    router_aux_loss_coefficient: float | None = Field(None, ge=0)
    """Weight of the load-balancing loss of a mixture of experts (arXiv 2101.03961). Default: the `router_aux_loss_coef`
    of the model's config.json if it sets `output_router_logits: true`, else 0."""


class KLConfig(Config):
    """KL penalty towards the reference policy, which is the start model or `reference_path`."""

    coefficient: float = Field(0.0, ge=0)
    """Weight of KL(policy, reference); with 0 no reference is loaded."""
    place: Literal["loss", "reward"] = "loss"
    """As a term of every token's loss, or as a penalty in every token's reward."""
    estimator: KlEstimator = "k3"
    """Estimate of a token's divergence (Schulman 2020)."""
    exact_gradient: bool = False
    """In the loss: use the gradient of KL(policy, reference) with any estimator (arXiv 2506.09477)."""
    target: float | None = Field(None, gt=0)
    """Target divergence in nats per token, to which a controller adapts the coefficient (arXiv 1909.08593); default: a
    fixed coefficient."""
    horizon: int = Field(10_000, ge=1)
    """Number of samples in which the controller may change the coefficient by a fifth."""
    stop: float | None = Field(None, gt=0)
    """Skip the remaining optimizer steps of an update once a step measures KL(behaviour, policy) above this, in nats
    per token."""


class CorrectionConfig(Config):
    """Importance weights of tokens that weights other than the learner's sampled, with `proximal_logprobs:
    recomputed`."""

    method: Literal["truncate", "mask", "none"] = "truncate"
    """`truncate`: weights above `high` are truncated to it (TIS); `mask`: tokens or sequences outside [low, high] are
    dropped (IcePop, MIS); `none`: the weights are only measured."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio of a token, of its sequence (the product), or the geometric mean over its sequence."""
    low: float = Field(0.0, ge=0)
    """Lower bound of `mask`."""
    high: float = Field(2.0, gt=0)
    """Upper bound."""


class OverlongConfig(Config):
    """Shaping for replies that approach or reach `sampling.max_tokens` (DAPO, arXiv 2503.14476)."""

    buffer_tokens: int = Field(0, ge=0)
    """The reward decreases over this many last tokens, by `penalty_factor` at the end; 0 disables it."""
    penalty_factor: float = Field(1.0, ge=0)
    """Penalty of the longest reply."""
    mask_truncated: bool = False
    """Leave truncated episodes out of the loss (they still count in their group's baseline)."""


class CriticOptimizerConfig(OptimizerConfig):
    """The same settings for a critic, which learns faster than the policy."""

    learning_rate: float = Field(1e-5, ge=0)
    """Peak learning rate."""


class CriticConfig(Config):
    """A value model with its own optimizer, on the policy's ranks."""

    path: str | None = None
    """A sequence-classification folder with one label to start from (a reward model); default: the start model with a
    head of zeros."""
    optimizer: CriticOptimizerConfig = CriticOptimizerConfig()
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may change in one update before its loss is clipped; null for the plain squared error."""
    warmup_updates: int = Field(0, ge=0)
    """Number of first updates in which only the critic is trained."""


class RewardModelConfig(Config):
    """The loss on pairs for reward models (Bradley-Terry, arXiv 2203.02155)."""

    center_rewards_coefficient: float = Field(0.01, ge=0)
    """Weight of the square of a pair's summed scores, which keeps them centred at 0 (arXiv 2312.09244)."""


class PreferenceConfig(Config):
    """The loss on pairs for policies, kind: preference."""

    loss: Literal["dpo", "ipo", "kto"] = "dpo"
    """`dpo` (arXiv 2305.18290); `ipo`, with the mean over a reply's tokens (arXiv 2310.12036); `kto`, which treats the
    two replies of a pair as one desirable and one undesirable (arXiv 2402.01306)."""
    beta: float = Field(0.1, gt=0)
    """Strength of the KL constraint towards the reference: the implicit reward is `beta` times the log-ratio to it."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """`dpo`: the assumed share of pairs with a wrong label (arXiv 2403.00409)."""
    desirable_weight: float = Field(1.0, gt=0)
    """`kto`: weight of preferred replies."""
    undesirable_weight: float = Field(1.0, gt=0)
    """`kto`: weight of rejected replies."""

    @model_validator(mode="after")
    def _settings_are_those_of_the_loss(self) -> PreferenceConfig:
        if self.label_smoothing and self.loss != "dpo":
            raise ValueError(f"preference.label_smoothing is for dpo, but preference.loss is {self.loss}")
        if (self.desirable_weight, self.undesirable_weight) != (1, 1) and self.loss != "kto":
            raise ValueError(
                f"preference.desirable_weight and undesirable_weight are for kto, but preference.loss is {self.loss}"
            )
        return self


class FilterConfig(Config):
    """Dynamic sampling: groups whose rewards are all equal carry no signal and may be replaced (arXiv 2503.14476)."""

    equal_rewards: bool = False
    """Replace groups whose rewards are all equal."""
    refill_groups: int | None = Field(None, ge=0)
    """Maximum number of groups that an update may replace; after that, groups are kept. Default: twice
    `groups_per_update`."""


class ReplayConfig(Config):
    """Second uses: groups whose rewards differ are trained once more, in a later update, with the importance weights
    that stale groups get (arXiv 1611.01224, 2506.09340)."""

    groups: int = Field(0, ge=0)
    """Maximum number of earlier groups that an update uses a second time, in addition to its own; 0 disables it."""


class DeepSpeedConfig(Config):
    """How the learner ranks share the work."""

    ranks: int = Field(1, ge=1)
    """Number of learner processes."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What the ranks shard: nothing, optimizer state, gradients, parameters."""
    sequence_parallel: int = Field(1, ge=1)
    """Number of ranks that share every row, each with a part of its tokens, and in attention a part of the heads: for
    sequences that do not fit on one rank."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """Keep the optimizer state in CPU memory and run the optimizer step there; needs `zero_stage` 1 or more."""
    offload_parameters: Literal["none", "cpu"] = "none"
    """Keep the weights' shards in CPU memory between uses; needs `zero_stage` 3."""
    config: dict[str, Any] = Field({})
    """DeepSpeed's own configuration, by its names, except what the recipe decides elsewhere: for instance
    `{zero_optimization: {sub_group_size: 100000000}}`. Defaults for bucket sizes follow the model's size."""
    cpus_per_rank: float = Field(0.5, gt=0)
    """CPU cores reserved for a rank; the number of threads is this rounded down, at least 1."""
    gpus_per_rank: float = Field(0, ge=0)
    """GPUs reserved for a rank."""
    timeout_seconds: float = Field(600, gt=0)
    """Deadline for one update, save or load."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for the ranks to start."""

    @model_validator(mode="after")
    def _fits_together(self) -> DeepSpeedConfig:
        if self.ranks % self.sequence_parallel:
            raise ValueError(
                f"deepspeed.sequence_parallel is {self.sequence_parallel}, but {self.ranks} rank(s) cannot be divided "
                f"into teams of {self.sequence_parallel}; use a multiple of it as deepspeed.ranks"
            )
        check_names(self.config)
        nodes = self.config.get("zero_optimization", {}).get("zero_hpz_partition_size", 1)
        if isinstance(nodes, int) and nodes > 1 and (self.zero_stage != 3 or self.ranks % nodes):
            raise ValueError(
                f"zero_hpz_partition_size is {nodes}: that is for zero_stage 3 (here {self.zero_stage}), and the ranks "
                f"(here {self.ranks}) must be a multiple of it"
            )
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


CPU_BUCKET, GPU_BUCKET = 32 * 2**20, 256 * 2**20
"""Bytes of a bucket where the recipe leaves them open."""


class WeightSyncConfig(Config):
    """How new weights are sent to the engines."""

    backend: Literal["auto", "gloo", "nccl", "ipc"] = "auto"
    """`auto`: gloo without GPUs, ipc where engine and rank share a GPU, nccl otherwise."""
    bucket_megabytes: float | Literal["auto"] = "auto"
    """Tensors are gathered and sent in packed buckets of this size, of which both sides hold two. `auto`: 32 on a CPU,
    where larger ones leave its cache, and 256 on a GPU, where smaller ones cost latency."""
    verify_at_start: bool = True
    """At the start, verify the path of weight syncs: send perturbed weights, and check that the engines' log-probs
    change accordingly."""
    tolerance: float | None = Field(None, gt=0)
    """Largest allowed difference of canary log-probs; default: 1e-4 in float32, and measured in 16 bits."""

    @field_validator("bucket_megabytes", mode="before")
    @classmethod
    def _is_a_size(cls, given: Any) -> Any:
        if given != "auto" and (type(given) not in (int, float) or not given > 0):
            raise ValueError("give megabytes above 0, or auto")
        return given

    def bucket_bytes(self, *, on_gpu: bool) -> int:
        """Return the size of a bucket that is in a GPU's memory, or in a CPU's."""
        chosen = self.bucket_megabytes
        return int((GPU_BUCKET if on_gpu else CPU_BUCKET) if chosen == "auto" else chosen * 2**20)


class TrainerConfig(Config):
    """Sizes of batches and updates, from which everything else is derived; they need not be multiples of each other."""

    algorithm: AlgorithmName | None = None
    """A preset: the settings of this algorithm, each of which the recipe may override."""
    updates: int = Field(100, ge=1)
    """Number of updates."""
    groups_per_update: int = Field(32, ge=1)
    """Groups (tasks) per update."""
    group_size: int = Field(8, ge=1)
    """Samples (episodes) per task. Estimators that compare them need at least two."""
    epochs: int = Field(1, ge=1)
    """Passes over the batch of one update."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps per epoch; a minibatch consists of whole groups."""
    tokens_per_microbatch: int = Field(4096, ge=1)
    """Tokens of one forward and backward pass on one rank."""
    packing: Packing = "auto"
    """Several sequences share a row and compute common prefixes once. `auto`: if a test at the start proves the model
    correct that way, otherwise one sequence per row, with a warning; `always`: otherwise an error; `never`: always one
    sequence per row."""
    max_staleness: int = Field(0, ge=0)
    """Maximum number of updates by which the weights that sampled a token may lag: 0 is synchronous."""
    proximal_logprobs: Literal["behaviour", "recomputed"] = "behaviour"
    """Denominator of the ratio: the engine's log-probs, or the learner's own before the update, with `correction`
    (decoupled PPO, arXiv 2110.00641). In 16 bits and with `max_staleness` above 0 the default is the learner's, except
    for `cispo` and `vtrace`: see docs/algorithms.md."""
    mismatch: Literal["stop", "ignore"] = "stop"
    """What to do when learner and engine log-probs of tokens sampled with the current weights differ by more than
    rounding explains (1e-4 nats in float32, measured in 16 bits): stop before anything is trained on them, or
    continue."""
    reference_path: str | None = None
    """The reference policy, or the teacher: a folder or hub name with the policy's vocabulary; default: the start
    model."""
    hold_reference: bool = False
    """Load the reference policy even without `kl`, for your own loss or estimator that reads its log-probs."""
    shuffle_rewards: bool = False
    """A control experiment: permute the rewards of a batch among its samples, so that they carry no signal."""
    failure_budget: float = Field(0.5, ge=0, le=1)
    """Share of the samples of recent groups that may be lost before the run ends with an error."""
    eval_every: int = Field(0, ge=0)
    """Evaluate every this many updates; 0: only before and after training."""
    save_every: SaveEvery = "auto"
    """Checkpoint every this many updates; 0: only at the end. `auto`: after the update at which 50 times the last
    checkpoint's writing time has passed, which costs 2 % of the time; the first after 5 minutes."""
    save_every_minutes: float = Field(30.0, ge=0)
    """Checkpoint also after the update that ends this many minutes after the last checkpoint began, whatever
    `save_every` is: a crash loses at most this. 0 turns this off."""
    keep_checkpoints: int = Field(2, ge=1)
    """Number of newest checkpoints to keep."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Keep an exponential moving average of the policy, with this decay per update, and export it next to the
    policy."""
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
    replay: ReplayConfig = ReplayConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    weight_sync: WeightSyncConfig = WeightSyncConfig()

    @model_validator(mode="after")
    def _minibatches_hold_groups(self) -> TrainerConfig:
        if self.minibatches > self.groups_per_update:
            raise ValueError(
                f"trainer.minibatches is {self.minibatches}, but an update has only {self.groups_per_update} groups; "
                "a minibatch needs whole groups"
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
        """Optimizer steps of the policy, without those updates that train only a critic."""
        waiting = self.critic.warmup_updates if self.critic else 0
        return max(self.updates - waiting, 0) * self.epochs * self.minibatches

    @property
    def tickets(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_update

    @property
    def refill_groups(self) -> int:
        return 2 * self.groups_per_update if self.filter.refill_groups is None else self.filter.refill_groups
