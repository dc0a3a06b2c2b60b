"""Find the reward that a command line names: a recipe's reward, a built-in kind, or a function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf.config import build, is_piece, merge, parse_override
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.resolve import model_folder_of
from rlhf.reward.config import RewardConfig
from rlhf.reward.live import LiveReward
from rlhf.reward.local_model import LocalModelReward
from rlhf.reward.reward import make_reward


def named_reward(name: str, overrides: Sequence[str]) -> RewardConfig:
    """Return the reward of `recipe.yaml` (overrides are keys of the recipe), `math` or `my_reward:brevity` (keys of the
    reward). Raises `ConfigError`."""
    if name.endswith((".yaml", ".yml")):
        return load_recipe(Path(name), overrides).recipe.reward
    own = {"kind": "function", "function": name} if is_piece(name) else {"kind": name}
    layers = [("override", {key: value}) for key, value in map(parse_override, overrides)]
    return build(RewardConfig, merge(("name", own), *layers)[0])


def reward_here(config: RewardConfig) -> LiveReward:
    """Return the reward, not yet started, with its reward model in this process or its children."""
    if (scorer := config.model_scorer) is None:
        return make_reward(config)
    return make_reward(config, model=LocalModelReward(scorer, model_folder_of(str(scorer.model))))
