"""Dry run: start one episode before training and show its rendered prompt for inspection."""

from __future__ import annotations

from rlhf.chat.renderer import ChatRenderer
from rlhf.errors import ConfigError
from rlhf.rollout.episode import EpisodeRunner
from rlhf.rollout.seeds import environment_seed
from rlhf.rollout.timed_environment import TimedEnvironment
from rlhf.rollout.turns import WithEnvironment
from rlhf.types import Task


async def opening_of(
    play: EpisodeRunner, task: Task, renderer: ChatRenderer, *, run_seed: int, max_context_tokens: int
) -> str | None:
    """Reset one environment as training will, close it, and return its rendered prompt; None without an environment.
    Raises `ConfigError` when the prompt leaves no room for a reply, `EnvironmentFailed`, and `ModelError`."""
    if not isinstance(play, WithEnvironment):
        return None
    environment = await play.environments.open("dry-run")
    try:
        timed = TimedEnvironment(environment, play.environments.spec.name, play.rules.timeout_seconds)
        first = await timed.reset(task, environment_seed(run_seed=run_seed, purpose="train", task=task.id))
    finally:
        await environment.close()
    token_ids = renderer.prompt(first.messages).token_ids
    if len(token_ids) >= max_context_tokens:
        raise ConfigError(
            f"the environment's first prompt has {len(token_ids)} tokens, which leaves no room for a reply in a "
            f"context of {max_context_tokens}; raise rollout.max_context_tokens"
        )
    return f"prompt of the first episode ({len(token_ids)} tokens):\n{renderer.whole_text(token_ids)}"
