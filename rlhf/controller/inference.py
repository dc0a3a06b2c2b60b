"""Engines without a learner: evaluate a checkpoint, or generate a reply with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from io import StringIO
from itertools import chain, permutations
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from rlhf.cluster.loop_thread import run_anywhere
from rlhf.cluster.watch import while_alive
from rlhf.cluster.worker import Cluster
from rlhf.controller.build import Serving, started_cluster, started_serving
from rlhf.data.tasks import Tell, asking_tasks, held_out_problems, load_sets
from rlhf.engines.vllm.environment import installed_device
from rlhf.errors import ConfigError, UserError, logged_in
from rlhf.images import IMAGE_MARK, Image
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.policies import Assignment, of_adapter
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import playing_roles
from rlhf.rollout.evaluation import Evaluation, Evaluator
from rlhf.runs.payoff import Results, add_game, games_of
from rlhf.runs.view import PlainView
from rlhf.types import Message, Sampling, Task

T = TypeVar("T")


def untold(message: str) -> None:
    """Discard a message."""


def evaluate_model(recipe: Recipe, model: str, tell: Tell = untold) -> Evaluation:
    """Evaluate the model in a Hugging Face folder on every evaluation set of the recipe."""
    loaded = load_sets(recipe.data.eval_sets, asks=recipe.tasks_ask)

    async def evaluate(serving: Serving) -> Evaluation:
        return await evaluator_of(recipe, serving, loaded, tell)(version=0)

    return run_anywhere(_served(recipe, model, evaluate, asking_tasks(loaded), tell))


def evaluator_of(recipe: Recipe, serving: Serving, loaded: Mapping[str, Sequence[Task]], tell: Tell) -> Evaluator:
    """Return an evaluator for the `loaded` sets of a recipe that has at least one."""
    for words in serving.renderer.told:
        tell(words)
    context = serving.facts.max_context_tokens if recipe.tasks_ask else None
    length, seed = serving.renderer.prompt_tokens, recipe.seed
    problems = held_out_problems(recipe.data, loaded, length, tell, seed=seed, context=context)
    evaluator = serving.evaluator(recipe.data, problems, max_tokens=recipe.sampling.max_tokens, seed=seed)
    assert evaluator is not None
    return evaluator


def play_tournament(
    recipe: Recipe, model: str, contestants: Sequence[str], tell: Tell = untold
) -> tuple[Results, dict[str, dict[str, float | None]]]:
    """Play a round robin between adapters of `model`, on every evaluation set of the recipe and in the training
    environment. Each pair plays every task twice: each contestant takes the first role once, and the other all other
    roles. `contestants` are named as in `policies.NAME.adapter`. Returns the results, and the points per game that each
    contestant won in the first role against each other one. Raises `ConfigError` for an environment with one role."""
    environment = recipe.environment and recipe.environment.model_copy(update={"eval_arguments": {}})
    policies = {name: of_adapter(name, recipe.model.path) for name in contestants}
    recipe = recipe.model_copy(update={"policies": policies, "league": None, "environment": environment})
    results: Results = {}
    as_first: dict[str, dict[str, float | None]] = {name: {} for name in contestants}

    async def play_all(serving: Serving) -> None:
        roles = serving.surroundings.training.roles
        if len(roles) < 2:
            raise ConfigError(f"a tournament needs an environment with several roles; this one has {roles[0]}")
        evaluator = evaluator_of(recipe, serving, loaded, tell)
        for first, other in permutations(contestants, 2):
            seated = dict.fromkeys(roles, other) | {roles[0]: first}
            evaluation = await evaluator.played_by(lambda role, *_, seated=seated: seated[role])(version=0)
            groups = chain.from_iterable(one.groups for one in evaluation.sets)
            games = [game for group in groups for game in games_of(group, len(roles))]
            for game in games:
                add_game(results, *game)
            won = [points if player == first else 1 - points for player, _, points in games]
            as_first[first][other] = fmean(won) if won else None

    loaded = load_sets(recipe.data.eval_sets, asks=recipe.tasks_ask)
    run_anywhere(_served(recipe, model, play_all, asking_tasks(loaded), tell, seat=lambda _: lambda *_: ""))
    return results, as_first


def replies(
    model: str,
    prompts: Sequence[str],
    *,
    images: Sequence[Image] = (),
    max_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """Return a reply to each user message, by one engine in this process; each message begins with the images. Raises
    `UserError` for a prompt that leaves no room, and `ModelError` for images and a model that sees none."""

    async def answer(serving: Serving, prompt: str) -> str:
        asked = Message(role="user", content=IMAGE_MARK * len(images) + prompt, images=tuple(images))
        tokens = serving.renderer.prompt([asked])
        room = min(max_tokens, serving.facts.max_context_tokens - len(tokens.token_ids))
        if room < 1:
            raise UserError(
                f"the prompt has {len(tokens.token_ids)} tokens, which leaves no room for a reply in the model's "
                f"context of {serving.facts.max_context_tokens}; shorten it"
            )
        completion = await serving.router.generate(
            tokens, sampling=Sampling(temperature=temperature, max_tokens=room), seed=seed, session="generate"
        )
        return serving.renderer.text(completion.token_ids)

    async def answers(serving: Serving) -> list[str]:
        return [await answer(serving, prompt) for prompt in prompts]

    return run_anywhere(served_here(model, answers, sees=bool(images)))


async def served_here(
    model: str, work: Callable[[Serving], Coroutine[Any, Any, T]], *, structured: bool = False, sees: bool = False
) -> T:
    """Run `work` with one engine in this process that serves `model`; returns its result. `structured`: it can hold
    replies to a grammar; `sees`: it can be shown images."""
    one_process = {
        "model": {"path": model, "tower": "frozen" if sees else None},
        "data": {"train": {"path": "none is read"}},
        "cluster": {"kind": "local"},
        "rollout": {"gpus_per_engine": int(installed_device() == "cuda"), "structured_outputs": structured},
    }
    return await _served(recipe_from(one_process).recipe, model, work)


async def _served(
    recipe: Recipe,
    model: str,
    work: Callable[[Serving], Coroutine[Any, Any, T]],
    asked: Iterable[Task] = (),
    tell: Tell = untold,
    seat: Callable[[tuple[str, ...]], Assignment] | None = None,
) -> T:
    """Run `work` with engines that serve `model`, and return its result. The engines' logs are deleted."""

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)

        async def serve_and_work(cluster: Cluster) -> T:
            async with started_serving(
                recipe, cluster, model, logs=logs, publishes=False, tell=tell, asked=asked, seat=seat
            ) as serving:
                return await work(serving)

        with (logs / "errors.log").open("w") as log, logged_in(log):
            async with started_cluster(recipe.cluster, playing_roles(recipe), logs, PlainView(StringIO())) as cluster:
                return await while_alive(cluster, serve_and_work(cluster))
