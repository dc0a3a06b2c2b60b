"""Find the reward that a command line names: a recipe's reward, a built-in kind, or a function."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.apps.arguments import recipe_if_named
from rlhf.config import build, check_found, is_piece, merge, parse_override
from rlhf.errors import ConfigError
from rlhf.recipe.resolve import model_folder_of
from rlhf.reward.config import RewardConfig
from rlhf.reward.local_model import LocalModelReward
from rlhf.reward.reward import make_reward
from rlhf.reward.reward_interface import LiveReward


def named_reward(name: str, overrides: Sequence[str]) -> RewardConfig:
    """Return the reward of a recipe (overrides are its keys), `math` or `my_reward:brevity` (keys of the reward).
    Raises `ConfigError`, also for a recipe that scores no replies."""
    if recipe := recipe_if_named(name, overrides):
        if not recipe.plays:
            raise ConfigError(f"{name} is of kind: {recipe.kind}, which has no reward")
        check_needs_no_game(recipe.reward)
        return recipe.reward
    if is_piece(name):
        check_found(name, "REWARD")
    own = {"kind": "function", "function": name} if is_piece(name) else {"kind": name}
    layers = [("override", {key: value}) for key, value in map(parse_override, overrides)]
    return build(RewardConfig, merge(("name", own), *layers)[0])


def check_needs_no_game(reward: RewardConfig) -> None:
    """Raise `ConfigError` for a reward that an environment gives."""
    if any(scorer.kind == "environment" for scorer in reward.scorers.values()):
        raise ConfigError("reward.kind: environment needs an episode's turns; use rlhf eval")


def reward_here(config: RewardConfig) -> LiveReward:
    """Return the reward, not yet started, with its reward model in this process or its children."""
    if (scorer := config.model_scorer) is None:
        return make_reward(config)
    return make_reward(config, model=LocalModelReward(scorer, model_folder_of(str(scorer.model))))
