"""The schema of a recipe: the settings of all parts, and checks across parts, without torch, ray or vllm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from rlhf.cluster.config import ClusterConfig
from rlhf.config import Config, is_piece
from rlhf.data.config import DataConfig
from rlhf.engines.config import RolloutConfig, SamplingConfig
from rlhf.env.config import EnvironmentConfig
from rlhf.http.binding import LOOPBACK, is_loopback
from rlhf.http.config import Url
from rlhf.models.config import ModelConfig
from rlhf.recipe.devices import check_colocation, check_rank_gpus
from rlhf.recipe.kinds import FROM_DATA, OF_EXAMPLES, PLAYED
from rlhf.recipe.policies import PolicyConfig, check_policies, trainer_of
from rlhf.reward.config import RewardConfig
from rlhf.rollout.agent_config import AgentConfig
from rlhf.runs.loggers import LIBRARIES
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.composition import check_composition
from rlhf.trainer.credit.registry import is_corrected, needs_reference
from rlhf.trainer.league import LeagueConfig, check_league

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class CallbackConfig(Config):
    """A user-defined callback between updates; a plain `module:Class` has no arguments."""

    call: str
    """`module:Class` of an `rlhf.Callback`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"call": value} if isinstance(value, str) else value

    @field_validator("call")
    @classmethod
    def _is_a_name(cls, call: str) -> str:
        if not is_piece(call):
            raise ValueError(f"{call!r} is not of the form module:Class")
        return call


class PrometheusConfig(Config):
    """A server that Prometheus asks for the newest metrics of the run, at `/metrics`."""

    port: int | None = Field(None, ge=0, le=65535)
    """Port; 0: any free one; null: no server."""
    host: str = LOOPBACK
    """Address to listen on. One that other machines can reach needs a token."""
    token_env: str | None = None
    """Environment variable with the bearer token that each request must bring."""

    @model_validator(mode="after")
    def _has_a_token(self) -> PrometheusConfig:
        if self.token_env is None and not is_loopback(self.host):
            raise ValueError(f"host {self.host} can be reached from other machines: set token_env, or leave host out")
        return self


class RunConfig(Config):
    """Settings of the run folder and the loggers."""

    dir: str | None = None
    """Folder of the run; default: `runs/NAME`. An existing folder is renamed to `NAME.1`, `NAME.2`, …"""
    loggers: tuple[str, ...] = ("tensorboard",)
    """Loggers of metrics, in addition to the console and `metrics.jsonl`: `tensorboard`, `wandb`, `mlflow`, `trackio`,
    `comet`, or your own `module:Class`."""
    table_every: int = Field(10, ge=0)
    """Number of updates between tables of a few episodes for the loggers that support tables; 0: never."""
    prometheus: PrometheusConfig = PrometheusConfig()
    otlp: Url | None = None
    """OTLP collector that receives a trace of every update, for instance `http://localhost:4318`. By default the one
    that the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT` names, if it is set."""
    live: bool = True
    """Show a live view if the output is a terminal, otherwise plain lines."""
    show_replies: bool = True
    """Show a reply with its question and its reward after updates 1, 2, 4, 8, …"""
    max_restarts: int = Field(3, ge=0)
    """How often `rlhf train` restarts by itself from the last checkpoint after a failure that this may cure: a process
    that died or hangs, a lost node. It does not restart before the first update, nor after three consecutive restarts
    without progress; 0: never."""
    silence_minutes: float = Field(10, gt=0)
    """A controller that does not react for so long writes its stacks to the logs, and is killed. Not with
    `cluster.kind: local`, where a debugger may hold it."""

    @field_validator("loggers")
    @classmethod
    def _are_known(cls, loggers: tuple[str, ...]) -> tuple[str, ...]:
        for name in loggers:
            if name not in LIBRARIES and not is_piece(name):
                raise ValueError(f"{name!r} is not one of {', '.join(LIBRARIES)}, nor of the form module:Class")
        return tuple(dict.fromkeys(loggers))


class Recipe(Config):
    """All settings of a run."""

    alternatives: ClassVar = {"environment": (), "agent": ()}

    name: str = Field("run", pattern=RUN_NAME)
    """Name of the run and of its folder."""
    kind: str = "rl"
    """`rl`: reinforcement learning; `distill`: the policy learns from its teacher (`trainer.reference_path`) on its own
    samples; `offline`: reinforcement learning from recorded episodes (`data.episodes`); `sft`: supervised fine-tuning;
    `reward_model`: a model of preferences, for `reward.model`; `preference`: direct preference optimization of the
    policy (DPO, IPO, KTO); or your own `module:function`. All use the same learner."""
    kind_arguments: dict[str, Any] = Field({})
    """Keyword arguments of your own kind."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the order of tasks and of every random draw."""
    model: ModelConfig
    data: DataConfig
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    environment: EnvironmentConfig | None = None
    """The environment of the episodes; without one a task is one question and one reply."""
    agent: AgentConfig | None = None
    """A program that drives the episodes instead, as a client of the policy."""
    policies: dict[str, PolicyConfig] = Field({})
    """Several policies, by name: adapters over one model, each with its own optimizer. Without any, the model plays all
    roles."""
    roles: dict[str, str] | str = Field({})
    """With `policies`: the policy of each of the environment's roles, or `module:function` `(role, task, ordinal) ->
    policy`, where `ordinal` numbers the groups of the run."""
    league: LeagueConfig | None = None
    """With `policies`, instead of `roles`: past versions of a policy as opponents."""
    trainer: TrainerConfig = TrainerConfig()
    cluster: ClusterConfig = ClusterConfig()
    run: RunConfig = RunConfig()
    callbacks: tuple[CallbackConfig, ...] = ()
    """User-defined callbacks between updates, called after the built-in ones, in this order."""
    python_path: tuple[str, ...] = ()
    """Folders with modules of `module:function`, searched before the current folder and installed packages. A module
    next to the recipe's file or above it is found automatically; its folder is then added here."""

    @field_validator("kind")
    @classmethod
    def _is_a_kind(cls, kind: str) -> str:
        known = (*PLAYED, *FROM_DATA)
        if kind not in known and not is_piece(kind):
            raise ValueError(f"must be {', '.join(known)}, or your own module:function")
        return kind

    @model_validator(mode="after")
    def _parts_agree(self) -> Recipe:
        check_composition(self.trainer)
        check_rank_gpus(self.trainer)
        self._policies_fit()
        if self.cluster.placement == "colocated":
            self._engines_take_turns()
        if self.cluster.kind == "local":
            self._fit_one_process()
        self._adapters_can_travel()
        self._routing_is_heard()
        self._attention_can_be_shared()
        self._coarse_engines_are_corrected()
        self._source_is_that_of_the_kind()
        self._environment_is_played()
        for key, dataset in self.data.sets.items():
            if dataset.seeds and (self.environment is None or self.environment.tools):
                lacks = "no environment; add one" if self.environment is None else "only tools; give path or tasks"
                raise ValueError(f"{key}.seeds are questions of an environment, but the recipe has {lacks}")
            if self.plays and self.reward.needs_answer and dataset.seeds:
                raise ValueError(
                    f"reward.kind: {self.reward.kind} compares with an answer, which {key}.seeds lack; use "
                    "reward.kind: environment"
                )
            if self.plays and self.reward.needs_answer and dataset.path and dataset.answer_column is None:
                raise ValueError(
                    f"{key}.answer_column is null, but reward.kind: {self.reward.kind} compares with an answer; "
                    "name its column"
                )
        if self.kind in ("reward_model", "preference"):
            self._pairs_are_there()
        if self.kind == "preference":
            self._pairs_fit_the_loss()
        self._updates_are_read()
        self._rewards_differ_where_groups_are_chosen()
        self._votes_are_answers()
        self._reward_is_there_where_it_is_read()
        self._judged_replies_have_company()
        if self.kind == "distill":
            self._follows_a_teacher()
        return self

    def _policies_fit(self) -> None:
        if not self.policies:
            if self.roles or self.league:
                raise ValueError("roles are played by policies, and the recipe has none; add policies")
            return
        backend = self.trainer.weight_sync.backend
        unfit = {
            f"kind: {self.kind}": self.kind != "rl",
            "a recipe without environment or agent": self.environment is None and self.agent is None,
            "model.lora": self.model.lora is not None,
            "trainer.critic": self.trainer.critic is not None,
            "trainer.ema_decay": self.trainer.ema_decay is not None,
            "trainer.replay": self.trainer.replay.groups > 0,
            "reward.kind: none": self.reward.kind == "none",
            "order: learnability": any(one.order == "learnability" for one in self.data.train_sets.values()),
            "trainer.reference_path": self.trainer.reference_path is not None,
            "cluster.placement: colocated": self.cluster.placement == "colocated",
            f"trainer.weight_sync.backend: {backend}": backend not in ("auto", "gloo"),
        }
        if found := next((key for key, given in unfit.items() if given), None):
            raise ValueError(f"policies do not go with {found}; remove one of them")
        for name, policy in self.policies.items():
            own = policy.model and "dtype" in policy.model.model_fields_set and policy.model.dtype
            if own and own != self.model.dtype:
                raise ValueError(f"policies.{name}.model.dtype is {own}, but model.dtype is {self.model.dtype}")
        corrected = self.model.dtype != "float32" or self.trainer.max_staleness > 0
        if self.league:
            check_league(self.league, {name: policy.trained for name, policy in self.policies.items()}, self.roles)
            if self.trainer.filter.equal_rewards:
                raise ValueError("trainer.filter.equal_rewards drops games that the league must count; set it to false")
        check_policies(self.policies, None if self.league else self.roles, self.trainer, corrected=corrected)

    def _environment_is_played(self) -> None:
        paid = any(scorer.kind == "environment" for scorer in self.reward.scorers.values())
        if self.environment is None and self.agent is None:
            if paid:
                raise ValueError(
                    "reward.kind is environment, but the recipe has neither environment nor agent; add one"
                )
            return
        if self.environment is not None and self.agent is not None:
            raise ValueError(
                "the recipe has both environment and agent; an agent has its own environment, so remove one"
            )
        if paid and self.environment is not None and self.environment.tools:
            raise ValueError(
                "reward.kind is environment, but the functions of environment.tools give no rewards; use exact, "
                "function or another kind"
            )
        if self.agent is not None and self.agent.program is None and paid != bool(self.agent.grader):
            raise ValueError(
                "reward.kind environment is what agent.grader gives to the episode of a command; write both or neither"
            )
        given = "environment" if self.environment is not None else "agent"
        if not self.plays:
            raise ValueError(f"kind: {self.kind} plays no episodes; remove {given}")
        if self.trainer.overlong.buffer_tokens:
            raise ValueError(
                f"trainer.overlong prices the length of one reply, and with {given} an episode has several; set "
                "trainer.overlong.buffer_tokens: 0"
            )

    def _updates_are_read(self) -> None:
        """Refuse settings that an update of this kind would not read."""
        trainer, examples = self.trainer, self.kind in OF_EXAMPLES
        if self.kind_arguments and not self.is_own_kind:
            raise ValueError(f"kind_arguments are for your own kind; kind is {self.kind}")
        if examples and trainer.epochs * trainer.minibatches > 1:
            raise ValueError(
                f"trainer.epochs and minibatches split an update of kind: rl; an update of kind: {self.kind} is one "
                "step; set trainer.updates instead"
            )
        if trainer.reference_path and self.kind != "preference" and (examples or not needs_reference(trainer)):
            raise ValueError(
                "nothing reads trainer.reference_path: trainer.kl.coefficient is 0, and this kind has no teacher; "
                "remove it"
            )
        if trainer.overlong.buffer_tokens > self.sampling.max_tokens:
            raise ValueError(
                f"trainer.overlong.buffer_tokens is {trainer.overlong.buffer_tokens}, more than sampling.max_tokens "
                f"({self.sampling.max_tokens}): the shortest reply would pay for its length"
            )

    def _rewards_differ_where_groups_are_chosen(self) -> None:
        """Refuse to choose by the variance of rewards where no update compares them."""
        chooses = [f"{key}.order" for key, one in self.data.train_sets.items() if one.order == "learnability"]
        chooses += ["trainer.replay"] * (self.trainer.replay.groups > 0)
        why = f"kind: {self.kind} does not learn from them" if self.kind != "rl" else "trainer.group_size is 1"
        if chooses and not self.is_own_kind and (self.kind != "rl" or self.trainer.group_size < 2):
            raise ValueError(f"{chooses[0]} chooses by how much the rewards of a group differ, but {why}; leave it out")

    def _source_is_that_of_the_kind(self) -> None:
        if self.is_own_kind:
            return
        if self.kind != "offline":
            if self.data.episodes is not None:
                raise ValueError(f"data.episodes is for kind: offline; kind: {self.kind} reads data.train")
            if self.data.train is None:
                raise ValueError("data.train is missing; give the training data")
        elif self.data.episodes is None:
            raise ValueError("data.episodes is required by kind: offline: a run folder, or its episodes")
        elif self.trainer.loss.policy == "policy_gradient" and not is_corrected(self.trainer):
            raise ValueError(
                "loss.policy policy_gradient is right only for the weights that sampled, and other weights sampled the "
                "recorded episodes; use ppo, vtrace, or proximal_logprobs recomputed with a correction"
            )

    def _pairs_are_there(self) -> None:
        for key, dataset in self.data.sets.items():
            if not dataset.holds_pairs:
                raise ValueError(
                    f"{key}.chosen_column and rejected_column are required by kind: {self.kind}: the two replies, for "
                    "instance chosen_column: chosen, rejected_column: rejected"
                )
        if self.model.lora and self.kind == "reward_model":
            raise ValueError("model.lora is for policies; kind: reward_model trains all weights")

    def _pairs_fit_the_loss(self) -> None:
        for key, dataset in self.data.sets.items():
            if dataset.margin_column is not None:
                raise ValueError(
                    f"{key}.margin_column is for kind: reward_model; kind: preference has no margins; remove it"
                )
        if self.trainer.preference.loss == "kto" and self.trainer.groups_per_update < 2:
            raise ValueError(
                "trainer.groups_per_update is 1, but preference.loss kto compares replies with those to other prompts"
            )

    def _adapters_can_travel(self) -> None:
        backend = self.trainer.weight_sync.backend
        if self.model.publishes_adapters and backend not in ("auto", "gloo"):
            raise ValueError(
                f"trainer.weight_sync.backend is {backend}, but model.lora.weight_sync: adapter travels by gloo alone; "
                "use auto, or weight_sync: merged"
            )

    def _routing_is_heard(self) -> None:
        if self.rollout.routing not in ("replay", "compare"):
            return
        size = self.trainer.deepspeed.sequence_parallel
        if size > 1:
            raise ValueError(
                f"rollout.routing is {self.rollout.routing}, but ranks that share rows "
                f"(trainer.deepspeed.sequence_parallel: {size}) choose experts for their columns alone; use ignore"
            )
        if max(self.rollout.tensor_parallel_sizes) > 1 and not self.rollout.gpus_per_engine:
            raise ValueError(
                f"rollout.routing is {self.rollout.routing}, but on a CPU only an engine of one process reports "
                "its experts; use rollout.tensor_parallel_size: 1, or ignore"
            )

    def _coarse_engines_are_corrected(self) -> None:
        """Engines with quantised weights or KV cache sample from another policy than the learner's."""
        coarse = self.rollout.quantised
        corrected = self.trainer.mismatch == "ignore" and is_corrected(self.trainer)
        if coarse and self.plays and not (corrected and self.trainer.weight_sync.tolerance):
            raise ValueError(
                f"{coarse}: engines then sample from coarser weights than the learner's; set trainer.mismatch: ignore, "
                "trainer.proximal_logprobs: recomputed (which weighs tokens by learner over engine) and "
                "trainer.weight_sync.tolerance: the difference in nats that a weight sync may leave, for instance 1.0"
            )

    def _attention_can_be_shared(self) -> None:
        size = self.trainer.deepspeed.sequence_parallel
        if size > 1 and self.model.attention not in ("auto", "sdpa"):
            raise ValueError(
                f"model.attention is {self.model.attention}, but ranks that share rows "
                f"(trainer.deepspeed.sequence_parallel: {size}) exchange heads around sdpa; use sdpa"
            )
        if size > 1 and self.model.tower:
            raise ValueError(
                f"model.tower shows images, but ranks that share rows (trainer.deepspeed.sequence_parallel: {size}) "
                "compute text alone; use sequence_parallel: 1"
            )

    def _engines_take_turns(self) -> None:
        if not self.plays:
            raise ValueError(
                f"cluster.placement is colocated, but kind: {self.kind} has no engines to share GPUs with; leave it out"
            )
        check_colocation(self.trainer, self.rollout)

    def _fit_one_process(self) -> None:
        engines, ranks = self.rollout.engines, self.trainer.deepspeed.ranks
        counts = {"rollout.engines": engines, "trainer.deepspeed.ranks": ranks}
        if len(self.bases) > 1:
            raise ValueError("policies with a model of their own have engines of their own; use cluster.kind=ray")
        for key, count in counts.items():
            if count != 1:
                raise ValueError(
                    f"{key} is {count}, but cluster.kind: local runs one engine and one rank in one process; "
                    "use cluster.kind=ray"
                )

        if self.environment is not None and self.environment.servers:
            raise ValueError(
                f"environment.servers is {self.environment.servers}, but cluster.kind: local starts no processes; "
                "leave it out, and this process hosts the environment, or use cluster.kind=ray"
            )

    def _votes_are_answers(self) -> None:
        """Refuse votes over whole replies, unless the reward compares the whole reply."""
        for name, dataset in self.data.eval_sets.items():
            if dataset.majority_at and dataset.vote_after is None and self.reward.kind != "exact":
                raise ValueError(
                    f"{self.data.eval_key(name)}.majority_at needs vote_after with reward.kind: {self.reward.kind}: "
                    "the mark after which a reply states its answer, for instance '####'"
                )

    def _reward_is_there_where_it_is_read(self) -> None:
        if self.reward.kind != "none" or not self.plays:
            return
        if self.trainer.advantage.estimator != "distillation":
            raise ValueError(
                f"reward.kind is none, but advantage.estimator {self.trainer.advantage.estimator} learns from rewards; "
                "give a reward"
            )
        if self.data.eval is not None:
            raise ValueError("no reward scores the replies to data.eval; set reward.kind, for instance to exact")

    def _judged_replies_have_company(self) -> None:
        """Require at least two replies to a problem for a judge that compares."""
        counts = {"trainer.group_size": self.trainer.group_size} | {
            f"{self.data.eval_key(name)}.samples": dataset.samples for name, dataset in self.data.eval_sets.items()
        }
        for key, count in counts.items():
            if self.plays and count < 2 and self.reward.compares:
                raise ValueError(f"{key} is {count}, but reward.judge.mode: pairwise compares replies; give at least 2")

    def _follows_a_teacher(self) -> None:
        if self.trainer.reference_path is None:
            raise ValueError("trainer.reference_path is required by kind: distill: the teacher, a model or run folder")
        chosen = {"algorithm": self.trainer.algorithm, "advantage.estimator": self.trainer.advantage.estimator}
        for key, value in chosen.items():
            if value not in ("distill", "distillation"):
                raise ValueError(f"trainer.{key} is {value}, which kind: distill does not run; use kind: rl")

    def of_policy(self, name: str) -> Recipe:
        """Return the recipe with which one policy would be trained alone; for `""` this one."""
        if not name:
            return self
        policy = self.all_policies[name]
        lora = policy.lora.model_copy(update={"weight_sync": "adapter"})
        trainer = trainer_of(self.trainer, name, policy)
        model = (policy.model or self.model).model_copy(update={"lora": lora, "dtype": self.model.dtype})
        return self.model_copy(update={"model": model, "trainer": trainer, "policies": {}, "roles": {}, "league": None})

    @property
    def all_policies(self) -> dict[str, PolicyConfig]:
        """The policies, and the members of the league, which begin as its policy does."""
        if self.league is None:
            return self.policies
        member = self.policies[self.league.policy].model_copy(update={"trained": False, "trainer": {}})
        return self.policies | dict.fromkeys(self.league.names, member)

    @property
    def bases(self) -> dict[str, tuple[str, ...]]:
        """The names of the policies over each model: over the recipe's by `""`, over another by the first of them."""
        found: dict[str, tuple[str, ...]] = {"": ()}
        for name, policy in self.all_policies.items():
            own = (base for base in found if base and self.all_policies[base].model == policy.model)
            base = next(own, name) if policy.model else ""
            found[base] = (*found.get(base, ()), name)
        return found

    def of_base(self, base: str) -> Recipe:
        """Return the recipe with one of its models, and the policies over it."""
        if len(self.bases) == 1:
            return self
        policies = {name: self.all_policies[name] for name in self.bases[base]}
        model = self.model if base == "" else self.of_policy(base).model.model_copy(update={"lora": None})
        return self.model_copy(update={"model": model, "policies": policies, "league": None})

    @property
    def trained_policies(self) -> tuple[str, ...]:
        return tuple(name for name, policy in self.policies.items() if policy.trained) or ("",)

    @property
    def plays(self) -> bool:
        """Whether engines play episodes that a reward scores."""
        return self.kind in PLAYED

    @property
    def tasks_ask(self) -> bool:
        """Whether tasks contain the questions, instead of an environment or agent."""
        return self.environment is None and self.agent is None

    @property
    def is_own_kind(self) -> bool:
        """Whether the kind is user-defined, which may read any settings."""
        return is_piece(self.kind)

    @property
    def reply_limits(self) -> dict[str, int]:
        """All maximum reply lengths in the recipe, by key."""
        evaluated = {
            f"{self.data.eval_key(name)}.max_tokens": dataset.max_tokens
            for name, dataset in self.data.eval_sets.items()
            if dataset.max_tokens
        }
        return {"sampling.max_tokens": self.sampling.max_tokens} | evaluated

    @property
    def run_dir(self) -> Path:
        return Path(self.run.dir).expanduser() if self.run.dir else Path("runs") / self.name
