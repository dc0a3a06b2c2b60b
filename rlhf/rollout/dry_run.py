"""Dry run: start one episode before training and show its rendered prompt for inspection."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.errors import ConfigError
from rlhf.protocols import Environments
from rlhf.rollout.episode import EpisodeRunner
from rlhf.rollout.renderer import ChatRenderer
from rlhf.rollout.seeds import environment_seed
from rlhf.rollout.timed_environment import TimedEnvironment
from rlhf.rollout.turns import WithEnvironment
from rlhf.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The first prompt of an episode: rendered text with special tokens, and its length in tokens."""

    text: str
    tokens: int


async def dry_run(
    task: Task, environments: Environments, renderer: ChatRenderer, *, run_seed: int, timeout_seconds: float
) -> Opening:
    """Reset one environment as training will, render its first messages, and close it.

    Raises `EnvironmentFailed`, and `ModelError` for a chat template that cannot render the messages.
    """
    environment = await environments.open("dry-run")
    try:
        timed = TimedEnvironment(environment, environments.spec.name, timeout_seconds)
        first = await timed.reset(task, environment_seed(run_seed=run_seed, purpose="train", task=task.id))
    finally:
        await environment.close()
    token_ids = renderer.prompt(first.messages).token_ids
    return Opening(text=renderer.whole_text(token_ids), tokens=len(token_ids))


async def opening_of(
    play: EpisodeRunner, task: Task, renderer: ChatRenderer, *, run_seed: int, max_context_tokens: int
) -> str | None:
    """Return the first episode's prompt, for inspection; None without an environment. Raises `ConfigError` when it
    leaves no room for a reply."""
    if not isinstance(play, WithEnvironment):
        return None
    first = await dry_run(
        task, play.environments, renderer, run_seed=run_seed, timeout_seconds=play.rules.timeout_seconds
    )
    if first.tokens >= max_context_tokens:
        raise ConfigError(
            f"what the environment asks has {first.tokens} tokens, and the context is {max_context_tokens}: there is "
            "no room for a reply; raise rollout.max_context_tokens"
        )
    return f"the first episode is asked ({first.tokens} tokens):\n{first.text}"
