"""Advantages from rewards. Pure functions of numpy arrays; statistics in float64; equal rewards give exactly zero.

`[B, T]` arrays hold one episode per row; `mask` is 1 on ACTION tokens, and values at other positions have no effect.
"""

from rlhf.trainer.advantages.gae import Estimates, gae, gae_per_turn, length_adaptive_gae, length_adaptive_lambda
from rlhf.trainer.advantages.relative import best_of_group, group_relative, leave_one_out, length_weighted, per_group
from rlhf.trainer.advantages.returns import (
    kl_estimate,
    kl_penalised,
    outcome_rewards,
    over_tokens,
    overlong_penalty,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_to_go,
)
from rlhf.trainer.advantages.vtrace import vtrace
from rlhf.trainer.advantages.whitening import Moments, masked_moments, masked_values, whiten

__all__ = [
    "Estimates",
    "Moments",
    "best_of_group",
    "gae",
    "gae_per_turn",
    "group_relative",
    "kl_estimate",
    "kl_penalised",
    "leave_one_out",
    "length_adaptive_gae",
    "length_adaptive_lambda",
    "length_weighted",
    "masked_values",
    "masked_moments",
    "outcome_rewards",
    "over_tokens",
    "overlong_penalty",
    "per_group",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rewards_to_go",
    "vtrace",
    "whiten",
]
