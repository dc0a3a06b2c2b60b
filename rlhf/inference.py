"""Engines without a learner: evaluate a checkpoint, or ask it something."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path

from rlhf.errors import UserError
from rlhf.recipe import Recipe, recipe_from
from rlhf.roles import ENGINE
from rlhf.rollout.evaluation import Evaluation
from rlhf.runs.view import PlainView
from rlhf.types import Message, Sampling
from rlhf.wiring import started_cluster, started_serving


def evaluate_model(recipe: Recipe, model: str) -> Evaluation:
    """Every held-out task of the recipe once, greedily, by the model in a Hugging Face folder."""

    async def run() -> Evaluation:
        async with AsyncExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = await stack.enter_async_context(started_cluster(recipe, (ENGINE,), logs, PlainView(StringIO())))
            serving = await stack.enter_async_context(started_serving(recipe, cluster, model, publishes=False))
            evaluator = serving.evaluator(recipe)
            assert evaluator is not None
            return await evaluator(version=0)

    return asyncio.run(run())


def reply(model: str, prompt: str, *, max_tokens: int = 128, temperature: float = 0.0, seed: int = 0) -> str:
    """One reply to one user message, by one engine in this process. Raises `UserError` for a prompt without room."""
    recipe = recipe_from(
        {
            "model": {"path": model},
            "data": {"train": {"sorting": {}}},
            "cluster": {"kind": "local"},
        }
    ).recipe

    async def run() -> str:
        async with AsyncExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = await stack.enter_async_context(started_cluster(recipe, (ENGINE,), logs, PlainView(StringIO())))
            serving = await stack.enter_async_context(started_serving(recipe, cluster, model, publishes=False))
            tokens = serving.renderer.prompt((Message(role="user", content=prompt),))
            room = min(max_tokens, serving.facts.max_context_tokens - len(tokens.token_ids))
            if room < 1:
                raise UserError(
                    f"the prompt has {len(tokens.token_ids)} tokens and the model's context "
                    f"{serving.facts.max_context_tokens}: there is no room for a reply; shorten it"
                )
            completion = await serving.router.generate(
                tokens, sampling=Sampling(temperature=temperature, max_tokens=room), seed=seed, session="generate"
            )
            return serving.renderer.text(completion.token_ids)

    return asyncio.run(run())
