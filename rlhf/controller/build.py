"""The composition root: the only module that knows every part. It starts, connects and stops them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from rlhf.chat.format_choice import format_for
from rlhf.chat.image_reader import ImageReader
from rlhf.chat.renderer import ChatRenderer
from rlhf.cluster.config import ClusterConfig
from rlhf.cluster.local import LocalCluster
from rlhf.cluster.ray_cluster import RayCluster
from rlhf.cluster.restarts import Restarts
from rlhf.cluster.roles import Role, worker_name
from rlhf.cluster.worker import Cluster, Worker
from rlhf.controller.engine_keeper import EngineKeeper
from rlhf.controller.environments import Surroundings, started_surroundings
from rlhf.data.config import DataConfig
from rlhf.data.tasks import Tell
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router, RouterByPolicy
from rlhf.engines.vllm.settings import EngineFacts, EngineSettings
from rlhf.errors import ConfigError, ModelError, RlhfError
from rlhf.http.outages import Outages
from rlhf.models.config import LoraConfig, ModelConfig, RoutingMode
from rlhf.recipe.policies import Assignment, assignment, check_roles
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import (
    LEARNER,
    REWARD,
    engine_device,
    engine_sizes,
    learner_device,
    reward_device,
    transfer_backend,
)
from rlhf.reward.config import RewardConfig, ScorerConfig
from rlhf.reward.model import ModelReward
from rlhf.reward.model_worker import RewardModelSettings
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import LiveReward
from rlhf.rollout.dry_run import opening_of
from rlhf.rollout.evaluation import EvaluationSet, Evaluator
from rlhf.rollout.group import GroupRollout
from rlhf.runs.view import View
from rlhf.trainer.league import League
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.policies import PolicyLearners
from rlhf.trainer.settings import LearnerSettings, Trained
from rlhf.types import Sampling, Task, Tool
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from rlhf.weight_sync.types import engine_backend

L = TypeVar("L", bound=RemoteLearner)


@asynccontextmanager
async def started_cluster(
    config: ClusterConfig, roles: Sequence[Role], logs: Path, view: View
) -> AsyncIterator[Cluster]:
    """Start a cluster with a place for every worker of `roles`, and stop it at the end."""
    # Read when torch is imported, which this process does after its workers: an engine may run in this process later.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if config.kind == "local":
        cluster: Cluster = LocalCluster()
    else:
        cluster = RayCluster(
            address=config.address, placement_timeout_seconds=config.placement_timeout_seconds, nodes=config.nodes
        )
    try:
        if config.kind == "ray":  # import the tokenizer's libraries while Ray and its workers start
            Thread(target=import_module, args=("rlhf.models.loading",), daemon=True).start()
        await cluster.start(roles, logs, view.message)
        yield cluster
    finally:
        await cluster.stop()


async def spawn_learners(config: ClusterConfig, cluster: Cluster) -> Sequence[Worker]:
    """Spawn the workers of the ranks. On a Ray cluster that was started here they communicate over loopback."""
    alone = config.address is None
    return await cluster.spawn(LEARNER, lambda index: {"name": f"{LEARNER}-{index}", "loopback": alone})


async def start_ranks(learner: RemoteLearner, recipe: Recipe, model: str, tell: Tell) -> dict[str, Any]:
    """Start the ranks and return the facts of the first. Report if they take one sequence per row."""
    from rlhf.models.loading import unsaved_settings

    if left := await asyncio.to_thread(unsaved_settings, model):
        tell(f"exports leave out {', '.join(left)} of generation_config.json, which transformers does not save again")
    facts = await learner.start(learner_settings(recipe, model))
    if why := facts["why_alone"]:
        tell(f"one sequence per row, and common prefixes are computed for each sample: {why}")
    return facts


def learner_settings(recipe: Recipe, model: str, policy: str = "") -> LearnerSettings:
    """Return the settings of the ranks; of a recipe with policies those of each, of which `policy` is one. A policy
    over another model has the path of that one."""
    own = recipe.of_policy(policy)
    if policy and (another := recipe.all_policies[policy].model):
        model = another.path or model
    return LearnerSettings(
        model_path=model,
        model=own.model.model_copy(update={"lora": adapters_of(own, model)}),
        trainer=own.trainer,
        # Examples were not sampled: their log-probs are the model's at temperature 1.
        temperature=recipe.sampling.temperature if recipe.kind in ("rl", "distill", "offline") else 1.0,
        device=learner_device(recipe),
        trains=trained_by(recipe),
        routing=routing_of(recipe, model) if recipe.plays else "ignore",
        seed=recipe.seed,
        policy=policy,
        adapter=recipe.all_policies[policy].adapter if policy else None,
        frozen=bool(policy) and policy not in recipe.trained_policies,
        policies=() if policy else tuple(learner_settings(recipe, model, name) for name in recipe.all_policies),
    )


def adapters_of(recipe: Recipe, model: str) -> LoraConfig | None:
    """Return the recipe's LoRA settings, resolved for the layers of this model."""
    if recipe.model.lora is None:
        return None
    from rlhf.models.lora import lora_for_model

    return lora_for_model(recipe.model.lora, model, trust_remote_code=recipe.model.trust_remote_code)


def routing_of(recipe: Recipe, model: str) -> RoutingMode:
    """Return how the engines' expert choices are used; `auto` is resolved for this model."""
    if recipe.rollout.routing != "auto":
        return recipe.rollout.routing
    shared = max(recipe.rollout.tensor_parallel_sizes) > 1 or recipe.trainer.deepspeed.sequence_parallel > 1
    if shared or engine_device(recipe) != "cpu":
        return "ignore"
    from rlhf.models.routing import is_replayed

    return "replay" if is_replayed(model, trust_remote_code=recipe.model.trust_remote_code) else "ignore"


def trained_by(recipe: Recipe) -> Trained:
    kinds: Mapping[str, Trained] = {"reward_model": "reward_model", "preference": "preference"}
    return kinds.get(recipe.kind, "policy")


def make_learner(recipe: Recipe, workers: Sequence[Worker], league: League | None = None) -> RemoteLearner:
    """Return the learner of the policy, or of several."""
    if recipe.policies:
        return learner_of(PolicyLearners, recipe, workers, league=league)
    return learner_of(RemoteLearner, recipe, workers)


def make_league(recipe: Recipe, folder: Path) -> League | None:
    """Return the recipe's league, which copies its members into `folder`. Raises `ConfigError`."""
    trained = recipe.trained_policies
    fixed = [name for name in recipe.policies if name not in trained]
    return League(recipe.league, trained, fixed, seed=recipe.seed, folder=folder) if recipe.league else None


def learner_of(kind: type[L], recipe: Recipe, workers: Sequence[Worker], **more: Any) -> L:
    """Return a learner of policies, or of another class that trains with the same ranks."""
    return kind(
        workers,
        recipe.trainer,
        max_tokens=recipe.sampling.max_tokens,
        shuffle_seed=recipe.seed,
        transfer_backend=transfer_backend(recipe),
        publish_timeout_seconds=recipe.rollout.weight_sync_timeout_seconds,
        plays=recipe.plays,
        **more,
    )


def engine_settings(recipe: Recipe, model: str, stop_token_ids: tuple[int, ...], *, publishes: bool) -> EngineSettings:
    """Return the settings of an engine of one GPU for `model`; `publishes` is whether it receives weight syncs."""
    policies = recipe.all_policies if publishes else recipe.policies
    if policies:  # an engine has room for the largest
        recipe = recipe.of_policy(max(policies, key=lambda name: policies[name].lora.rank))
    served = publishes or policies
    adapters = adapters_of(recipe, model) if served and recipe.model.publishes_adapters else None
    return EngineSettings(
        model_path=model,
        model=recipe.model.model_copy(update={"lora": adapters}),
        rollout=recipe.rollout,
        policies=tuple(policies) or ("",),
        adapters=() if publishes else tuple(policy.adapter or "" for policy in policies.values()),
        stop_token_ids=tuple(dict.fromkeys((*stop_token_ids, *recipe.sampling.stop_token_ids))),
        stop=recipe.sampling.stop,
        weight_transfer=engine_backend(transfer_backend(recipe)) if publishes else None,
        records_routing=publishes and routing_of(recipe, model) != "ignore",
        sleeps=publishes and recipe.cluster.placement == "colocated",
        device=engine_device(recipe),
    )


def context_reached(
    recipe: Recipe, tasks: Sequence[Sequence[Task]], prompt_tokens: Callable[[Task], int], context: int
) -> int:
    """Return the most tokens of a prompt with its reply, by the longest prompt in characters where none has images;
    without tasks that ask, the whole context of the model."""
    if not recipe.tasks_ask:
        return context
    if shown := [task for own in tasks for task in own if any(message.images for message in task.messages)]:
        return min(context, max(map(prompt_tokens, shown)) + recipe.sampling.max_tokens)
    longest = max(chain.from_iterable(tasks), key=lambda task: sum(len(message.content) for message in task.messages))
    return min(context, prompt_tokens(longest) + recipe.sampling.max_tokens)


async def make_publisher(recipe: Recipe, learner: RemoteLearner, serving: Serving, context_tokens: int) -> Publisher:
    """Prepare weight syncs between learner and engines, whose longest canary has `context_tokens`; with the start
    check, also verify the path between them."""
    limits = tolerance_for(recipe.model.dtype, recipe.trainer.weight_sync.tolerance)
    publisher = Publisher(
        learner,
        serving.engines,
        canary=canary(serving.facts.vocab_size, context_tokens, limits, seed=recipe.seed, image=serving.renderer.noise),
        phase_timeout_seconds=recipe.rollout.weight_sync_timeout_seconds,
    )
    if recipe.trainer.weight_sync.verify_at_start:
        await publisher.verify()
    return publisher


@dataclass(frozen=True, slots=True)
class Serving:
    """Running engines, and the parts that generate with them."""

    engines: tuple[RemoteEngine, ...]
    router: Router | RouterByPolicy
    renderer: ChatRenderer
    reward: LiveReward
    facts: EngineFacts
    surroundings: Surroundings
    outages: Outages
    policy_of: Assignment
    evaluated: str | None
    """The policy that plays every role of evaluations; None: `policy_of` says who."""
    trained: tuple[str, ...]

    def rollout(
        self,
        sampling: Sampling,
        *,
        group_size: int,
        purpose: str,
        seed: int,
        filter_equal_rewards: bool = False,
        greedy_baseline: bool = False,
    ) -> GroupRollout:
        training, evaluated = purpose == "train", self.evaluated
        alone: Assignment | None = None if training or evaluated is None else lambda role, task, ordinal: evaluated
        return GroupRollout(
            engine=self.router,
            renderer=self.renderer,
            reward=self.reward,
            sampling=sampling,
            group_size=group_size,
            max_context_tokens=self.facts.max_context_tokens,
            run_seed=seed,
            filter_equal_rewards=filter_equal_rewards,
            greedy_baseline=greedy_baseline,
            purpose=purpose,
            play=self.surroundings.play(purpose),
            policy_of=alone or self.policy_of,
            trained=self.trained if training else (None,),
        )

    async def opening(self, seed: int, task: Task) -> str | None:
        """Return the first episode's prompt, for inspection; None without an environment. Raises `ConfigError`."""
        play, longest = self.surroundings.training, self.facts.max_context_tokens
        return await opening_of(play, task, self.renderer, run_seed=seed, max_context_tokens=longest)

    def evaluator(
        self, data: DataConfig, problems: Mapping[str, Sequence[Task]], *, max_tokens: int, seed: int
    ) -> Evaluator | None:
        """Return an evaluator of every set, each with its own sampling. `max_tokens` bounds replies where the set has
        no limit; `problems` are keyed by the name of their set."""
        sets = []
        for name, config in data.eval_sets.items():
            sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens or max_tokens)
            rollout = self.rollout(sampling, group_size=config.samples, purpose=f"eval-{name}", seed=seed)
            sets.append(EvaluationSet(name=name, config=config, tasks=problems[name], rollout=rollout))
        return Evaluator(sets) if sets else None


def load_renderer(recipe: Recipe, model: str, tools: Sequence[Tool] = ()) -> ChatRenderer:
    """Load the tokenizer and chat template. Imports transformers: in a separate thread, these seconds overlap with the
    start of learner and engines.

    Raises `ModelError` for a chat template that cannot render the environment's messages, `ConfigError` for one that
    writes tool calls in another format than the recipe says.
    """
    from rlhf.models.loading import declared_ends, load_tokenizer

    trust = recipe.model.trust_remote_code
    tokenizer = load_tokenizer(model, trust_remote_code=trust)
    ends = declared_ends(model, trust_remote_code=trust)
    images = ImageReader(model, trust_remote_code=trust) if recipe.model.tower else None
    renderer = ChatRenderer(tokenizer, recipe.data.chat_template_arguments, tools, ends, images=images)
    if unknown := [token for token in recipe.sampling.stop_token_ids if token >= len(tokenizer)]:
        raise ConfigError(f"sampling.stop_token_ids has {unknown}, but {model} has only {len(tokenizer)} tokens")
    appends = recipe.environment is not None and recipe.environment.last_n is None
    if appends and (refused := renderer.refusal(["tool" if tools else "user"])):
        raise ModelError(f"model.path={model}: {refused}")
    if recipe.environment is not None and tools:
        return renderer.reading(format_for(renderer, recipe.environment.tool_format, "environment.tool_format"))
    if recipe.agent is not None:
        return renderer.reading(format_for(renderer, recipe.agent.tool_format, "agent.tool_format"))
    return renderer


def check_asked(model: str, renderer: ChatRenderer, asked: Iterable[Task]) -> None:
    """Check that the chat template renders the data's prompts: one is rendered for every sequence of roles. Raises
    `ModelError`."""
    for task in {_form(task): task for task in asked}.values():
        try:
            renderer.prompt_tokens(task)
        except ModelError as error:
            raise ModelError(f"model.path={model}: {error}") from None


def _form(task: Task) -> tuple[object, ...]:
    """Return the parts of a task's prompt: the roles, with their tool calls and reasoning, and whether it has tools."""
    parts = ((one.role, bool(one.tool_calls), bool(one.reasoning_content)) for one in task.messages)
    return (bool(task.tools), *parts)


@asynccontextmanager
async def started_serving(
    recipe: Recipe,
    cluster: Cluster,
    model: str,
    *,
    logs: Path,
    publishes: bool,
    tell: Tell,
    asked: Iterable[Task] = (),
    seat: Callable[[tuple[str, ...]], Assignment] | None = None,
) -> AsyncIterator[Serving]:
    """Start engines on `model`, the reward's workers, and environments or the agent's endpoint. Before that, check that
    the chat template renders `asked`. Later outages of servers are reported. `seat` gives the policies of the
    environment's roles, instead of the recipe's `roles`."""
    outages = Outages(seconds=60 * recipe.reward.patience_minutes, tell=tell)
    async with AsyncExitStack() as stack:
        alone = recipe.cluster.address is None
        surroundings = await stack.enter_async_context(
            started_surroundings(
                recipe.environment,
                recipe.agent,
                cluster,
                tell,
                alone=alone,
                structured=recipe.rollout.structured_outputs,
                logs=logs,
            )
        )
        roles, league = surroundings.training.roles, recipe.league
        if seat is None and league is None:
            evaluated = surroundings.evaluation.roles if recipe.data.eval_sets else ()
            check_roles(recipe.policies, recipe.roles, roles, evaluated)
        renderer = await asyncio.to_thread(load_renderer, recipe, model, surroundings.tools)
        if recipe.environment is None and recipe.agent is None:  # their later messages are not known yet
            check_asked(model, renderer, asked)
        settings = {
            base: engine_settings(recipe.of_base(base), own, renderer.stop_token_ids, publishes=publishes)
            for base, own in models_of(recipe, model).items()
        }
        for base, one in settings.items():
            if base:
                await asyncio.to_thread(check_same_texts, renderer, one)
        engines = await spawn_engines(recipe, cluster, settings)
        reward = await spawn_reward(recipe.reward, cluster, model, recipe.model, logs, outages)
        stack.push_async_callback(reward.close)
        facts = await start_engines(engines, reward, together=recipe.rollout.gpus_per_engine % 1 == 0)
        stack.push_async_callback(stop_engines, engines)
        yield Serving(
            engines, routed(engines), renderer, reward, facts, surroundings, outages,
            seat(roles) if seat else assignment(recipe.policies, recipe.roles),
            league.policy if league else None, recipe.trained_policies,
        )  # fmt: skip


def models_of(recipe: Recipe, model: str) -> dict[str, str]:
    """Return the folder or hub name of each model that engines serve (`Recipe.bases`); `model` is the recipe's."""
    others = {base: recipe.all_policies[base].model for base in recipe.bases if base}
    return {"": model} | {base: str(own and own.path) for base, own in others.items()}


def check_same_texts(renderer: ChatRenderer, settings: EngineSettings) -> None:
    """Check that the engine's model reads and writes texts as the renderer's does. Raises `ConfigError`."""
    from rlhf.models.loading import load_tokenizer

    own, path = renderer.tokenizer, settings.model_path
    other = load_tokenizer(path, trust_remote_code=settings.model.trust_remote_code)
    if (own.get_vocab(), own.chat_template) != (other.get_vocab(), other.chat_template):
        raise ConfigError(
            f"policies {', '.join(settings.policies)}: the tokenizer or chat template of {path} is another than that "
            "of the recipe's model; use a model of the same family"
        )


def routed(engines: Sequence[RemoteEngine]) -> Router | RouterByPolicy:
    """Return what sends requests to the engines that hold their policy."""
    routers = {held: Router([one for one in engines if one.policies == held]) for held in {e.policies for e in engines}}
    if len(routers) == 1:
        return routers[engines[0].policies]
    return RouterByPolicy({policy: router for held, router in routers.items() for policy in held})


async def start_engines(engines: Sequence[RemoteEngine], reward: LiveReward, *, together: bool) -> EngineFacts:
    """Start the reward and the engines. Return the facts of the first engine, with the smallest context and vocabulary
    of all. Engines that share a GPU start one after another: vLLM counts all memory that is taken during its start as
    its own."""
    if together:
        starting = asyncio.gather(*(engine.start() for engine in engines))
        await asyncio.gather(starting, reward.start())
        facts = starting.result()
    else:
        await reward.start()
        facts = [await engine.start() for engine in engines]
    return facts[0]._replace(
        max_context_tokens=min(one.max_context_tokens for one in facts),
        vocab_size=min(one.vocab_size for one in facts),
    )


async def spawn_engines(
    recipe: Recipe, cluster: Cluster, settings: Mapping[str, EngineSettings]
) -> tuple[RemoteEngine, ...]:
    """Spawn the engines of all models and sizes, not started yet. They have the `settings` of their model, each with
    its own size."""

    async def of_size(role: str, base: str, size: int) -> list[RemoteEngine]:
        sized = replace(settings[base], tensor_parallel_size=size)
        workers = await cluster.spawn(role, lambda index: {"name": worker_name(role, index), "settings": sized})
        held = sized.policies
        return [RemoteEngine(worker, recipe.rollout, transfer_ranks=size, policies=held) for worker in workers]

    spawned = await asyncio.gather(*(of_size(role, *kind) for role, kind in engine_sizes(recipe).items()))
    return tuple(engine for engines in spawned for engine in engines)


def keeper_of(recipe: Recipe, cluster: Cluster, router: Router, publisher: Publisher, tell: Tell) -> EngineKeeper:
    """Return the keeper of the engines of one model, which replaces lost ones."""
    return EngineKeeper(router, publisher, Restarts(cluster, tell), min_engines=recipe.rollout.min_engines)


async def spawn_reward(
    config: RewardConfig, cluster: Cluster, policy: str, model: ModelConfig, logs: Path, outages: Outages
) -> LiveReward:
    """Return the reward, not started yet. A reward model gets workers on the cluster, and reads the tokens of `policy`,
    with the settings of its `model`."""
    scorer, scoring = config.model_scorer, None
    if scorer is not None:
        scoring = await spawn_reward_model(scorer, cluster, policy, model, outages.tell)
    return make_reward(config, logs / "scorers.log", scoring, outages)


async def spawn_reward_model(
    scorer: ScorerConfig, cluster: Cluster, policy: str, model: ModelConfig, tell: Tell
) -> ModelReward:
    settings = RewardModelSettings(
        model=os.path.expanduser(str(scorer.model)),
        policy=policy,
        dtype=scorer.dtype,
        trust_remote_code=model.trust_remote_code,
        sees=model.tower is not None,
        device=reward_device(scorer),
        tokens_per_batch=scorer.tokens_per_batch,
    )
    return ModelReward(
        await cluster.spawn(REWARD, lambda index: {"name": worker_name(REWARD, index)}),
        settings,
        timeout_seconds=scorer.timeout_seconds,
        start_timeout_seconds=scorer.start_timeout_seconds,
        restarts=Restarts(cluster, tell),
    )


async def stop_engines(engines: Sequence[RemoteEngine]) -> None:
    """Stop all engines concurrently, since each may use its whole deadline. A dead or hanging engine is left to the
    cluster's end: its error would hide the one that ended the run."""

    async def stop(engine: RemoteEngine) -> None:
        with suppress(RlhfError):
            await engine.stop()

    await asyncio.gather(*map(stop, engines))
